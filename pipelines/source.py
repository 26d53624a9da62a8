"""What a raw corpus has to say about itself, and the list of those that exist.

A new source is one new module with a `SOURCE`, and one line below.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping

_MODULES = {'c4': 'pipelines.c4'}

SOURCE_NAMES = tuple(_MODULES)

RawRecord = Mapping[str, str]
"""Feature name to text. Optional features that a record lacks are absent."""


class Drop(Exception):
  """Says that a record is left out, and why.

  Attributes:
    reason: One word for the manifest, such as 'missing_text'.
    damage: Whether the file could not be read beyond this record.
  """

  def __init__(self, reason: str, *, damage: bool = False):
    super().__init__(reason)
    self.reason = reason
    self.damage = damage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A kind of raw corpus."""

  name: str
  default_key: str
  feature_names: tuple[str, ...]
  """Features that every stored example has; empty where a record has none."""
  optional_feature_names: tuple[str, ...]
  """Features stored if at least one record of the input has them."""
  read_records: Callable[[str], Iterator[tuple[int, RawRecord | Drop]]]
  """Yields (1-based line number, record or why it is dropped) of a file."""


def load_source(name: str) -> Source:
  """Returns the source of that name, one of `SOURCE_NAMES`."""
  return importlib.import_module(_MODULES[name]).SOURCE
