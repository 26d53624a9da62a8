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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import output_files, splits
from pipelines.job import GroupJob
from pipelines.read_raw_files import FileReport
from pipelines.sorted_records import SortedRecords
from pipelines.write_groups import shard_name, write_shard
from tff_fedfish.data.corpus_index import INDEX_SCHEMA

_WORK = 'work'
_REPORTS = 'reports'
_SHARDS = 'shards'


def write_report(
  staging: str, task_num: int, reports: Sequence[FileReport]
) -> None:
  """Leaves the reports of the files of one reading task."""
  value = [dataclasses.asdict(report) for report in reports]
  _write_json(output_files.join(_reports(staging), f'{task_num:08d}'), value)


def write_numbered_shard(
  job: GroupJob,
  staging: str,
  number: int,
  blocks: Iterable[bytes],
  optional_features: Sequence[str],
) -> None:
  """Writes a shard, and leaves what is to be known of it.

  Args:
    job: What is grouped.
    staging: Where the corpora are made.
    number: The shard, counted through all parts of the split.
    blocks: Its records.
    optional_features: Those of the source's that are stored.
  """
  source = job.load_source()
  split_num, shard_num = divmod(number, job.num_shards)
  name = shard_name(shard_num, job.num_shards)
  directory = corpus_directory(staging, part_names(job)[split_num])
  report, index = write_shard(
    output_files.join(directory, name),
    name,
    shard_num,
    SortedRecords(blocks, source, optional_features),
    job,
  )
  path = output_files.join(_shards(staging), f'{number:08d}')
  with output_files.open_to_write(f'{path}.parquet') as file:
    pq.write_table(index, file)
  value = dataclasses.asdict(report) | {
    'num_examples': num_examples(index),
    'optional_features': list(optional_features),
  }
  _write_json(path, value)


def progress(staging: str) -> tuple[int, int]:
  """Returns (reading tasks done, shards written) of a running job."""
  reports, shards = (
    sum(path.endswith('.json') for path in output_files.list_files(directory))
    for directory in (_reports(staging), _shards(staging))
  )
  return reports, shards


def read_reports(staging: str) -> dict[int, list[dict[str, Any]]]:
  """Returns what `write_report` left, by task."""
  return _read_all(_reports(staging))


def read_shard_reports(staging: str) -> dict[int, dict[str, Any]]:
  """Returns the `ShardReport`s, by number of the shard, as dicts.

  They also have `num_examples`, the stored ones, and `optional_features`.
  """
  return _read_all(_shards(staging))


def read_index(job: GroupJob, staging: str, split_num: int) -> pa.Table:
  """Returns the index of one part of the split, sorted."""
  first = split_num * job.num_shards
  return pa.concat_tables(
    pq.read_table(
      io.BytesIO(
        output_files.read_bytes(
          output_files.join(_shards(staging), f'{shard_num:08d}.parquet')
        )
      ),
      schema=INDEX_SCHEMA,
    )
    for shard_num in range(first, first + job.num_shards)
  ).sort_by([('group_id', 'ascending'), ('part', 'ascending')])


def remove(staging: str) -> None:
  """Removes what the workers left, but for the corpora."""
  output_files.remove(output_files.join(staging, _WORK))


def num_examples(index: pa.Table) -> int:
  """Returns how many examples an index, or a part of one, knows of."""
  return pc.sum(index.column('num_examples')).as_py() or 0


def corpus_directory(staging: str, part_name: str | None) -> str:
  """Returns where the corpus of one part of the split is made."""
  return output_files.join(staging, part_name) if part_name else staging


def part_names(job: GroupJob) -> tuple[str | None, ...]:
  """Returns the names of the split's parts; None for a corpus as a whole."""
  if job.split is None:
    return (None,)
  return splits.split_names(job.split, job.load_source())


def _reports(staging: str) -> str:
  return output_files.join(staging, _WORK, _REPORTS)


def _shards(staging: str) -> str:
  return output_files.join(staging, _WORK, _SHARDS)


def _read_all(directory: str) -> dict[int, Any]:
  """Returns what the files of a directory hold, by number, sorted."""
  return {
    int(posixpath.basename(path).removesuffix('.json')): json.loads(
      output_files.read_bytes(path)
    )
    for path in output_files.list_files(directory)
    if path.endswith('.json')
  }


def _write_json(path: str, value: Any) -> None:
  with output_files.open_to_write(f'{path}.json') as file:
    file.write(json.dumps(value).encode())
