"""Writes shards: sorted group records, and the rows of their index."""

import dataclasses
import hashlib
import heapq
import posixpath
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

from pipelines import output_files
from pipelines.blocks import SortedRecords
from pipelines.job import GroupJob
from pipelines.source import Tally
from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.manifest import Shard


@dataclasses.dataclass
class ShardReport:
  """One shard, and what became of its records."""

  shard: Shard | None = None
  optional_features: Sequence[str] = ()
  """Optional features of the source that the shard stores."""
  num_examples: int = 0
  """Examples stored."""
  drops: dict[str, Tally] = dataclasses.field(default_factory=dict)
  """Dropped records, by reason."""


def shard_name(shard_num: int, num_shards: int) -> str:
  """Returns the shard's file name."""
  return f'groups-{shard_num:05d}-of-{num_shards:05d}.tfrecord'


def write_shard(
  path: str, shard_num: int, found: SortedRecords, job: GroupJob
) -> tuple[ShardReport, pa.Table]:
  """Writes the groups of one shard; the same bytes for any order of blocks.

  Args:
    path: Where to write, a local path or one that Beam knows.
    shard_num: 0-based number of the shard.
    found: The shard's records.
    job: What limits its groups and records.

  Returns:
    The report, and the shard's part of the index, of `INDEX_SCHEMA`.
  """
  report = ShardReport(optional_features=found.optional_features)
  rows = []
  offset = 0
  with output_files.open_to_write(path) as file:
    hashing = _HashingWriter(file)
    for group_id, positions in found.groups():
      kept, reason_to_dropped = _select(found, positions, job)
      for reason, dropped in reason_to_dropped.items():
        # Groups come in order, so the first of a shard is known when it comes.
        report.drops.setdefault(reason, Tally()).add(
          group_id.decode('utf-8', 'backslashreplace'),
          _text(found, dropped[0]),
          len(dropped),
        )
      parts = list(_split(kept, found.sizes[kept].tolist(), job))
      for part, part_positions in enumerate(parts):
        payload = records.encode_group_record(
          group_id,
          found.examples(part_positions),
          part if len(parts) > 1 else None,
        )
        rows.append(
          # In the order of the schema.
          (
            *(group_id, part, shard_num, offset),
            *(len(part_positions), len(payload)),
            int(found.num_words[part_positions].sum()),
          )
        )
        offset += records.write_record(hashing, payload)
        report.num_examples += len(part_positions)
  report.shard = Shard(
    name=posixpath.basename(path),
    sha256=hashing.sha256.hexdigest(),
    num_bytes=offset,
    num_records=len(rows),
  )
  columns = zip(*rows, strict=True) if rows else [[]] * len(INDEX_SCHEMA)
  index = dict(zip(INDEX_SCHEMA.names, columns, strict=True))
  return report, pa.table(index, schema=INDEX_SCHEMA)


def _select(
  found: SortedRecords, positions: range, job: GroupJob
) -> tuple[list[int], dict[str, list[int]]]:
  """Returns the records of a group to store, and the others by reason."""
  kept, reason_to_dropped = list(positions), {}
  if job.drop_duplicates:
    kept, dropped, seen = [], [], set()
    for position in positions:
      text = hashlib.sha256(_text(found, position)).digest()
      (dropped if text in seen else kept).append(position)
      seen.add(text)
    if dropped:
      reason_to_dropped['duplicate_text'] = dropped
  limit = job.max_examples_per_group
  if limit is not None and len(kept) > limit:
    # By hash: the choice depends on nothing but the examples themselves.
    chosen = set(heapq.nsmallest(limit, kept, key=found.sha256))
    reason_to_dropped['group_cap'] = [i for i in kept if i not in chosen]
    kept = [i for i in kept if i in chosen]
  return kept, reason_to_dropped


def _text(found: SortedRecords, position: int) -> bytes:
  (example,) = found.examples([position])
  return records.decode_example(example)['text']


def _split(
  positions: Sequence[int], sizes: Sequence[int], job: GroupJob
) -> Iterator[Sequence[int]]:
  """Cuts a group into parts; an example over the limit is a part."""
  start = num_bytes = 0
  for i, size in enumerate(sizes):
    if i > start and num_bytes + size > job.max_record_bytes:
      yield positions[start:i]
      start, num_bytes = i, 0
    num_bytes += size
  yield positions[start:]


class _HashingWriter:
  """Passes bytes on to a file, and computes their SHA-256."""

  def __init__(self, file: BinaryIO):
    self.sha256 = hashlib.sha256()
    self._file = file

  def write(self, data: bytes) -> None:
    self.sha256.update(data)
    self._file.write(data)
