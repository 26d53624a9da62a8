"""Files that workers leave in the staging directory, and how they are read.

There is one small file for every attempt at a reading task and at a shard. All
attempts at the same hold the same, and one of each is counted.
"""

import dataclasses
import functools
import io
import json
import operator
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import output
from tff_fedfish.data import places

_TASKS, _FEATURES, _PIECES, _SHARDS = DIRECTORIES = (
  *('tasks', 'features', 'pieces', 'shards'),
)
"""Directories of a staging directory, in which workers leave files."""

_REPORT_KEY = b'report'

Report = dict[str, Any]
"""A `FileReport` or `ShardReport` that was written as JSON and read again."""


def write_task_report(
  staging: str, task_num: int, file_reports: Sequence[Any], features: int
) -> None:
  """Leaves what one reading task has found.

  Args:
    staging: The staging directory.
    task_num: 0-based number of the task.
    file_reports: One `FileReport` for every file.
    features: Optional features of the source that were met, as bits.
  """
  if features:
    # The name is all: a list of the directory says which were met in all.
    directory = posixpath.join(staging, _FEATURES)
    path = output.name_attempt(directory, str(features), 'met')
    places.write_bytes(path, b'')
  directory = posixpath.join(staging, _TASKS)
  path = output.name_attempt(directory, f'{task_num:08d}', 'json')
  places.write_bytes(path, _to_json(file_reports))


def read_features(staging: str) -> int:
  """Returns the optional features that any task has met, as bits.

  They are known when all tasks have been read: once a runner has grouped what
  they returned.
  """
  paths = places.list_files(posixpath.join(staging, _FEATURES))
  return functools.reduce(operator.or_, map(_number_of, paths), 0)


def name_piece(staging: str, key: Iterable[int]) -> str:
  """Returns a path for an attempt at a piece."""
  directory = posixpath.join(staging, _PIECES)
  name = '-'.join(f'{number:08d}' for number in key)
  return output.name_attempt(directory, name, 'arrow')


def name_shard(staging: str, number: int) -> str:
  """Returns a path for an attempt at a shard."""
  directory = posixpath.join(staging, _SHARDS)
  return output.name_attempt(directory, f'{number:08d}', 'tfrecord')


def write_shard_report(shard_path: str, report: Any, index: pa.Table) -> None:
  """Leaves the `ShardReport` of a shard and its part of the index."""
  path = shard_path.removesuffix('tfrecord') + 'parquet'
  with places.write(path) as file:
    metadata = {_REPORT_KEY: _to_json(report)}
    pq.write_table(index.replace_schema_metadata(metadata), file)


def progress(staging: str) -> tuple[int, int]:
  """Returns (reading tasks done, shards written) of a running job."""
  return len(_find(staging, _TASKS)), len(_find(staging, _SHARDS))


def read_task_reports(staging: str) -> list[list[Report]]:
  """Returns the reports of the files of every reading task."""
  paths = _find(staging, _TASKS)
  contents = places.read_all(list(paths.values()))
  return list(map(json.loads, contents))


def read_shard_reports(
  staging: str,
) -> dict[int, tuple[str, Report, pa.Table]]:
  """Returns the number of a shard -> its path, report, part of the index."""
  found = {}
  paths = _find(staging, _SHARDS)
  contents = places.read_all(list(paths.values()))
  for (number, path), data in zip(paths.items(), contents, strict=True):
    index = pq.read_table(io.BytesIO(data))
    report = json.loads(index.schema.metadata[_REPORT_KEY])
    path = path.removesuffix('parquet') + 'tfrecord'
    found[number] = path, report, index.replace_schema_metadata()
  return found


def _find(staging: str, kind: str) -> dict[int, str]:
  """Returns number -> path of one attempt's report, sorted by the numbers."""
  paths = places.list_files(posixpath.join(staging, kind))
  return {
    _number_of(path): path for path in paths if not path.endswith('.tfrecord')
  }


def _number_of(path: str) -> int:
  return int(posixpath.basename(path).partition('.')[0])


def _to_json(value: Any) -> bytes:
  return json.dumps(value, default=dataclasses.asdict).encode()
