"""Files that the workers of a job leave in its staging directory.

One small file for every reading task and every shard. A task that a runner
repeats replaces its file by the same bytes, so what is counted from them was
counted once.
"""

import dataclasses
import io
import json
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import output_files
from pipelines.read_raw_files import FileReport
from tff_fedfish.data.corpus_index import INDEX_SCHEMA

_WORK = 'work'
_REPORTS = 'reports'
_SHARDS = 'shards'


def write_reports(
  staging: str, task_num: int, reports: Sequence[FileReport]
) -> None:
  """Leaves the reports of the files of one reading task."""
  value = [dataclasses.asdict(report) for report in reports]
  _write_json(_path(staging, _REPORTS, task_num), value)


def write_shard(
  staging: str, number: int, report: dict[str, Any], index: pa.Table
) -> None:
  """Leaves the report of a shard and its part of the index."""
  path = _path(staging, _SHARDS, number)
  with output_files.open_to_write(f'{path}.parquet') as file:
    pq.write_table(index, file)
  _write_json(path, report)


def progress(staging: str) -> tuple[int, int]:
  """Returns (reading tasks done, shards written) of a running job."""
  return len(_json_files(staging, _REPORTS)), len(_json_files(staging, _SHARDS))


def read_reports(staging: str) -> dict[int, list[dict[str, Any]]]:
  """Returns what `write_reports` left, by task."""
  return _read_json(staging, _REPORTS)


def read_shard_reports(staging: str) -> dict[int, dict[str, Any]]:
  """Returns the reports that `write_shard` left, by number of the shard.

  They are `ShardReport`s as dicts, and have `optional_features`.
  """
  return _read_json(staging, _SHARDS)


def read_index(staging: str, shard_nums: Iterable[int]) -> pa.Table:
  """Returns the index of some shards, sorted."""
  return pa.concat_tables(
    pq.read_table(
      io.BytesIO(
        output_files.read_bytes(f'{_path(staging, _SHARDS, number)}.parquet')
      ),
      schema=INDEX_SCHEMA,
    )
    for number in shard_nums
  ).sort_by([('group_id', 'ascending'), ('part', 'ascending')])


def remove(staging: str) -> None:
  """Removes what the workers left, but for the corpora."""
  output_files.remove(posixpath.join(staging, _WORK))


def _path(staging: str, kind: str, number: int) -> str:
  return posixpath.join(staging, _WORK, kind, f'{number:08d}')


def _json_files(staging: str, kind: str) -> list[str]:
  paths = output_files.list_files(posixpath.join(staging, _WORK, kind))
  return [path for path in paths if path.endswith('.json')]


def _read_json(staging: str, kind: str) -> dict[int, Any]:
  """Returns what the files of a kind hold, by number, sorted."""
  return {
    int(posixpath.basename(path).removesuffix('.json')): json.loads(
      output_files.read_bytes(path)
    )
    for path in _json_files(staging, kind)
  }


def _write_json(path: str, value: Any) -> None:
  with output_files.open_to_write(f'{path}.json') as file:
    file.write(json.dumps(value).encode())
