"""Reads one raw file into blocks of grouped records, and accounts for each."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterator

from pipelines.source import Drop, RawRecord, Source

Values = tuple[bytes | None, ...]
"""One record: a value per feature of the source, None where it has none."""

Block = list[tuple[bytes, list[Values]]]
"""Records by group id."""

# What a block holds before it is handed on. A file of any size fits in memory
# this way, and a block stays far below what runners can carry as one element.
BLOCK_BYTES = 32 << 20


@dataclasses.dataclass
class FileReport:
  """What became of the records of one file."""

  name: str
  """The file's name without directories, so that no path reaches the output."""
  records_in: int = 0
  records_out: int = 0
  drops: dict[str, int] = dataclasses.field(default_factory=dict)
  first_drops: dict[str, int] = dataclasses.field(default_factory=dict)
  """Line number of the first drop, by reason."""
  damage: str | None = None
  features: set[str] = dataclasses.field(default_factory=set)
  """Optional features that at least one kept record has."""

  def count_drop(self, drop: Drop, line_num: int) -> None:
    """Counts one record that is left out."""
    self.drops[drop.reason] = self.drops.get(drop.reason, 0) + 1
    self.first_drops.setdefault(drop.reason, line_num)
    if drop.damage:
      self.damage = drop.reason


def read_groups(
  source: Source,
  path: str,
  key: Callable[[RawRecord], bytes],
  num_shards: int,
  report: FileReport,
  *,
  block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[int, Block]]:
  """Yields (shard number, block) pairs that together hold a file's records.

  Args:
    source: How to read the file.
    path: The file.
    key: Maps a record to its group id; raises `Drop` if it has none.
    num_shards: How many shards there are.
    report: Filled while this is iterated, complete at its end.
    block_bytes: How many bytes of records to collect before yielding.
  """
  shard_to_groups = _empty_blocks()
  num_bytes = 0
  for line_num, record in source.read_records(path):
    report.records_in += 1
    if isinstance(record, Drop):
      report.count_drop(record, line_num)
      continue
    try:
      group_id = key(record)
    except Drop as drop:
      report.count_drop(drop, line_num)
      continue
    values = _to_values(source, record, report)
    shard_to_groups[shard_of(group_id, num_shards)][group_id].append(values)
    report.records_out += 1
    num_bytes += sum(len(value) for value in values if value is not None)
    if num_bytes >= block_bytes:
      yield from _blocks(shard_to_groups)
      shard_to_groups, num_bytes = _empty_blocks(), 0
  yield from _blocks(shard_to_groups)


def shard_of(group_id: bytes, num_shards: int) -> int:
  """Returns the group's shard, a function of its id and nothing else."""
  digest = hashlib.sha256(group_id).digest()
  return int.from_bytes(digest, 'big') % num_shards


def _to_values(source: Source, record: RawRecord, report: FileReport) -> Values:
  for name in source.optional_feature_names:
    if name in record:
      report.features.add(name)
  names = source.feature_names + source.optional_feature_names
  return tuple(
    record[name].encode() if name in record else None for name in names
  )


def _empty_blocks() -> dict[int, dict[bytes, list[Values]]]:
  return collections.defaultdict(lambda: collections.defaultdict(list))


def _blocks(
  shard_to_groups: dict[int, dict[bytes, list[Values]]],
) -> Iterator[tuple[int, Block]]:
  for shard, groups in shard_to_groups.items():
    yield shard, list(groups.items())
