"""Finds methods by name: built in, installed, or named by their module.

A method outside this package is a module with a `METHOD`. It is found by the
module's dotted name, or under its own name where a distribution declares it in
the entry point group `tff_fedfish.methods`.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping

from tff_fedfish.errors import UserError
from tff_fedfish.methods import (
  dense,
  fed_avg,
  fed_fish,
  fed_fisher,
  fed_fomo,
  fed_prox,
  fed_sgd,
  fisher_merge,
  local_only,
  moon,
  ot_fusion,
  pfnm,
  reg_mean,
  scaffold,
  tct,
)
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import kind_of

# A method of the package is one line here.
_MODULES = (
  fed_avg,
  fed_fish,
  fed_prox,
  fed_sgd,
  moon,
  scaffold,
  tct,
  fed_fisher,
  fisher_merge,
  reg_mean,
  ot_fusion,
  pfnm,
  dense,
  local_only,
  fed_fomo,
)
BUILT_IN: Mapping[str, Method] = types.MappingProxyType(
  {module.METHOD.name: module.METHOD for module in _MODULES}
)
BASELINE = BUILT_IN['fed_avg']
"""The method that reports compare others with."""

ENTRY_POINTS = 'tff_fedfish.methods'
"""Group in which a distribution declares its methods as NAME = MODULE."""


def find(name: str) -> Method:
  """Returns a method.

  Args:
    name: Value of `algorithm.name`: the name of a built-in or installed method,
      or the dotted name of a module that holds METHOD.

  Raises:
    UserError: If there is no such method, its module cannot be imported or
      holds none, or another method has its name.
  """
  if name in BUILT_IN and name not in _entry_points():
    return BUILT_IN[name]
  modules = _modules_of(name) or [name] * ('.' in name)
  if not modules:
    raise UserError(
      '`config.algorithm.name` must be one of '
      f'{", ".join(BUILT_IN | _entry_points())}, or the module of a method of '
      f'your own, such as my_package.my_method, found {name!r}.'
    )
  for other in modules[1:]:
    _require_same_file(name, modules[0], other)
  return _from_module(modules[0], name)


def find_or_none(name: str) -> Method | None:
  """Returns a method, or None where `find` raises."""
  try:
    return find(name)
  except UserError:
    return None


def installed(
  on_broken: Callable[[str], None] = lambda problem: None,
) -> dict[str, Method]:
  """Returns the built-in and installed methods by name.

  Args:
    on_broken: Receives a line for each that is left out, as it cannot be used.
  """
  methods = {}
  for name in [*BUILT_IN, *sorted(_entry_points().keys() - BUILT_IN.keys())]:
    try:
      methods[name] = find(name)
    except UserError as error:
      on_broken(str(error))
  return methods


def settings_of(method: Method) -> dict[str, dataclasses.Field]:
  """Returns the settings that a method reads, by name."""
  return {field.name: field for field in dataclasses.fields(method.settings)}


def readers(setting: str) -> list[str]:
  """Returns the names of the methods that read a setting of `algorithm`.

  Args:
    setting: Without the section. Methods that were found by their module before
      count too.
  """
  methods = installed() | _found
  return [name for name, m in methods.items() if setting in settings_of(m)]


@functools.cache
def _entry_points() -> dict[str, list[str]]:
  """Returns the modules that distributions declare, by the method's name."""
  found = {}
  for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
    found.setdefault(entry_point.name, []).append(entry_point.module)
  return found


def _modules_of(name):
  """Returns the modules that declare a built-in or installed method."""
  built_in = [f'{__package__}.{name}'] * (name in BUILT_IN)
  return built_in + _entry_points().get(name, [])


def _file_of(module):
  """Returns a module's file, or its name where there is none."""
  try:
    return importlib.util.find_spec(module).origin
  except (ImportError, AttributeError, ValueError):
    return module


@functools.cache
def _from_module(module_name, name):
  """Imports a module and returns its METHOD."""
  typed = f'`config.algorithm.name` {name!r}'
  try:
    # What a module prints is no part of a command's answer.
    with contextlib.redirect_stdout(sys.stderr):
      module = importlib.import_module(module_name)
  except (Exception, SystemExit) as error:
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(
      f'{typed} must name an importable module, but importing '
      f'{module_name!r} raised {text.rstrip(".")}. '
      f'{_remedy(module_name)}.'
    ) from error
  method = getattr(module, 'METHOD', None)
  if not isinstance(method, Method):
    raise UserError(
      f'{typed} must name a module that holds METHOD, a '
      f'tff_fedfish.methods.Method, found {type(method).__name__} in '
      f'{_file_of(module_name)!r}.'
    )
  _require_unique(method, module_name)
  _require_kinds(method, module_name)
  _found[name] = method
  return method


def _remedy(module_name):
  """Returns what to do where a module cannot be imported."""
  top = module_name.partition('.')[0]
  if top not in sys.modules and importlib.util.find_spec(top) is None:
    for name in (f'{top}/', f'{top}.py'):
      if os.path.exists(name):
        return f'Run `PYTHONPATH=. fedfish ...`, as {name} is here'
  return 'Correct it, or put it on PYTHONPATH'


# Methods outside this package that were found, by `algorithm.name`.
_found: dict[str, Method] = {}


def _require_unique(method, module_name):
  """Raises UserError if another file holds a method of the same name."""
  name = method.name
  others = _modules_of(name)
  for found, other in _found.items():
    if other.name == name:
      others += _entry_points().get(found, [found])
  for other in others:
    _require_same_file(name, other, module_name)


def _require_same_file(name, first, second):
  if _file_of(first) != _file_of(second):
    raise UserError(
      f'Methods must differ in name, but {_file_of(first)!r} and '
      f'{_file_of(second)!r} both hold a METHOD named {name!r}. Rename one.'
    )


def _require_kinds(method, module_name):
  """Raises UserError unless settings are of the kinds of built-in methods."""
  for name, field in settings_of(method).items():
    for other in BUILT_IN.values():
      expected = settings_of(other).get(name, field)
      if kind_of(field) != kind_of(expected):
        raise UserError(
          f'The setting {name!r} of METHOD in {_file_of(module_name)!r} must '
          f'be of the kind that {other.name} gives it, {kind_of(expected)}, '
          f'found {kind_of(field)}. Rename it.'
        )
