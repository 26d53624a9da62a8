"""Finds methods by name: built in, installed, or named by their module.

A method outside this package is a module with a `METHOD`. It is found by the
module's dotted name, or under its own name where a distribution declares it in
the entry point group `tff_fedfish.methods`.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import types
import typing
from collections.abc import Mapping

from tff_fedfish.errors import UserError
from tff_fedfish.methods import fed_avg, fed_fish, fed_prox, fed_sgd
from tff_fedfish.methods.method import Method

# A method of the package is one line here.
_MODULES = (
  fed_avg,
  fed_fish,
  fed_prox,
  fed_sgd,
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
  if name in BUILT_IN:
    return BUILT_IN[name]
  module = _entry_points().get(name, name if '.' in name else None)
  if module is not None:
    return _from_module(module, name)
  raise UserError(
    '`config.algorithm.name` must be one of '
    f'{", ".join([*BUILT_IN, *_entry_points()])}, or the module of a method of '
    f'your own, such as my_package.my_method, found {name!r}.'
  )


def find_or_none(name: str) -> Method | None:
  """Returns a method, or None where `find` raises."""
  try:
    return find(name)
  except UserError:
    return None


def installed() -> dict[str, Method]:
  """Returns the built-in and installed methods by name.

  Raises:
    UserError: If an installed method cannot be loaded.
  """
  return dict(BUILT_IN) | {name: find(name) for name in sorted(_entry_points())}


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


def kind_of(field: dataclasses.Field) -> str:
  """Returns the kind of a setting: 'bool', 'int', 'float', 'str', 'choice'."""
  annotation = field.type
  if isinstance(annotation, types.UnionType):
    annotation = typing.get_args(annotation)[0]
  is_choice = typing.get_origin(annotation) is typing.Literal
  return 'choice' if is_choice else annotation.__name__


@functools.cache
def _entry_points():
  found = {}
  for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
    name, file = entry_point.name, _file_of(entry_point.module)
    if name in BUILT_IN:
      raise _twice(name, _file_of(f'{__package__}.{name}'), file)
    if name in found and _file_of(found[name]) != file:
      raise _twice(name, _file_of(found[name]), file)
    found[name] = entry_point.module
  return found


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
    module = importlib.import_module(module_name)
  except Exception as error:  # pylint: disable=broad-exception-caught
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(
      f'{typed} must name an importable module, but importing '
      f'{module_name!r} raised {text}. Correct it, or put it on PYTHONPATH.'
    ) from error
  method = getattr(module, 'METHOD', None)
  if not isinstance(method, Method):
    raise UserError(
      f'{typed} must name a module that holds METHOD, a '
      f'tff_fedfish.methods.Method, found {type(method).__name__} in '
      f'{_file_of(module_name)!r}.'
    )
  _require_unique(method, module_name)
  _require_usable_settings(method, module_name)
  _found[name] = method
  return method


# Methods outside this package that were found, by `algorithm.name`.
_found: dict[str, Method] = {}


def _require_unique(method, module_name):
  """Raises UserError if another file holds a method of the same name."""
  name, file = method.name, _file_of(module_name)
  others = [
    _file_of(_entry_points().get(found, found))
    for found, other in _found.items()
    if other.name == name
  ]
  if name in BUILT_IN:
    others.append(_file_of(f'{__package__}.{name}'))
  if name in _entry_points():
    others.append(_file_of(_entry_points()[name]))
  for other in others:
    if other != file:
      raise _twice(name, other, file)


def _twice(name, first, second):
  return UserError(
    f'Methods must differ in name, but {first!r} and {second!r} both hold a '
    f'METHOD named {name!r}. Rename one.'
  )


def _require_usable_settings(method, module_name):
  """Raises UserError unless the settings have defaults and the usual kinds."""
  place = f'METHOD in {_file_of(module_name)!r}'
  for name, field in settings_of(method).items():
    if name != 'name' and field.default is dataclasses.MISSING:
      raise UserError(
        f'The setting {name!r} of {place} must have a default. Give it one.'
      )
    for other in BUILT_IN.values():
      expected = settings_of(other).get(name, field)
      if kind_of(field) != kind_of(expected):
        raise UserError(
          f'The setting {name!r} of {place} must be of the kind that '
          f'{other.name} gives it, {kind_of(expected)}, found '
          f'{kind_of(field)}. Rename it.'
        )
