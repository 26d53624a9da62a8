"""Steps of a grouping job: raw files -> runs -> shards.

    read:     the raw files of a task -> runs, a report
    combine:  many runs -> one, where there are more than a step may open
    merge:    the rows of a shard, of all runs -> the shard, part of the index

Every step takes a number and leaves files, so that whatever schedules them
moves numbers and names only. A step may run again, or twice at a time: each
attempt has files of its own, and the plan names those that count. No step lists
a directory, of which a shared disk may show an earlier state.
"""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Sequence

from pipelines import output as outputs
from pipelines import reports, runs
from pipelines.options import GroupJob
from pipelines.read_files import FileReader
from pipelines.reports import Plan, TaskReport
from pipelines.rows import FeatureFiller
from pipelines.write_groups import write_shard

COMBINE, MERGE = 'combine', 'merge'
"""Steps that have a plan."""


@dataclasses.dataclass(frozen=True)
class Work:
  """A job and its work directory, as all workers see them."""

  job: GroupJob
  """Its `paths` are not used: workers need not carry them."""
  directory: str

  def prepare(self) -> None:
    """Checks, once in a process, that it sees the work directory."""
    _require_shared(self.directory)

  @property
  def name_run(self) -> Callable[[], str]:
    """Returns a path for a run."""
    return functools.partial(reports.name_run, self.directory)

  def fill(self, plan: Plan) -> FeatureFiller:
    """Returns what completes rows that lack a feature."""
    source = self.job.load_source()
    return FeatureFiller(
      source.feature_names, source.optional_feature_names, plan.features
    )


# Not in a DoFn's `setup`, which not all runners call.
_require_shared = functools.lru_cache(1)(outputs.require_shared)
_read_plan = functools.lru_cache(2)(reports.read_plan)


def read(work: Work, number: int) -> str:
  """Reads the raw files of a task; returns the path of its report."""
  work.prepare()
  writer = runs.RunWriter(work.name_run, work.job.run_bytes)
  reader = FileReader(work.job, writer)
  # What functions of a user's own print is no part of a command's answer.
  with contextlib.redirect_stdout(sys.stderr):
    reader.read(reports.read_inputs(work.directory, number))
  writer.write()
  report = TaskReport(
    tuple(reader.reports), reader.features, tuple(writer.paths)
  )
  return reports.write_task_report(work.directory, number, report)


def plan_combining(work: Work, task_reports: Iterable[str]) -> int:
  """Plans the step `combine`; returns how many numbers it has."""
  paths = tuple(sorted(task_reports))
  features, found = 0, []
  for report in reports.read_task_reports(paths):
    features |= report.features
    found += report.runs
  reports.write_plan(
    work.directory, COMBINE, Plan(paths, features, tuple(found))
  )
  # Another attempt in this process may have read an earlier one.
  _read_plan.cache_clear()
  return _num_combined(found) if len(found) > runs.MAX_OPEN else 0


def _num_combined(paths: Sequence[str]) -> int:
  return -(-len(paths) // runs.MAX_OPEN)


def combine(work: Work, number: int) -> str:
  """Merges every n-th run into one; returns its path."""
  work.prepare()
  plan = _read_plan(work.directory, COMBINE)
  paths = plan.runs[number :: _num_combined(plan.runs)]
  return runs.combine(paths, work.fill(plan), work.name_run)


def plan_merging(work: Work, combined: Iterable[str]) -> None:
  """Plans the step `merge`, of the combined runs or of all."""
  plan = reports.read_plan(work.directory, COMBINE)
  if paths := tuple(sorted(combined)):
    plan = dataclasses.replace(plan, runs=paths)
  reports.write_plan(work.directory, MERGE, plan)


def merge(work: Work, number: int) -> None:
  """Writes a shard, counted through all parts of the split."""
  work.prepare()
  plan, job = _read_plan(work.directory, MERGE), work.job
  path = reports.name_shard(work.directory, number)
  with (
    runs.Runs(plan.runs, work.fill(plan)) as opened,
    opened.rows(number, work.name_run) as rows,
  ):
    report = write_shard(path, number % job.num_shards, rows, job)
  reports.write_shard_report(path, report)
