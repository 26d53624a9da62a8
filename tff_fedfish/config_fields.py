"""Fields of a config: their declaration, their checks, and what is said."""

import dataclasses
import math
import operator
import os
import types
import typing
from typing import Any, ClassVar, Literal

from tff_fedfish.errors import UserError

_MAX_FLOAT32 = 3.4028234e38
# How a value meets each kind of bound.
_MEETS = {
  'at_least': operator.ge,
  'at_most': operator.le,
  'above': operator.gt,
  'below': operator.lt,
}


class ConfigError(UserError):
  """All that is wrong with a config, in one line.

  Attributes:
    problems: One clause for each problem, naming `config.section.setting`.
  """

  def __init__(self, problems: list[str], source: str = ''):
    self.problems = tuple(problems)
    of_source = f' {source}' if source else ''
    super().__init__(f'Invalid config{of_source}: {"; ".join(problems)}.')


def number(
  default: Any = dataclasses.MISSING,
  *,
  at_least: float | None = None,
  at_most: float | None = None,
  above: float | None = None,
  below: float | None = None,
  changes_results: bool = True,
) -> Any:
  """Declares a numeric field and the bounds that `Section` checks.

  Args:
    default: The value where none is given; left out: one must be given.
    at_least: The smallest value allowed.
    at_most: The largest value allowed.
    above: Every value must be larger than this.
    below: Every value must be smaller than this.
    changes_results: See `setting`.

  Returns:
    A dataclass field whose metadata holds the bounds.
  """
  bounds = dict(at_least=at_least, at_most=at_most, above=above, below=below)
  return dataclasses.field(
    default=default, metadata=bounds | {'changes_results': changes_results}
  )


def setting(default: Any, *, changes_results: bool) -> Any:
  """Declares a field that is no number.

  Args:
    default: The value where none is given.
    changes_results: Whether the trained model may depend on it, be it in its
      last bits. Runs that differ only in other settings are compared.
  """
  return dataclasses.field(
    default=default, metadata={'changes_results': changes_results}
  )


def path(default: Any = dataclasses.MISSING) -> Any:
  """Declares a field that holds a path, in which `~` and `~user` are expanded.

  Args:
    default: The value where none is given; left out: one must be given.
  """
  return dataclasses.field(default=default, metadata={'is_path': True})


def seed(default: int) -> Any:
  """Declares a field that holds a seed."""
  # What fits TensorFlow's int32 seeds, so that no two of them coincide.
  return number(default, at_least=0, below=2**31)


class Section:
  """Base of a part of a config: checks each field's type and bounds.

  Subclasses are frozen dataclasses. Values become what `as_declared` says.
  `dataclasses.MISSING` given for a field says that it is required.

  Subclasses that are a part of their own name it: `Section, section='seeds'`.

  Raises:
    ConfigError: On construction, naming every field that is wrong.
  """

  section: ClassVar[str]
  """The name of the part within the config."""

  def __init_subclass__(cls, section: str | None = None):
    super().__init_subclass__()
    if section is not None:
      cls.section = section

  def __post_init__(self):
    problems = []
    for field in dataclasses.fields(self):
      value = as_declared(getattr(self, field.name), field)
      if value is dataclasses.MISSING:
        problems.append(f'`config.{self.section}.{field.name}` is required')
        continue
      object.__setattr__(self, field.name, value)
      requirement = unmet_requirement(value, field)
      if requirement:
        problems.append(
          f'`config.{self.section}.{field.name}` must be {requirement}, '
          f'found {value!r}'
        )
    problems += self.cross_problems(are_fields_right=not problems)
    if problems:
      raise ConfigError(problems)

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """Returns a clause for each setting that does not go with another one."""
    return []

  def changed(self) -> dict[str, Any]:
    """Returns the settings that are not at their default, by name."""
    return {
      field.name: value
      for field in dataclasses.fields(self)
      if (value := getattr(self, field.name)) != field.default
    }


def as_declared(value: Any, field: dataclasses.Field) -> Any:
  """Returns `value` as a field holds it.

  An int given for a float becomes a float; a path begins with no `~`.
  """
  if field.metadata.get('is_path') and type(value) is str:
    return os.path.expanduser(value)
  if field.type in (float, float | None) and type(value) is int:
    try:
      return float(value)
    except OverflowError:
      return math.inf
  return value


def unmet_requirement(value: Any, field: dataclasses.Field) -> str:
  """Returns what `field` requires of `value`, '' if it is met."""
  choices = typing.get_args(field.type)
  if typing.get_origin(field.type) is Literal:
    return '' if value in choices else f'one of {", ".join(map(str, choices))}'
  accepts_none = isinstance(field.type, types.UnionType)
  expected = choices[0] if accepts_none else field.type
  if value is None and accepts_none:
    return ''
  # Not isinstance: True is an int in Python, but not what a count should be.
  if type(value) is not expected:
    named = {int: 'an int', float: 'a number', bool: 'true or false'}
    return named.get(expected, 'a string') + ' or None' * accepts_none
  if expected is str:
    return '' if value else 'a non-empty string'
  return _unmet_bound(value, field.metadata)


def is_finite_float32(value: float) -> bool:
  """Says whether a number stays finite as a float32, as TensorFlow holds it."""
  return abs(value) <= _MAX_FLOAT32


def _unmet_bound(value: float, bounds: typing.Mapping[str, Any]) -> str:
  given = {
    name: bounds[name] for name in _MEETS if bounds.get(name) is not None
  }
  is_met = (_MEETS[name](value, bound) for name, bound in given.items())
  if is_finite_float32(value) and all(is_met):
    return ''
  wanted = ['finite'] if isinstance(value, float) else []
  wanted += [f'{name.replace("_", " ")} {given[name]}' for name in given]
  return ' and '.join(wanted)
