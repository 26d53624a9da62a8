"""Clauses on settings of a config that a method needs otherwise."""

import typing
from collections.abc import Iterable
from typing import Any

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

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
