"""Writes shards: group records of sorted records, and the rows of their index.

Records come one by one, and a record of a group is written when it is full, so
that a group of any size takes no more memory than `max_record_bytes` of it.
With a cap it takes what is kept, with a minimum as many examples, and without
duplicates a hash for each text.
"""

import dataclasses
import hashlib
import heapq
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

from pipelines.job import GroupJob
from pipelines.pieces import Row
from pipelines.source import Tally
from tff_fedfish.data import places, records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.manifest import Shard
from tff_fedfish.data.time_order import kind_of

_group_id, _time, _sha256, _example, _num_words = map(
  operator.itemgetter, (0, 1, 3, 4, 5)
)
_CountDrops = Callable[[str, Row, int], None]
"""Called with a reason, the first record dropped for it, and how many are."""


@dataclasses.dataclass
class ShardReport:
  """One shard, and what became of its records."""

  shard: Shard | None = None
  optional_features: Sequence[str] = ()
  """Optional features of the source that the shard stores."""
  num_examples: int = 0
  """Examples stored."""
  num_mixed_time_groups: int = 0
  """Groups with times of several kinds: see `time_order`."""
  drops: dict[str, Tally] = dataclasses.field(default_factory=dict)
  """Dropped records, by reason."""


def _count_drops(drops: dict[str, Tally]) -> _CountDrops:
  """Returns a function that adds to what is dropped, by reason.

  Groups come in order, so the first of a shard is known when it comes.
  """

  def count(reason: str, row: Row, num: int) -> None:
    group = _group_id(row).decode('utf-8', 'backslashreplace')
    drops.setdefault(reason, Tally()).add(group, _text(row), num)

  return count


def shard_name(shard_num: int, num_shards: int) -> str:
  """Returns the shard's file name."""
  return f'groups-{shard_num:05d}-of-{num_shards:05d}.tfrecord'


def write_shard(
  path: str, shard_num: int, rows: Iterable[Row], job: GroupJob
) -> tuple[ShardReport, pa.Table]:
  """Writes the groups of one shard.

  Args:
    path: Where to write, local, or of a store.
    shard_num: 0-based number of the shard.
    rows: The shard's records, in the stored order.
    job: What limits its groups and records.

  Returns:
    The report, without optional features; and the shard's part of the index, of
    `INDEX_SCHEMA`.
  """
  report = ShardReport()
  index = []
  offset = 0

  drop = _count_drops(report.drops)
  with places.write(path) as file:
    hashing = _HashingWriter(file)
    for group_id, group in itertools.groupby(rows, _group_id):
      kept = _select(group, job, drop)
      kinds: set[int] = set()
      for part, examples, num_words in _split(kept, job, kinds):
        payload = records.encode_group_record(group_id, examples, part)
        index.append(
          # In the order of the schema.
          (
            *(group_id, part or 0, shard_num, offset),
            *(len(examples), len(payload), num_words),
          )
        )
        offset += records.write_record(hashing, payload)
        report.num_examples += len(examples)
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
  group: Iterable[Row], job: GroupJob, drop: _CountDrops
) -> Iterable[Row]:
  """Returns the records of a group that are stored, and drops the others."""
  if job.drop_duplicates:
    group = _without_duplicates(group, drop)
  if job.min_examples_per_group is not None:
    group = _if_enough(group, job.min_examples_per_group, drop)
  if job.max_examples_per_group is not None:
    group = _with_smallest_sha256(group, job.max_examples_per_group, drop)
  return group


def _without_duplicates(
  group: Iterable[Row], drop: _CountDrops
) -> Iterator[Row]:
  seen = set()
  for row in group:
    text = hashlib.sha256(_text(row)).digest()
    if text in seen:
      drop('duplicate_text', row, 1)
    else:
      seen.add(text)
      yield row


def _if_enough(
  group: Iterable[Row], limit: int, drop: _CountDrops
) -> Iterable[Row]:
  """Returns all records of a group, or none if it has too few."""
  rows = iter(group)
  first = list(itertools.islice(rows, limit))
  if len(first) == limit:
    return itertools.chain(first, rows)
  drop('small_group', first[0], len(first))
  return ()


def _with_smallest_sha256(
  group: Iterable[Row], limit: int, drop: _CountDrops
) -> Iterator[Row]:
  """Keeps some records, by a choice that depends on nothing but themselves."""
  kept: list[tuple[int, int, Row]] = []
  first, num_dropped = None, 0
  for position, row in enumerate(group):
    # The heap's smallest is the one to go: the last with the largest hash.
    entry = -int.from_bytes(_sha256(row), 'big'), -position, row
    if len(kept) < limit:
      heapq.heappush(kept, entry)
      continue
    _, place, dropped = heapq.heappushpop(kept, entry)
    num_dropped += 1
    if first is None or place > first[0]:
      first = place, dropped
  if first is not None:
    drop('group_cap', first[1], num_dropped)
  kept.sort(key=operator.itemgetter(1), reverse=True)
  return (row for _, _, row in kept)


def _split(
  rows: Iterable[Row], job: GroupJob, kinds: set[int]
) -> Iterator[tuple[int | None, list[bytes], int]]:
  """Cuts a group into parts; an example over the limit is a part.

  Adds the kinds of its times to `kinds`.

  Yields:
    (0-based number of the part, or None if it is the only one; its examples;
    their words)
  """
  part, examples, num_bytes, num_words = 0, [], 0, 0
  for row in rows:
    example = _example(row)
    kinds.add(kind_of(_time(row)))
    if examples and num_bytes + len(example) > job.max_record_bytes:
      yield part, examples, num_words
      part, examples, num_bytes, num_words = part + 1, [], 0, 0
    examples.append(example)
    num_bytes += len(example)
    num_words += _num_words(row)
  if examples:
    yield part or None, examples, num_words


def _text(row: Row) -> bytes:
  return records.decode_example(_example(row))['text']


class _HashingWriter:
  """Passes bytes on to a file, and computes their SHA-256."""

  def __init__(self, file: BinaryIO):
    self.sha256 = hashlib.sha256()
    self._file = file

  def write(self, data: bytes) -> None:
    self.sha256.update(data)
    self._file.write(data)
