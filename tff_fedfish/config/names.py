"""Names of settings: which there are, by method, and the nearest known one."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from tff_fedfish.config.schema import ResolvedConfig, TrainConfig
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method

PREFIX = '--config.'
SECTIONS = {
  section.name: section.type
  for section in dataclasses.fields(TrainConfig)
  if section.type is not ResolvedConfig
}
"""Class of each section of settings, by its name."""


def fields_of(method: type[Method] | None) -> dict[str, dataclasses.Field]:
  """Returns the settings that a method reads, as 'section.setting' -> field.

  None: those that all methods read.
  """
  settings = method or Method
  return {
    f'{name}.{field.name}': field
    for name, section in SECTIONS.items()
    for field in dataclasses.fields(
      settings if name == Method.section else section
    )
  }


MAY_CHANGE = frozenset(
  name
  for name, field in fields_of(None).items()
  if field.metadata.get('may_change')
)
"""Settings that may have another value when a run is resumed."""
PATHS = frozenset(
  name for name, field in fields_of(None).items() if 'is_path' in field.metadata
)
"""Settings that hold a path."""
MAY_MOVE = PATHS & MAY_CHANGE
"""Settings whose files a resumed run knows by their content."""


def field_of_any(dotted: str) -> dataclasses.Field | None:
  """Returns the field of a setting that another method reads."""
  section, _, name = dotted.partition('.')
  if section != Method.section:
    return None
  readers = registry.readers(dotted)
  return (
    registry.settings_of(registry.find(readers[0]))[name] if readers else None
  )


def method_name(settings: Mapping[str, Any]) -> str:
  """Returns `algorithm.name` of unchecked values; '' if it is no string."""
  name = settings.get('algorithm.name')
  return name if isinstance(name, str) else ''


def unknown(dotted: str, prefix: str, method: type[Method] | None) -> str:
  """Returns a clause that `dotted` is no setting, with the nearest one."""
  leaf, names = dotted.rpartition('.')[2], fields_of(method)
  near = [
    n for n in names if n.endswith(f'.{leaf}') or n.startswith(f'{leaf}.')
  ]
  candidates = near or [*names, *([] if '.' in dotted else SECTIONS)]
  nearest = difflib.get_close_matches(dotted, candidates, n=1, cutoff=0)[0]
  return (
    f'`{prefix}{dotted}` is unknown; the nearest known one is '
    f'`{prefix}{nearest}`'
  )
