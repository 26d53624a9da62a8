"""Writes shards: sorted group records, and the rows of their index."""

import dataclasses
import hashlib
import heapq
import posixpath
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pipelines import output_files, work_files
from pipelines.blocks import SortedRecords
from pipelines.job import GroupJob
from pipelines.read_raw_files import excerpt
from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.manifest import Shard


@dataclasses.dataclass
class ShardReport:
  """Counts of the records of one shard."""

  shard: Shard
  drops: dict[str, int] = dataclasses.field(default_factory=dict)
  first_drops: dict[str, tuple[str, str]] = dataclasses.field(
    default_factory=dict
  )
  """Group id and beginning of the first text dropped, by reason."""
  num_examples: int = 0
  """Examples stored."""


def shard_name(shard_num: int, num_shards: int) -> str:
  """Returns the shard's file name."""
  return f'groups-{shard_num:05d}-of-{num_shards:05d}.tfrecord'


def write_numbered_shard(
  job: GroupJob,
  staging: str,
  number: int,
  blocks: Iterable[bytes],
  optional_features: Sequence[str],
) -> None:
  """Writes a shard, and leaves its report and its part of the index.

  Args:
    job: What is grouped.
    staging: Where the corpora are made.
    number: The shard, counted through all parts of the split.
    blocks: Its records.
    optional_features: Those of the source's that are stored.
  """
  part, shard_num = divmod(number, job.num_shards)
  name = shard_name(shard_num, job.num_shards)
  report, index = write_shard(
    posixpath.join(staging, job.part_names()[part] or '', name),
    name,
    shard_num,
    SortedRecords(blocks, job.load_source(), optional_features),
    job,
  )
  value = dataclasses.asdict(report)
  value['optional_features'] = list(optional_features)
  work_files.write_shard(staging, number, value, index)


def write_shard(
  path: str, name: str, shard_num: int, found: SortedRecords, job: GroupJob
) -> tuple[ShardReport, pa.Table]:
  """Writes the groups of one shard; the same bytes for any order of blocks.

  Args:
    path: Where to write, a local path or one that Beam knows.
    name: The shard's file name, for the manifest.
    shard_num: 0-based number of the shard.
    found: The shard's records.
    job: What limits its groups and records.

  Returns:
    The report, and the shard's part of the index, of `INDEX_SCHEMA`.
  """
  report = ShardReport(Shard(name=name, sha256='', num_bytes=0, num_records=0))
  rows = []
  offset = 0
  with output_files.open_to_write(path) as file:
    hashing = _HashingWriter(file)
    for group_id, positions in found.groups():
      kept = _select(found, group_id, positions, job, report)
      parts = list(_split(kept, found.sizes[kept].tolist(), job))
      for part, part_positions in enumerate(parts):
        payload = records.encode_group_record(
          group_id,
          found.examples(part_positions),
          part if len(parts) > 1 else None,
        )
        rows.append(
          (
            group_id,
            part,
            shard_num,
            offset,
            len(part_positions),
            len(payload),
            int(found.num_words[part_positions].sum()),
          )
        )
        offset += records.write_record(hashing, payload)
        report.num_examples += len(part_positions)
  columns = zip(*rows, strict=True) if rows else [[]] * len(INDEX_SCHEMA)
  index = pa.table(
    [
      pa.array(column, field.type)
      for column, field in zip(columns, INDEX_SCHEMA, strict=True)
    ],
    schema=INDEX_SCHEMA,
  )
  report.shard = Shard(
    name=name,
    sha256=hashing.hexdigest(),
    num_bytes=offset,
    num_records=len(rows),
  )
  return report, index


def _select(
  found: SortedRecords,
  group_id: bytes,
  positions: range,
  job: GroupJob,
  report: ShardReport,
) -> Sequence[int]:
  """Returns the records of a group that are stored, and counts the others."""
  kept = positions
  if job.drop_duplicates:
    kept, dropped, seen = [], [], set()
    for position in positions:
      text = hashlib.sha256(_text(found, position)).digest()
      (dropped if text in seen else kept).append(position)
      seen.add(text)
    _count(found, group_id, 'duplicate_text', dropped, report)
  limit = job.max_examples_per_group
  if limit is not None and len(kept) > limit:
    # By hash: the choice depends on nothing but the examples themselves.
    chosen = set(heapq.nsmallest(limit, kept, key=found.sha256))
    dropped = [position for position in kept if position not in chosen]
    kept = [position for position in kept if position in chosen]
    _count(found, group_id, 'group_cap', dropped, report)
  return list(kept)


def _count(
  found: SortedRecords,
  group_id: bytes,
  reason: str,
  dropped: Sequence[int],
  report: ShardReport,
) -> None:
  if not dropped:
    return
  report.drops[reason] = report.drops.get(reason, 0) + len(dropped)
  # Groups come in order, so the first of a shard is known when it comes.
  if reason not in report.first_drops:
    report.first_drops[reason] = (
      group_id.decode('utf-8', 'backslashreplace'),
      excerpt(_text(found, dropped[0])),
    )


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

  def __init__(self, file):
    self._file = file
    self._hash = hashlib.sha256()

  def write(self, data: bytes) -> None:
    self._hash.update(data)
    self._file.write(data)

  def hexdigest(self) -> str:
    return self._hash.hexdigest()
