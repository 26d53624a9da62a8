"""Settings of a dataclass: declared, checked and described on the field."""

import ast
import dataclasses
import inspect
import math
import operator
import os
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from tff_fedfish.errors import UserError

SET: Any = object()
"""Stands in `read_with` for every value but the default, or 0 if required."""

_MAX_FLOAT32 = 3.4028234e38
# How a value meets each kind of bound.
_MEETS = {
  'at_least': operator.ge,
  'at_most': operator.le,
  'above': operator.gt,
  'below': operator.lt,
}


class ConfigError(UserError):
  """All problems of a config, in one line.

  Attributes:
    problems: One clause for each problem, naming `config.section.setting`.
  """

  def __init__(self, problems: list[str], source: str = ''):
    self.problems = tuple(problems)
    of_source = f' {source}' if source else ''
    super().__init__(f'Invalid config{of_source}: {"; ".join(problems)}.')


def setting(
  default: Any = dataclasses.MISSING,
  *,
  changes_results: bool = True,
  may_change: bool = False,
  read_with: Mapping[str, Any] | None = None,
  required: bool = False,
  **metadata: Any,
) -> Any:
  """Declares a field of a section.

  Args:
    default: The default value. Left out: the setting is required.
    changes_results: Whether the trained model may depend on it, if only in the
      last bits. Runs that differ only in other settings are compared.
    may_change: Whether a resumed run may have another value.
    read_with: Conditions under which the setting is read, as values by
      setting: {'optimizer': ('sgd',)}, or SET for any but the default, or 0
      where there is none. A setting of another section is named
      'section.setting'.
    required: Whether None is refused where the setting is read.
    **metadata: Bounds, see `number`.

  Returns:
    A dataclass field.
  """
  metadata |= dict(
    changes_results=changes_results,
    may_change=may_change,
    read_with=read_with,
    required=required,
  )
  return dataclasses.field(default=default, metadata=metadata)


def number(
  default: Any = dataclasses.MISSING,
  *,
  at_least: float | None = None,
  at_most: float | None = None,
  above: float | None = None,
  below: float | None = None,
  **options: Any,
) -> Any:
  """Declares a numeric field with bounds; for `options` see `setting`."""
  bounds = dict(at_least=at_least, at_most=at_most, above=above, below=below)
  return setting(default, **bounds, **options)


def path(default: Any = dataclasses.MISSING, **options: Any) -> Any:
  """Declares a field that holds a path; `~` and `~user` are expanded."""
  return setting(default, is_path=True, **options)


def seed(default: int) -> Any:
  """Declares a field that holds a seed."""
  # The range of TensorFlow's int32 seeds, so that no two of them coincide.
  return number(default, at_least=0, below=2**31)


class Section:
  """Base of a section of a config: checks types and bounds.

  Subclasses are frozen dataclasses and name themselves: `Section,
  section='seeds'`. Values are converted by `as_declared`.
  `dataclasses.MISSING` as a value means that none was given. Conditions take
  the whole config: `problems_of_reading`.

  Raises:
    ConfigError: On construction, naming every wrong field.
  """

  section: ClassVar[str]
  """Name of the section within the config."""

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
      if requirement := unmet_requirement(value, field):
        problems.append(
          f'`config.{self.section}.{field.name}` must be {requirement}, '
          f'found {value!r}'
        )
    if problems:
      raise ConfigError(problems)

  def changed(self) -> dict[str, Any]:
    """Returns the settings that are not at their default, by name."""
    return {
      field.name: value
      for field in dataclasses.fields(self)
      if (value := getattr(self, field.name)) != field.default
    }


def as_declared(value: Any, field: dataclasses.Field) -> Any:
  """Converts `value` to the type of a field: to a float, `~` to a path."""
  if field.metadata.get('is_path') and type(value) is str:
    return os.path.expanduser(value)
  # np.float64 is a float, but not of its type.
  is_number = type(value) is int or isinstance(value, float)
  if field.type in (float, float | None) and is_number:
    try:
      return float(value)
    except OverflowError:
      return math.inf
  return value


