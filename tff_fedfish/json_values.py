"""Makes dataclasses of JSON values, and says which value is wrong."""

import collections.abc
import dataclasses
import functools
import sys
import types
import typing
from typing import Any

_MAX_INT = (1 << 63) - 1
_MAX_SHOWN_CHARACTERS = 60
_type_hints = functools.cache(typing.get_type_hints)


class WrongValueError(ValueError):
  """Names the value, what it must be, and what it is.

  Attributes:
    name: Place of the value, such as 'counts.drops'; '' for the whole.
    found: The value as it was parsed; None where it is missing.
  """

  def __init__(self, message: str, name: str, found: Any = None):
    super().__init__(message)
    self.name, self.found = name, found


def from_json(kind: Any, value: Any, name: str) -> Any:
  """Returns a value of JSON as the type of an annotation.

  Args:
    kind: `int` (from 0 on), `float` (finite), `bool`, `str`, `Any`, a
      dataclass, or of these `X | None`, `tuple[X, ...]`, `Mapping[str, X]` and
      `dict[str, X]`.
    value: The value as `json.loads` returns it.
    name: Place of the value, such as 'counts.drops'; '' for the whole.

  Raises:
    WrongValueError: If it has another type, lacks a field without a default, or
      has a field that the dataclass lacks.
  """
  origin, arguments = typing.get_origin(kind), typing.get_args(kind)
  if origin in (types.UnionType, typing.Union):
    return None if value is None else from_json(arguments[0], value, name)
  if dataclasses.is_dataclass(kind):
    return _dataclass(kind, value, name)
  if origin is tuple:
    require(isinstance(value, list), name, 'a list', value)
    items = enumerate(value)
    return tuple(
      from_json(arguments[0], item, f'{name}[{i}]') for i, item in items
    )
  if origin in (collections.abc.Mapping, dict):
    require(isinstance(value, dict), name, 'an object', value)
    require(all(map(_is_text, value)), name, 'an object of names', value)
    return {
      key: from_json(arguments[1], item, f'{name}.{key}')
      for key, item in value.items()
    }
  if kind is int:
    is_count = type(value) is int and 0 <= value <= _MAX_INT
    require(is_count, name, 'a whole number from 0 on', value)
  elif kind is float:
    is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max
    require(is_number, name, 'a finite number', value)
    return float(value)
  elif kind is bool:
    require(type(value) is bool, name, 'true or false', value)
  elif kind is str:
    require(_is_text(value), name, 'text', value)
  return value


def require(is_right: bool, name: str, what: str, found: Any) -> None:
  """Raises a WrongValueError that says what a value must be, unless it is."""
  if not is_right:
    shown = ascii(found)
    if len(shown) > _MAX_SHOWN_CHARACTERS:
      shown = f'{shown[:_MAX_SHOWN_CHARACTERS]}...'
    raise WrongValueError(
      f'`{name or "the whole"}` must be {what}, but is {shown}', name, found
    )


def _dataclass(kind: Any, value: Any, name: str) -> Any:
  require(isinstance(value, dict), name, 'an object', value)
  hints = _type_hints(kind)
  if unknown := value.keys() - hints.keys():
    raise WrongValueError(
      f'`{name}` has the unknown {min(unknown)!r:.60}', name, value
    )
  path = f'{name}.' if name else ''
  no_default = (dataclasses.MISSING, dataclasses.MISSING)
  for field in dataclasses.fields(kind):
    is_required = (field.default, field.default_factory) == no_default
    if field.name not in value and is_required:
      missing = f'{path}{field.name}'
      raise WrongValueError(f'`{missing}` is missing', missing)
  return kind(
    **{
      key: from_json(hints[key], item, f'{path}{key}')
      for key, item in value.items()
    }
  )


def _is_text(value: Any) -> bool:
  try:
    # JSON can name halves of characters, which cannot be printed.
    return isinstance(value, str) and value.encode() is not None
  except UnicodeEncodeError:
    return False
