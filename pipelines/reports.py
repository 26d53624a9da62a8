"""Reports that workers leave in the work directory of a job.

There is one small file for every attempt at a reading task and at a shard. All
attempts at the same hold the same, and one of each is counted. Counts travel as
files, not as Beam's counters, which count a retried bundle twice.

The directory also holds the raw files of each task, and the runs that are to be
merged: the driver of a job, or a worker, writes them for the others.
"""

import dataclasses
import itertools
import json
import posixpath
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pipelines import output
from tff_fedfish.data import places
from tff_fedfish.data.manifest import DropExample, Shard
from tff_fedfish.json_values import from_json

DIRECTORIES = ('tasks', 'runs', 'shards')
"""Directories of a work directory, in which workers leave files."""
_TASKS, _RUNS, _SHARDS = DIRECTORIES
_INPUTS = 'inputs.jsonl'

_SHOWN_BYTES = 80


@dataclasses.dataclass
class Tally:
  """Number of records that were dropped alike, and the first of them."""

  num: int
  first: DropExample


class Input(NamedTuple):
  """A raw file, or a span of it."""

  path: str
  name: str
  """Name in messages and the manifest."""
  start: int = 0
  stop: int = sys.maxsize


@dataclasses.dataclass
class FileReport:
  """One raw file, and what became of its records."""

  name: str
  """The file's name, without what precedes it on this machine."""
  start: int = 0
  """Byte with which what was read of the file begins."""
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
  num_examples: int = 0
  """Examples stored."""
  num_mixed_time_groups: int = 0
  """Groups with times of several kinds: see `time_order`."""
  num_small_groups: int = 0
  """Groups dropped by `min_examples_per_group`."""
  drops: dict[str, Tally] = dataclasses.field(default_factory=dict)
  """Dropped records, by reason."""


@dataclasses.dataclass(frozen=True)
class TaskReport:
  """Report of a reading task."""

  files: tuple[FileReport, ...]
  features: int
  """Optional features of the source that were met, as bits."""
  runs: tuple[str, ...]
  """Paths of its runs."""


@dataclasses.dataclass(frozen=True)
class Plan:
  """Runs to merge, and the tasks that wrote them."""

  tasks: tuple[str, ...]
  """Paths of the tasks' reports, one of each."""
  features: int
  """Optional features that any task has met, as bits."""
  runs: tuple[str, ...]
  """Paths of the runs that hold all rows."""


def excerpt(data: bytes) -> str:
  """Returns the beginning of some bytes, as text that can be shown."""
  text = data[:_SHOWN_BYTES].decode('utf-8', 'backslashreplace')
  return ' '.join(text.split())


def write_inputs(work: str, tasks: Iterable[Sequence[Input]]) -> None:
  """Leaves the raw files of every reading task."""
  with places.write(places.join(work, _INPUTS)) as file:
    for task in tasks:
      file.write(_to_json(task) + b'\n')


def read_inputs(work: str, task_num: int) -> list[Input]:
  """Returns the raw files of a reading task, as `write_inputs` got them."""
  with places.open_file(places.join(work, _INPUTS)) as file:
    (line,) = itertools.islice(file, task_num, task_num + 1)
  return [Input(*values) for values in json.loads(line)]


def write_task_report(work: str, task_num: int, report: TaskReport) -> str:
  """Leaves the report of a reading task; returns its path."""
  path = _name(work, _TASKS, task_num, 'json')
  places.write_bytes(path, _to_json(report))
  return path


def read_task_reports(paths: Sequence[str]) -> Iterator[TaskReport]:
  """Yields the reports at the paths."""
  for data in places.map_many(places.read_bytes, list(paths)):
    yield from_json(TaskReport, json.loads(data), '')


def find_tasks(work: str) -> dict[int, str]:
  """Returns number -> report of the reading tasks that are done."""
  return _find(work, _TASKS)


def write_plan(work: str, step: str, plan: Plan) -> None:
  """Leaves the plan of a step; a repetition leaves the same."""
  places.write_bytes(places.join(work, f'{step}.json'), _to_json(plan))


def read_plan(work: str, step: str) -> Plan:
  """Returns the plan of a step."""
  data = places.read_bytes(places.join(work, f'{step}.json'))
  return from_json(Plan, json.loads(data), '')


def name_run(work: str) -> str:
  """Returns a path for a run."""
  return output.name_attempt(places.join(work, _RUNS), 'run', 'arrow')


def name_shard(work: str, number: int) -> str:
  """Returns a path for an attempt at a shard."""
  return _name(work, _SHARDS, number, 'tfrecord')


def remove_unfinished_runs(work: str) -> None:
  """Removes the runs of a stopped job that no report of a task names."""
  tasks = read_task_reports(list(find_tasks(work).values()))
  kept = {posixpath.basename(path) for task in tasks for path in task.runs}
  for path in places.list_files(places.join(work, _RUNS)):
    if posixpath.basename(path) not in kept:
      places.remove(path)


def index_of_shard(path: str) -> str:
  """Returns the path of a shard's part of the index."""
  return f'{path.removesuffix("tfrecord")}parquet'


def write_shard_report(shard_path: str, report: ShardReport) -> None:
  """Leaves the report of a shard, which then is complete."""
  path = f'{shard_path.removesuffix("tfrecord")}json'
  places.write_bytes(path, _to_json(report))


def find_shards(work: str) -> dict[int, str]:
  """Returns number -> path of the shards that are complete.

  A job that failed while it published may have given one its last name.
  """
  paths = set(places.list_files(places.join(work, _SHARDS)))
  shards = {
    number: f'{path.removesuffix("json")}tfrecord'
    for number, path in _find(work, _SHARDS).items()
  }
  return {n: path for n, path in shards.items() if path in paths}


def read_shard_reports(work: str) -> dict[int, tuple[str, ShardReport]]:
  """Returns the number of a shard -> its path and report."""
  shards = find_shards(work)
  paths = [f'{p.removesuffix("tfrecord")}json' for p in shards.values()]
  contents = places.map_many(places.read_bytes, paths)
  return {
    number: (path, from_json(ShardReport, json.loads(data), ''))
    for data, (number, path) in zip(contents, shards.items(), strict=True)
  }


def _name(work: str, kind: str, number: int, suffix: str) -> str:
  return output.name_attempt(places.join(work, kind), f'{number:08d}', suffix)


def _find(work: str, kind: str) -> dict[int, str]:
  """Returns number -> path of one attempt's report, sorted by the numbers."""
  paths = places.list_files(places.join(work, kind))
  return {
    int(path.rpartition('/')[2].partition('.')[0]): path
    for path in paths
    if path.endswith('.json')
  }


def _to_json(value: Any) -> bytes:
  return json.dumps(value, default=dataclasses.asdict).encode()
