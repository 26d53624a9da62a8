"""Writes shards: group records of sorted records, and the rows of their index.

Records come one by one, and a record of a group is written when it is full, so
that a group of any size takes no more memory than `max_record_bytes` of it.
With a minimum it takes as many examples, and without duplicates a hash for each
text.
"""

import dataclasses
import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow as pa

from pipelines.blocks import SortedRecord
from pipelines.options import GroupJob
from pipelines.reports import ShardReport, Tally, excerpt
from tff_fedfish.data import places, records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.manifest import DropExample, Shard
from tff_fedfish.data.time_order import kind_of

_group_id, _time, _example, _num_words = map(operator.itemgetter, (0, 1, 4, 5))


def shard_name(shard_num: int, num_shards: int) -> str:
  """Returns the shard's file name."""
  return f'groups-{shard_num:05d}-of-{num_shards:05d}.tfrecord'


def write_shard(
  path: str, shard_num: int, rows: Iterable[SortedRecord], job: GroupJob
) -> tuple[ShardReport, pa.Table]:
  """Writes the groups of one shard.

  Args:
    path: Where to write; local, or in a store.
    shard_num: 0-based number of the shard.
    rows: The shard's records, in the stored order.
    job: Has the limits of groups and records.

  Returns:
    The report, without optional features; and the shard's part of the index, of
    `INDEX_SCHEMA`.
  """
  report = ShardReport()
  index = []
  offset = 0
  with places.write(path) as file:
    hashing = _HashingWriter(file)
    for group_id, group in itertools.groupby(rows, _group_id):
      stored = _select(group, job, report)
      kinds = set()
      for part in _cut(stored, job.max_record_bytes):
        payload = records.encode_group_record(
          group_id, part.examples, part.number
        )
        index.append(
          # In the order of the schema.
          (
            *(group_id, part.number or 0, shard_num, offset),
            *(len(part.examples), len(payload), part.num_words),
          )
        )
        offset += records.write_record(hashing, payload)
        report.num_examples += len(part.examples)
        # Those between sort by kind, too.
        kinds |= {kind_of(part.first_time), kind_of(part.last_time)}
        # They need not be in memory beside the next.
        del part, payload
      report.num_mixed_time_groups += len(kinds) > 1
  report.shard = Shard(
    name=shard_name(shard_num, job.num_shards),
    sha256=hashing.sha256.hexdigest(),
    num_bytes=offset,
    num_records=len(index),
  )
  columns = zip(*index, strict=True) if index else [[]] * len(INDEX_SCHEMA)
  columns = dict(zip(INDEX_SCHEMA.names, columns, strict=True))
  return report, pa.table(columns, schema=INDEX_SCHEMA)


def _select(
  group: Iterable[SortedRecord], job: GroupJob, report: ShardReport
) -> Iterable[SortedRecord]:
  """Returns the records of a group that are stored, and drops the others."""
  if job.drop_duplicates:
    group = _without_duplicates(group, report)
  if job.min_examples_per_group is not None:
    group = _if_enough(group, job.min_examples_per_group, report)
  return group


def _without_duplicates(
  group: Iterable[SortedRecord], report: ShardReport
) -> Iterator[SortedRecord]:
  seen = set()
  for row in group:
    text = hashlib.sha256(_text(row)).digest()
    if text in seen:
      _count_drops(report, 'duplicate_text', row, 1)
    else:
      seen.add(text)
      yield row


def _if_enough(
  group: Iterable[SortedRecord], limit: int, report: ShardReport
) -> Iterable[SortedRecord]:
  """Returns all records of a group, or none if it has too few."""
  rows = iter(group)
  first = list(itertools.islice(rows, limit))
  if len(first) == limit:
    return itertools.chain(first, rows)
  report.num_small_groups += 1
  _count_drops(report, 'small_group', first[0], len(first))
  return ()


@dataclasses.dataclass
class _Part:
  """Examples of one stored record, without what sorted them."""

  number: int | None
  """0-based; None if it is the only one of its group."""
  first_time: bytes
  last_time: bytes = b''
  num_words: int = 0
  examples: list[bytes] = dataclasses.field(default_factory=list)


def _cut(group: Iterable[SortedRecord], max_bytes: int) -> Iterator[_Part]:
  """Cuts a group into stored records; an example over the limit is one."""
  part, num_bytes = None, 0
  for row in group:
    example = _example(row)
    if part and num_bytes + len(example) > max_bytes:
      part.number = part.number or 0
      yield part
      part, num_bytes = _Part(part.number + 1, _time(row)), 0
    part = part or _Part(None, _time(row))
    part.examples.append(example)
    part.last_time = _time(row)
    part.num_words += _num_words(row)
    num_bytes += len(example)
  if part:
    yield part


def _count_drops(
  report: ShardReport, reason: str, row: SortedRecord, num: int
) -> None:
  """Counts records, of which the first is given.

  Groups come in order, so the first of a shard is known when it comes.
  """
  if reason not in report.drops:
    group = _group_id(row).decode('utf-8', 'backslashreplace')
    first = DropExample(group=group, excerpt=excerpt(_text(row)))
    report.drops[reason] = Tally(0, first)
  report.drops[reason].num += num


def _text(row: SortedRecord) -> bytes:
  return records.decode_example(_example(row))['text']


class _HashingWriter:
  """Passes bytes on to a file, and computes their SHA-256."""

  def __init__(self, file: BinaryIO):
    self.sha256 = hashlib.sha256()
    self._file = file

  def write(self, data: bytes) -> None:
    self.sha256.update(data)
    self._file.write(data)
