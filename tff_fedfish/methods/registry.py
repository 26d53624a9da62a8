"""Finds methods by name: built in, or named by their module.

A method outside this package is a module with a `METHOD`. It is found by the
module's dotted name.
"""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import os
import sys
import types
from collections.abc import Mapping

from tff_fedfish.errors import UserError
from tff_fedfish.methods import (
  fed_avg,
  fed_fish,
  fed_fomo,
  fed_prox,
  fed_sgd,
  local_only,
  moon,
  scaffold,
  tct,
)
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.one_shot import (
  dense,
  fed_fisher,
  fisher_merge,
  ot_fusion,
  pfnm,
  reg_mean,
)
from tff_fedfish.methods.settings import AlgorithmConfig

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
# Methods outside this package that were found, by `algorithm.name`.
_found: dict[str, Method] = {}


def find(name: str) -> Method:
  """Returns a method.

  Args:
    name: Value of `algorithm.name`: the name of a built-in method, or the
      dotted name of a module that holds METHOD.

  Raises:
    UserError: If there is no such method, or its module cannot be imported or
      holds none.
  """
  if name in BUILT_IN:
    return BUILT_IN[name]
  if '.' not in name:
    near = difflib.get_close_matches(name.lower(), BUILT_IN, n=1)
    advice = f'; the nearest known one is {near[0]!r}' if near else ''
    raise UserError(
      f'`config.algorithm.name` must be one of {", ".join(BUILT_IN)}, or the '
      'module of a method of your own with its package (my_package.my_method), '
      f'found {name!r}{advice}.'
    )
  return _from_module(name)


def find_or_none(name: str) -> Method | None:
  """Returns a method, or None where `find` raises."""
  try:
    return find(name)
  except UserError:
    return None


def settings_of(method: Method) -> dict[str, dataclasses.Field]:
  """Returns the settings that a method reads, by name."""
  return {field.name: field for field in dataclasses.fields(method.settings)}


def reads(method: Method, setting: str) -> bool:
  """Returns whether a method reads a setting, as 'section.setting'."""
  section, _, name = setting.partition('.')
  if section == AlgorithmConfig.section:
    return name in settings_of(method)
  return section != 'server' or method.takes_server_step


def readers(setting: str) -> list[str]:
  """Returns the names of the methods that read a setting.

  Args:
    setting: As 'section.setting'. Methods that were found by their module
      before count too.
  """
  methods = BUILT_IN | _found
  return [name for name, m in methods.items() if reads(m, setting)]


@functools.cache
def _from_module(module_name):
  """Imports a module and returns its METHOD."""
  typed = f'`config.algorithm.name` {module_name!r}'
  # An installed `fedfish` does not look there by itself, as `python -m` does.
  if not {'', os.getcwd()} & set(sys.path):
    sys.path.append(os.getcwd())
  try:
    # What a module prints is no part of a command's answer.
    with contextlib.redirect_stdout(sys.stderr):
      module = importlib.import_module(module_name)
  except (Exception, SystemExit) as error:
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(
      f'{typed} must name an importable module, but importing '
      f'{module_name!r} raised {text.rstrip(".")}. Correct it, start `fedfish` '
      'in the directory that holds its package, or put that on PYTHONPATH.'
    ) from error
  method = getattr(module, 'METHOD', None)
  if not isinstance(method, Method):
    raise UserError(
      f'{typed} must name a module that holds METHOD, a '
      f'tff_fedfish.methods.Method, found {type(method).__name__} in '
      f'{getattr(module, "__file__", module_name)!r}.'
    )
  _found[module_name] = method
  return method