def unmet_requirement(value: Any, field: dataclasses.Field) -> str:
  """Returns the requirement of `field` that `value` breaks, '' if none."""
  choices = typing.get_args(field.type)
  if typing.get_origin(field.type) is Literal:
    # 8.0 and True equal ints, but are none.
    is_choice = any(value == c and type(value) is type(c) for c in choices)
    return '' if is_choice else f'one of {", ".join(map(str, choices))}'
  accepts_none = isinstance(field.type, types.UnionType)
  expected = choices[0] if accepts_none else field.type
  if value is None and accepts_none:
    return ''
  # Not isinstance: True is an int in Python, but no count.
  if type(value) is not expected:
    named = {int: 'an int', float: 'a number', bool: 'true or false'}
    return named.get(expected, 'a string') + ' or None' * accepts_none
  if expected is str:
    return '' if value else 'a non-empty string'
  return _unmet_bound(value, field.metadata)


def _unmet_bound(value: float, bounds: Mapping[str, Any]) -> str:
  given = {
    name: bounds[name] for name in _MEETS if bounds.get(name) is not None
  }
  is_met = (_MEETS[name](value, bound) for name, bound in given.items())
  if abs(value) <= _MAX_FLOAT32 and all(is_met):
    return ''
  wanted = ['finite'] if isinstance(value, float) else []
  wanted += [f'{name.replace("_", " ")} {given[name]}' for name in given]
  return ' and '.join(wanted)


def problems_of_reading(
  section: Section, config: Any
) -> tuple[list[str], list[str]]:
  """Returns clauses on a section of a config by the conditions of its fields.

  A setting with a default must not be given where nothing reads it, nor be None
  where it is required. The second list is of settings without a default, which
  are given whether they are read or not.
  """
  problems, notes = [], []
  for field in dataclasses.fields(section):
    name = f'`config.{section.section}.{field.name}`'
    value = getattr(section, field.name)
    conditions = list(_conditions(section, field, config))
    clauses = [
      f'{name} is read only with {wanted}, found {value!r}'
      for holds, wanted, _ in conditions
      if not holds and value != field.default
    ]
    if field.default is dataclasses.MISSING:
      notes += clauses if value else []
    else:
      advice = f'leave it out or at {field.default!r}'
      problems += [f'{clause}; {advice}' for clause in clauses]
    is_read = conditions and all(holds for holds, *_ in conditions)
    if is_read and value is None and field.metadata['required']:
      problems.append(f'{name} is required with {conditions[0][-1]}')
  return problems, notes


def unread(section: Section, config: Any) -> set[str]:
  """Returns the names of the settings of a section that nothing reads."""
  return {
    field.name
    for field in dataclasses.fields(section)
    if not all(holds for holds, *_ in _conditions(section, field, config))
  }


def readers_of(
  section_class: type['Section'], field: dataclasses.Field
) -> dict[str, tuple[Any, ...] | object]:
  """Returns a field's `read_with`, of values that its section can have."""
  conditions = dict(field.metadata.get('read_with') or {})
  for key, wanted in conditions.items():
    own = section_class.__dataclass_fields__.get(key)
    choices = typing.get_args(own.type) if own is not None else ()
    if wanted is not SET and choices:
      conditions[key] = tuple(v for v in wanted if v in choices) or wanted
  return conditions


def _conditions(section, field, config):
  """Yields (holds, what is wanted, what there is) per entry of `read_with`."""
  for key, wanted in readers_of(type(section), field).items():
    other, _, name = key.rpartition('.')
    owner = getattr(config, other) if other else section
    value = getattr(owner, name)
    if wanted is SET:
      default = type(owner).__dataclass_fields__[name].default
      unset = 0 if default is dataclasses.MISSING else default
      holds, words = value != unset, f'{key} set'
    else:
      holds, words = value in wanted, f'{key} {either(wanted)}'
    yield holds, words, f'{key} {value!r}'


def either(values: Sequence[Any]) -> str:
  """Returns "'a', 'b' or 'c'"."""
  *others, last = map(repr, values)
  return f'{", ".join(others)} or {last}' if others else last


def docs_of(section_class: type) -> dict[str, str]:
  """Returns the docstring below each field of a dataclass, by field.

  Python keeps no such docstrings: they are read from the source.
  """
  docs = {}
  for cls in reversed(section_class.__mro__):
    if not dataclasses.is_dataclass(cls):
      continue
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    for field, text in zip(body, body[1:], strict=False):
      if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
        docs[field.target.id] = ' '.join(str(text.value.value).split())
  return docs
