"""Options of a grouping job, each checked here."""

import dataclasses
from typing import Any

from pipelines.own_functions import OwnFunction
from pipelines.source import Fields, Source, load_source
from pipelines.splits import SplitRule, split_names
from pipelines.unpack_zstd import DEFAULT_WINDOW_LOG, MAX_WINDOW_LOG
from tff_fedfish.errors import UserError

# Of records in memory. It bounds what reading takes.
RUN_BYTES = 32 << 20

# Protocol buffers cannot hold more than 2 GiB; leaves room for the last one.
_MAX_BYTES = 1 << 30
_RANGES = {
  'num_shards': (1, 99_999),
  'max_record_bytes': (1, _MAX_BYTES),
  'max_document_bytes': (1, _MAX_BYTES),
  'min_examples_per_group': (1, 1 << 62),
  'max_window_log': (10, MAX_WINDOW_LOG),
}
_MAX_NAME_CHARACTERS = 100
_OWN_FUNCTIONS = ('key_function', 'filter')


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupJob:
  """Input and options of a grouping job.

  Attributes:
    source_name: One of `SOURCE_NAMES`.
    paths: The raw files. Their order does not matter.
    key: One of `KEYS`; for json_lines, the path of the field; or the name of
        the user's own function.
    split: How to split the corpus; None: one corpus.
    fields: For json_lines: what to read.
    name: The corpus' name in the manifest; None: that of the source.
    run_bytes: Size of a reading task's records in memory; does not change what
      is written.

  Raises:
    UserError: If an option is out of its range, or does not go with another;
      names the option of `fedfish group`.
  """

  source_name: str
  paths: tuple[str, ...]
  key: str
  num_shards: int = 8
  """Number of TFRecord files, per part of a split; also the most workers that
  can write at once."""
  max_record_bytes: int = 256 << 20
  """Store a group with more bytes in several records."""
  max_document_bytes: int = 64 << 20
  """Drop texts with more bytes."""
  max_window_log: int = DEFAULT_WINDOW_LOG
  """Largest window of zstd files, as a power of 2 in bytes. 27 takes 128 MiB of
  memory per process that reads; 31, of Reddit's dumps, 2 GiB."""
  min_examples_per_group: int | None = None
  """Drop groups with fewer examples; duplicates do not count. None: none."""
  drop_duplicates: bool = False
  """Keep only the first, in stored order, of the examples of a group with the
  same text."""
  strict: bool = False
  """Stop at the first record that cannot be used, instead of dropping and
  counting it."""
  key_function: str | None = None
  """Module and name of a function that returns the key of a record as text, or
  None to drop it as no_key, such as my_module.key."""
  filter: str | None = None
  """Module and name of a function that returns True to keep a record, or False
  to drop it as filtered, such as my_module.keep."""
  split: SplitRule | None = None
  fields: Fields | None = None
  name: str | None = None
  run_bytes: int = RUN_BYTES

  def __post_init__(self):
    for name, (low, high) in _RANGES.items():
      value = getattr(self, name)
      if value is not None and not low <= value <= high:
        raise UserError(
          f'`--{name}` must be from {low} to {high}, but is {value}. Name a '
          'number in that range.'
        )
    name = self.name
    if name is not None and not (
      0 < len(name) <= _MAX_NAME_CHARACTERS and name.isprintable()
    ):
      raise UserError(
        f'`--name` must be 1 to {_MAX_NAME_CHARACTERS} printable characters, '
        f'but is {name!r}. Name another.'
      )
    if self.fields is not None:
      self._check_fields(self.fields)
    self.own_functions()
    if self.split is not None:
      # Raises if the source has no such split, or a file's name does not tell.
      split_names(self.split, self.load_source(), self.paths)

  def _check_fields(self, fields: Fields) -> None:
    for name, path in fields.paths():
      if not (path.strip() and path.isprintable()):
        raise UserError(
          f'`--{name}_field` must be the name of a field, or a path such as '
          f'user.name, but is {path!r}. Name a field.'
        )
    for path in fields.keep:
      if path in ('text', 'timestamp') or fields.keep.count(path) > 1:
        raise UserError(
          '`--keep_field` must name each field once, and neither text nor '
          'timestamp, the features of `--text_field` and `--time_field`, but '
          f'is {path!r}. Leave it out, or rename the field.'
        )
    if self.split and self.split.kind == 'time' and fields.time is None:
      raise UserError(
        '`--split_by time` needs `--time_field` with json_lines, but there is '
        'none. Name the field with the time, or split by client.'
      )

  def own_functions(self) -> tuple[OwnFunction | None, OwnFunction | None]:
    """Returns the user's own key and filter; None where there is none."""
    return tuple(
      None if name is None else OwnFunction(option, name)
      for option in _OWN_FUNCTIONS
      for name in [getattr(self, option)]
    )

  def load_source(self) -> Source:
    """Returns the source of the raw files."""
    return load_source(self.source_name, self.fields)

  def part_names(self) -> tuple[str | None, ...]:
    """Returns the names of the split's parts; None for a corpus as a whole."""
    if self.split is None:
      return (None,)
    return split_names(self.split, self.load_source())

  def num_all_shards(self) -> int:
    """Returns how many shards are written, of all parts of the split."""
    return self.num_shards * len(self.part_names())

  def options(self) -> dict[str, Any]:
    """Returns what shaped the output, for the manifest."""
    options = {
      'num_shards': self.num_shards,
      'max_record_bytes': self.max_record_bytes,
      'max_document_bytes': self.max_document_bytes,
      # Of earlier versions, whose manifests must stay equal.
      'max_examples_per_group': None,
      'drop_duplicates': self.drop_duplicates,
    }
    # Written only if set, so that older manifests stay equal.
    for name in ('min_examples_per_group', *_OWN_FUNCTIONS):
      if (value := getattr(self, name)) is not None:
        options[name] = value
    if self.fields is not None:
      options['source'] = self.source_name
      for name, value in vars(self.fields).items():
        if isinstance(value, tuple):
          value = value[0] if name == 'key' and len(value) == 1 else list(value)
        if value != []:
          options[f'{name}_field'] = value
    return options
