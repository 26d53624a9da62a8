"""Writes shards: group records of sorted records, and the rows of their index.

Records come one by one, and a record of a group is written when it is full.
What is larger than some megabytes waits in a temporary file, so that a group
takes as much memory whatever its size. With a minimum it takes as many
examples, and without duplicates a hash for each text.
"""

import hashlib
import itertools
import operator
import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow.parquet as pq

from pipelines.options import GroupJob
from pipelines.reports import ShardReport, Tally, excerpt, index_of_shard
from pipelines.rows import Row, to_batch
from tff_fedfish.data import places, records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.manifest import DropExample, Shard
from tff_fedfish.data.time_order import kind_of

# Of an index, and of a record, in memory.
_INDEX_ROWS, _MEMORY_BYTES = 1 << 14, 4 << 20

_group_id, _time, _example, _num_words = map(operator.itemgetter, (0, 1, 4, 5))


def shard_name(shard_num: int, num_shards: int) -> str:
  """Returns the shard's file name."""
  return f'groups-{shard_num:05d}-of-{num_shards:05d}.tfrecord'


def write_shard(
  path: str, shard_num: int, rows: Iterable[Row], job: GroupJob
) -> ShardReport:
  """Writes the groups of one shard, and beside it its part of the index.

  Args:
    path: Where to write; local, or in a store.
    shard_num: 0-based number of the shard.
    rows: The shard's records, in the stored order.
    job: Has the limits of groups and records.

  Returns:
    The report.
  """
  report = ShardReport()
  offset = 0
  with (
    places.write(index_of_shard(path)) as index_file,
    _Index(index_file) as index,
    places.write(path) as file,
  ):
    hashing = _HashingWriter(file)
    for group_id, group in itertools.groupby(rows, _group_id):
      stored = _select(group, job, report)
      kinds = set()
      for part in _cut(stored, job.max_record_bytes):
        num_bytes = part.write(hashing, group_id)
        index.add(
          # In the order of the schema.
          (
            *(group_id, part.number or 0, shard_num, offset),
            *(part.num_examples, num_bytes, part.num_words),
          )
        )
        offset += records.frame_size(num_bytes)
        report.num_examples += part.num_examples
        # Those between sort by kind, too.
        kinds |= {kind_of(part.first_time), kind_of(part.last_time)}
      report.num_mixed_time_groups += len(kinds) > 1
  report.shard = Shard(
    name=shard_name(shard_num, job.num_shards),
    sha256=hashing.sha256.hexdigest(),
    num_bytes=offset,
    num_records=index.num_rows,
  )
  return report


def _select(
  group: Iterable[Row], job: GroupJob, report: ShardReport
) -> Iterable[Row]:
  """Returns the records of a group that are stored, and drops the others."""
  if job.drop_duplicates:
    group = _without_duplicates(group, report)
  if job.min_examples_per_group is not None:
    group = _if_enough(group, job.min_examples_per_group, report)
  return group


def _without_duplicates(
  group: Iterable[Row], report: ShardReport
) -> Iterator[Row]:
  seen = set()
  for row in group:
    text = hashlib.sha256(_text(row)).digest()
    if text in seen:
      _count_drops(report, 'duplicate_text', row, 1)
    else:
      seen.add(text)
      yield row


def _if_enough(
  group: Iterable[Row], limit: int, report: ShardReport
) -> Iterable[Row]:
  """Returns all records of a group, or none if it has too few."""
  rows = iter(group)
  first = list(itertools.islice(rows, limit))
  if len(first) == limit:
    return itertools.chain(first, rows)
  report.num_small_groups += 1
  _count_drops(report, 'small_group', first[0], len(first))
  return ()


class _Part:
  """Examples of one stored record: of a large one in a temporary file.

  Attributes:
    number: 0-based; None if it is the only one of its group.
    first_time: Time of the first example.
    last_time: Time of the last one.
    num_examples: Number of examples.
    num_words: Words of their texts.
    num_bytes: Size of the examples.
  """

  def __init__(self, number: int | None, first_time: bytes):
    self.number = number
    self.first_time, self.last_time = first_time, b''
    self.num_examples = self.num_words = self.num_bytes = 0
    self._entries = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)

  def add(self, row: Row) -> None:
    example = _example(row)
    self._entries.write(records.example_entry(example))
    self.last_time = _time(row)
    self.num_examples += 1
    self.num_words += _num_words(row)
    self.num_bytes += len(example)

  def write(self, file: BinaryIO, group_id: bytes) -> int:
    """Writes the record; returns the length of its payload."""
    with self._entries as entries:
      size = entries.tell()
      entries.seek(0)
      return records.write_group_record(
        file, group_id, entries, size, self.number
      )


def _cut(group: Iterable[Row], max_bytes: int) -> Iterator[_Part]:
  """Cuts a group into stored records; an example over the limit is one."""
  part = None
  for row in group:
    if part and part.num_bytes + len(_example(row)) > max_bytes:
      part.number = part.number or 0
      yield part
      part = _Part(part.number + 1, _time(row))
    part = part or _Part(None, _time(row))
    part.add(row)
  if part:
    yield part


def _count_drops(report: ShardReport, reason: str, row: Row, num: int) -> None:
  """Counts records, of which the first is given.

  Groups come in order, so the first of a shard is known when it comes.
  """
  if reason not in report.drops:
    group = _group_id(row).decode('utf-8', 'backslashreplace')
    first = DropExample(group=group, excerpt=excerpt(_text(row)))
    report.drops[reason] = Tally(0, first)
  report.drops[reason].num += num


def _text(row: Row) -> bytes:
  return records.decode_example(_example(row))['text']


class _Index:
  """Writes the rows of an index, of which few are in memory.

  Attributes:
    num_rows: Rows so far.
  """

  def __init__(self, file: BinaryIO):
    self.num_rows = 0
    self._rows: list[tuple] = []
    self._writer = pq.ParquetWriter(file, INDEX_SCHEMA)

  def add(self, row: tuple) -> None:
    self._rows.append(row)
    self.num_rows += 1
    if len(self._rows) >= _INDEX_ROWS:
      self._write()

  def _write(self) -> None:
    self._writer.write_batch(to_batch(self._rows, INDEX_SCHEMA))
    self._rows = []

  def __enter__(self) -> '_Index':
    return self

  def __exit__(self, *error) -> None:
    if self._rows:
      self._write()
    self._writer.close()


class _HashingWriter:
  """Passes bytes on to a file, and computes their SHA-256."""

  def __init__(self, file: BinaryIO):
    self.sha256 = hashlib.sha256()
    self._file = file

  def write(self, data: bytes) -> None:
    self.sha256.update(data)
    self._file.write(data)
