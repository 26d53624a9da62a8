"""Options of a grouping job."""

import dataclasses
from typing import Any

from pipelines.source import Fields, Source, load_source
from pipelines.splits import SplitRule, split_names

# Records that are read together before they are handed on. Bounds what reading
# takes of memory, and what one element of a runner holds.
BLOCK_BYTES = 32 << 20
DEFAULT_MAX_DOCUMENT_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupJob:
  """Input and options of a grouping job.

  Attributes:
    source_name: One of `SOURCE_NAMES`.
    paths: The raw files. Their order does not matter.
    key: One of `KEYS`; for json_lines, the path of the field.
    num_shards: How many TFRecord files to write, at least 1; for each part, if
      the corpus is split.
    max_record_bytes: A group whose examples take more is stored in several
      records.
    max_document_bytes: A longer text is dropped.
    max_examples_per_group: Of a larger group, those whose serialized examples
      have the smallest SHA-256 are kept; None: all.
    min_examples_per_group: Smaller groups are dropped; None: none.
    drop_duplicates: Whether to keep only the first, in stored order, of the
      examples of a group that have the same text.
    strict: Whether a record that cannot be used ends the job.
    split: How to split the corpus; None: one corpus.
    fields: For json_lines: what to read.
    name: The corpus' name in the manifest; None: that of the source.
    block_bytes: How much to read before it is handed on; does not change what
      is written.
  """

  source_name: str
  paths: tuple[str, ...]
  key: str
  num_shards: int
  max_record_bytes: int
  max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
  max_examples_per_group: int | None = None
  min_examples_per_group: int | None = None
  drop_duplicates: bool = False
  strict: bool = False
  split: SplitRule | None = None
  fields: Fields | None = None
  name: str | None = None
  block_bytes: int = BLOCK_BYTES

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
    names = (
      *('num_shards', 'max_record_bytes', 'max_document_bytes'),
      *('max_examples_per_group', 'drop_duplicates'),
    )
    options = {name: getattr(self, name) for name in names}
    if self.min_examples_per_group is not None:
      options['min_examples_per_group'] = self.min_examples_per_group
    if self.fields is not None:
      options['source'] = self.source_name
      for name, path in vars(self.fields).items():
        options[f'{name}_field'] = path
    return options
