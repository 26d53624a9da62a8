"""Declaration of a raw corpus, and the list of those that exist.

A new source is a `Source` in some module, and one line below.
"""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

# Name -> module, and the name of the `Source` in it.
_SOURCES = {
  'c4': ('web_articles', 'C4'),
  'cc_news': ('web_articles', 'CC_NEWS'),
  'stack_overflow': ('stack_overflow', 'SOURCE'),
  'json_lines': ('json_lines', 'SOURCE'),
}

SOURCE_NAMES = tuple(_SOURCES)

EXCERPT_BYTES = 200
"""How much of a dropped record goes with its `Drop`."""

OTHER_FEATURES_BYTES = 1 << 20
"""How much a record may hold beside its text."""

TIME_NOT_READ = '\0time'
"""Name in a record whose time is neither text nor a number; no field has it."""

OBJECT = '\0object'
"""Name in a record of the object that it was read from; no field has it."""

T = TypeVar('T')
RawRecord = Mapping[str, str]
"""Feature name to text. Optional features that a record lacks are absent; names
that are no feature of the source (such as `split`) are seen by its `split`
function and by keys, and not stored."""


class Span(NamedTuple):
  """The lines of a file that begin in a range of bytes."""

  start: int = 0
  stop: int = sys.maxsize


WHOLE_FILE = Span()


@dataclasses.dataclass(eq=False)
class Drop(Exception):
  """Says that a record is left out, and why."""

  reason: str
  """One word for the manifest, such as 'missing_text'."""
  _: dataclasses.KW_ONLY
  damage: bool = False
  """Whether more of the file than this record may be lost."""
  excerpt: bytes = b''
  """The first `EXCERPT_BYTES` of what was dropped."""

  def __post_init__(self):
    self.excerpt = self.excerpt[:EXCERPT_BYTES]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
  """Paths of the fields that json_lines reads, such as 'user.name'."""

  key: tuple[str, ...]
  """Fields that are the key together; a single one may be given as it is."""
  text: str
  time: str | None = None
  """None: examples have no timestamp."""
  keep: tuple[str, ...] = ()
  """Fields to store as features of their own."""

  def __post_init__(self):
    if isinstance(self.key, str):
      object.__setattr__(self, 'key', (self.key,))

  def paths(self) -> list[tuple[str, str]]:
    """Returns (name of the attribute, path) of every field."""
    return [
      (name, path)
      for name, value in vars(self).items()
      for path in ((value,) if isinstance(value, str) else value or ())
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A kind of raw corpus."""

  name: str
  default_key: str
  feature_names: tuple[str, ...]
  """Features that every stored example has; empty where a record has none."""
  optional_feature_names: tuple[str, ...]
  """Features stored if at least one record of the input has them."""
  read_records: Callable[..., Iterator[tuple[int, RawRecord | Drop]]]
  """Called with a path, `max_document_bytes`, the longest text to accept, the
  `max_window_log` of `open_raw`, whether records shall hold their `OBJECT`, if
  they have one, and a `Span`; yields (1-based number of the line, row or post
  in the span, record or why it is dropped), one for every record."""
  has_lines: Callable[[str], bool]
  """Called with a path; says whether the file can be read in spans."""
  split_names: tuple[str, ...] = ()
  """The parts into which the corpus's own split divides it, if it has one."""
  split: Callable[[str, RawRecord], str] | None = None
  """Called with a path and a record; returns one of `split_names`."""
  splits_by_path: bool = False
  """Whether `split` looks at nothing but the path."""
  key: Callable[[RawRecord], bytes] | None = None
  """Called with a record, returns its group id or raises `Drop`; None: the key
  is chosen among `pipelines.keys.KEYS`."""


def parse_each(
  parse: Callable[[Any], T], numbered: Iterable[tuple[int, Any]]
) -> Iterator[tuple[int, T | Drop]]:
  """Yields (number, parsed value or why it is dropped).

  A `Drop` without an excerpt gets the beginning of the value.

  Args:
    parse: Called with each value; may raise `Drop`.
    numbered: Pairs (number, value); a value that is a `Drop` stays. A `Drop`
      that it raises, for damage of a file, is the last.
  """
  num = 0
  try:
    for num, value in numbered:
      parsed = value
      if not isinstance(value, Drop):
        try:
          parsed = parse(value)
        except Drop as drop:
          drop.excerpt = drop.excerpt or beginning(value)
          parsed = drop
      yield num, parsed
  except Drop as damage:
    yield num + 1, damage


def beginning(value: Any) -> bytes:
  """Returns how bytes or an object, as JSON, begin; for `Drop.excerpt`."""
  if not isinstance(value, dict):
    return value[:EXCERPT_BYTES]
  # A long text would be copied, only to be cut off.
  short = {
    name: found[:EXCERPT_BYTES] if isinstance(found, str | bytes) else found
    for name, found in value.items()
  }
  try:
    text = json.dumps(short, ensure_ascii=False, default=str)
  except (ValueError, RecursionError):
    return b''
  return text[:EXCERPT_BYTES].encode(errors='backslashreplace')[:EXCERPT_BYTES]


def load_source(name: str, fields: Fields | None = None) -> Source:
  """Returns a source.

  Args:
    name: One of `SOURCE_NAMES`.
    fields: What json_lines reads; None for all others.
  """
  module_name, source_name = _SOURCES[name]
  module = importlib.import_module(f'pipelines.{module_name}')
  if fields is not None:
    return module.build_source(fields)
  return getattr(module, source_name)
