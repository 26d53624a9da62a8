"""Reports that workers leave in the work directory of a job.

There is one small file for every attempt at a reading task and at a shard. All
attempts at the same hold the same, and one of each is counted. Counts travel as
files, not as Beam's counters, which count a retried bundle twice.
"""

import dataclasses
import functools
import io
import json
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import output
from tff_fedfish.data import places
from tff_fedfish.data.manifest import DropExample, Shard
from tff_fedfish.json_values import from_json

DIRECTORIES = ('tasks', 'pieces', 'shards')
"""Directories of a work directory, in which workers leave files."""
_TASKS, _PIECES, _SHARDS = DIRECTORIES

_REPORT_KEY = b'report'
_SHOWN_BYTES = 80


@dataclasses.dataclass
class Tally:
  """Number of records that were dropped alike, and the first of them."""

  num: int
  first: DropExample


@dataclasses.dataclass
class FileReport:
  """One raw file, and what became of its records."""

  name: str
  """The file's name, without what precedes it on this machine."""
  records_in: int = 0
  parts: tuple[int, ...] = ()
  """Numbers of records handed on, for each part of the split."""
  drops: dict[str, Tally] = dataclasses.field(default_factory=dict)
  """Dropped records, by reason."""
  damage: str | None = None
  times_not_read: int = 0
  """See `manifest.Counts`."""

  def records_out(self) -> int:
    """Returns how many records were handed on, of all parts."""
    return sum(self.parts)


@dataclasses.dataclass
class ShardReport:
  """One shard, and what became of its records."""

  shard: Shard | None = None
  optional_features: tuple[str, ...] = ()
  """Optional features of the source that the shard stores."""
  num_examples: int = 0
  """Examples stored."""
  num_mixed_time_groups: int = 0
  """Groups with times of several kinds: see `time_order`."""
  num_small_groups: int = 0
  """Groups dropped by `min_examples_per_group`."""
  drops: dict[str, Tally] = dataclasses.field(default_factory=dict)
  """Dropped records, by reason."""


def excerpt(data: bytes) -> str:
  """Returns the beginning of some bytes, as text that can be shown."""
  text = data[:_SHOWN_BYTES].decode('utf-8', 'backslashreplace')
  return ' '.join(text.split())


def write_task_report(
  work: str, task_num: int, files: Sequence[FileReport], features: int
) -> None:
  """Leaves the reports of one reading task.

  Args:
    work: The work directory.
    task_num: 0-based number of the task.
    files: Those of its files.
    features: Optional features of the source that were met, as bits.
  """
  # So a list of the directory says which features were met in all.
  path = _name(work, _TASKS, (task_num, features), 'json')
  places.write_bytes(path, _to_json(files))


def read_features(work: str) -> int:
  """Returns the optional features that any task has met, as bits.

  They are known when all tasks have been read: once a runner has grouped what
  they returned.
  """
  paths = places.list_files(places.join(work, _TASKS))
  return functools.reduce(operator.or_, (_numbers(path)[1] for path in paths))


def name_piece(work: str, key: Iterable[int]) -> str:
  """Returns a path for an attempt at a piece."""
  return _name(work, _PIECES, key, 'arrow')


def name_shard(work: str, number: int) -> str:
  """Returns a path for an attempt at a shard."""
  return _name(work, _SHARDS, (number,), 'tfrecord')


def write_shard_report(
  shard_path: str, report: ShardReport, index: pa.Table
) -> None:
  """Leaves the report of a shard and its part of the index."""
  path = shard_path.removesuffix('tfrecord') + 'parquet'
  with places.write(path) as file:
    metadata = {_REPORT_KEY: _to_json(report)}
    pq.write_table(index.replace_schema_metadata(metadata), file)


def progress(work: str) -> tuple[int, int]:
  """Returns (reading tasks done, shards written) of a running job."""
  return len(_find(work, _TASKS)), len(_find(work, _SHARDS))


def read_task_reports(work: str) -> list[list[FileReport]]:
  """Returns the reports of the files of every reading task."""
  paths = _find(work, _TASKS).values()
  return [
    [from_json(FileReport, file, '') for file in json.loads(data)]
    for data in places.map_many(places.read_bytes, list(paths))
  ]


def read_shard_reports(
  work: str,
) -> dict[int, tuple[str, ShardReport, pa.Table]]:
  """Returns the number of a shard -> its path, report, part of the index."""
  shards = {}
  paths = _find(work, _SHARDS)
  contents = places.map_many(places.read_bytes, list(paths.values()))
  for (number, path), data in zip(paths.items(), contents, strict=True):
    index = pq.read_table(io.BytesIO(data))
    value = json.loads(index.schema.metadata[_REPORT_KEY])
    report = from_json(ShardReport, value, '')
    path = path.removesuffix('parquet') + 'tfrecord'
    shards[number] = path, report, index.replace_schema_metadata()
  return shards


def _name(work: str, kind: str, numbers: Iterable[int], suffix: str) -> str:
  name = '-'.join(f'{number:08d}' for number in numbers)
  return output.name_attempt(places.join(work, kind), name, suffix)


def _find(work: str, kind: str) -> dict[int, str]:
  """Returns number -> path of one attempt's report, sorted by the numbers."""
  paths = places.list_files(places.join(work, kind))
  return {
    _numbers(path)[0]: path for path in paths if not path.endswith('.tfrecord')
  }


def _numbers(path: str) -> list[int]:
  """Returns the numbers in the name of a file."""
  name = path.rpartition('/')[2].partition('.')[0]
  return list(map(int, name.split('-')))


def _to_json(value: Any) -> bytes:
  return json.dumps(value, default=dataclasses.asdict).encode()
