"""Settings of the section `algorithm`: what a method's own class may hold."""

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from tff_fedfish.errors import require
from tff_fedfish.fields import Section, as_declared, unmet_requirement

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(Section):
  """Settings that every method reads; a method's own class adds to them."""

  section: ClassVar[str] = 'algorithm'

  name: str
  """Name of the method (`fedfish methods` lists them), or the importable module
  of a method of your own, such as `my_package.my_method`."""
  client_weighting: Literal['num_examples', 'uniform'] = 'num_examples'
  """Client weight: the client's sequences in the round, or 1."""


def own_fields(settings: Any) -> list[dataclasses.Field]:
  """Returns the fields of a method's settings that not every method has."""
  shared = {field.name for field in dataclasses.fields(AlgorithmConfig)}
  return [f for f in dataclasses.fields(settings) if f.name not in shared]


def own_settings(config: 'TrainConfig') -> dict[str, Any]:
  """Returns the settings of `algorithm` that not every method reads."""
  settings = config.algorithm
  return {f.name: getattr(settings, f.name) for f in own_fields(settings)}


def kind_of(field: dataclasses.Field) -> str:
  """Returns the kind of a setting: 'bool', 'int', 'float', 'str', 'choice'.

  Raises:
    ValueError: If it is annotated otherwise.
  """
  annotation = field.type
  if isinstance(annotation, types.UnionType):
    inner, *others = typing.get_args(annotation)
    annotation = inner if others == [types.NoneType] else None
  if annotation in (bool, int, float, str):
    return annotation.__name__
  if typing.get_origin(annotation) is Literal and all(
    isinstance(choice, str) for choice in typing.get_args(annotation)
  ):
    return 'choice'
  raise ValueError(
    f'the setting {field.name!r} must be annotated as bool, int, float, str, '
    f'one of these | None, or a Literal of strings, found {field.type!r}'
  )


def require_settings(settings: Any) -> None:
  """Raises ValueError unless a class declares settings as configs need them."""
  is_own = isinstance(settings, type) and issubclass(settings, AlgorithmConfig)
  if not is_own or '__dataclass_fields__' not in vars(settings):
    raise ValueError(
      '`settings` must be a subclass of AlgorithmConfig with '
      '@dataclasses.dataclass(frozen=True, kw_only=True), found '
      f'{settings!r}'
    )
  for field in dataclasses.fields(settings):
    kind_of(field)
    if field.name != 'name' and field.default is dataclasses.MISSING:
      raise ValueError(f'the setting {field.name!r} must have a default')


def require_in_range(settings: type[AlgorithmConfig], **values: Any) -> None:
  """Raises ValueError unless settings of a class can have such values."""
  for name, value in values.items():
    field = settings.__dataclass_fields__[name]
    wanted = unmet_requirement(as_declared(value, field), field)
    require(not wanted, name, wanted, value)


UNIT_STEP = (
  ('server.optimizer', 'sgd'),
  ('server.learning_rate', 1.0),
  ('server.momentum', 0.0),
  ('server.max_gradient_norm', None),
  ('server.learning_rate_schedule', 'constant'),
  ('server.warmup_rounds', 0),
)
"""Settings, as 'section.setting', of a server that takes the clients' mean."""


def settings_unlike(
  config: 'TrainConfig', expected: Iterable[tuple[str, Any]], because: str
) -> list[str]:
  """Returns a clause for each setting that is not as expected.

  Args:
    config: The config.
    expected: Settings, as 'section.setting', and their values.
    because: What expects them, such as "with algorithm.name 'tct'".
  """
  problems = []
  for path, wanted in expected:
    section, _, setting = path.partition('.')
    found = getattr(getattr(config, section), setting)
    if found != wanted:
      problems.append(
        f'`config.{path}` must be {wanted!r} {because}, found {found!r}'
      )
  return problems


def image_problems(config: 'TrainConfig') -> list[str]:
  """Returns the clause that a method of images only has on text."""
  if config.data.holds_images:
    return []
  return [
    f'`config.algorithm.name` {config.algorithm.name!r} requires a corpus of '
    'images, found text'
  ]
