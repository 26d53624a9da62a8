"""The grouping job: raw files -> runs -> shards, index, manifest.

    Read -> PlanCombining -> Combine -> PlanMerging -> Merge

Beam is the scheduler: what it moves between the steps of `steps.py` are numbers
and names of files. The job is built of what every runner has: no side input, no
second output, no large element.
"""

import contextlib
import dataclasses
import hashlib
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import (
  DirectOptions,
  PipelineOptions,
  StandardOptions,
)

from pipelines import output as outputs
from pipelines import reports, steps
from pipelines.beam_internals import lock_buffers, watch_workers
from pipelines.finish import finish, versions
from pipelines.input_files import file_sizes
from pipelines.options import GroupJob
from pipelines.reports import Input
from pipelines.run_errors import raise_understood
from tff_fedfish.data.manifest import Manifest
from tff_fedfish.data.places import is_remote
from tff_fedfish.errors import UserError

# By name: what Beam calls DirectRunner first tries to download a Go program.
DEFAULT_RUNNER = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'

# Small files are read together, so that their runs are not small, too.
_TASK_BYTES = 32 << 20
_MAX_TASK_FILES = 1000
# Of a large file of plain lines.
_SPAN_BYTES = 256 << 20


def run_group_job(
  job: GroupJob,
  output: str | os.PathLike,
  beam_flags: Sequence[str] = (),
  *,
  resume: bool = False,
  watch: Callable[[str, Sequence[int]], None] | None = None,
) -> list[Manifest]:
  """Groups raw files into a directory that is complete once it has a manifest.

  Args:
    job: What to group.
    output: A directory that does not exist or is empty, local or of a store.
      Where the runner uses other machines, they must see it under the same
      path.
    beam_flags: Options that Beam's `PipelineOptions` knows.
    resume: Whether to go on with what an equal job has left in `output`.
    watch: Called with (work directory, bytes of each reading task) at the
      start; `reports.find_tasks` and `find_shards` tell how far the job is.

  Returns:
    The manifest; if the corpus is split, that of every part that has a record.

  Raises:
    UserError: If not one record could be grouped, a file could not be read, or
      the job is strict and a record has a fault.
    FailedError: If the machine failed, such as on a full disk. Finished work is
      kept.
    ChildProcessError: If a worker process of this machine was killed. Finished
      work is kept.
    RuntimeError: If records were lost: a fault of this program.
  """
  if not any(flag.split('=')[0] == '--runner' for flag in beam_flags):
    beam_flags = [f'--runner={DEFAULT_RUNNER}', *beam_flags]
  options = PipelineOptions(list(beam_flags))
  num_workers = _num_workers(options)
  lock_buffers()
  watch_workers()
  output = str(output)
  paths = sorted(job.paths)
  file_bytes = file_sizes(paths)
  tasks, sizes = _plan_tasks(job, paths, file_bytes)
  with outputs.work_directory(
    output,
    reports.DIRECTORIES,
    identity=_identity(job, paths, file_bytes),
    resume=resume,
    holds_work=lambda path: bool(reports.find_tasks(path)),
  ) as directory:
    try:
      if watch is not None:
        watch(directory.path, sizes)
      reports.write_inputs(directory.path, tasks)
      if resume:
        reports.remove_unfinished_runs(directory.path)
      # The functions need not carry the names of all files.
      work = steps.Work(dataclasses.replace(job, paths=()), directory.path)
      with (
        _new_schedule(num_workers, directory.path) as schedule,
        beam.Pipeline(options=options) as pipeline,
      ):
        _build(pipeline, work, schedule, sizes)
      plan = reports.read_plan(directory.path, steps.MERGE)
      return finish(job, len(tasks), plan, directory)
    except Exception as error:
      raise_understood(error, output, directory)
      raise


def _num_workers(options: PipelineOptions) -> int:
  """Returns how many processes Beam's own runner starts; 0: none, or another's.

  Refuses what it fails at, or loses elements with.
  """
  direct = options.view_as(DirectOptions)
  if direct.direct_num_workers < 0:
    raise UserError(
      '`--direct_num_workers` must be a number of processes, or 0 for one on '
      f'each core, but is {direct.direct_num_workers}.'
    )
  mode = direct.direct_running_mode
  if mode == 'multi_threading':
    raise UserError(
      "`--direct_running_mode` must be 'in_memory' or 'multi_processing', but "
      f'is {mode!r}, in which Beam loses records. Use multi_processing with as '
      'many `--direct_num_workers`.'
    )
  is_own = options.view_as(StandardOptions).runner == DEFAULT_RUNNER
  if not is_own or mode != 'multi_processing':
    return 0
  return direct.direct_num_workers or os.cpu_count() or 1


def _plan_tasks(
  job: GroupJob, paths: Sequence[str], sizes: Sequence[int]
) -> tuple[list[list[Input]], list[int]]:
  """Returns what to read together, and how many bytes each task has.

  A task is one large file, a span of one, or several small ones.
  """
  tasks: list[list[Input]] = [[]]
  task_sizes = [0]
  source = job.load_source()
  names = _name_files(paths)
  for path, name, size in zip(paths, names, sizes, strict=True):
    file = Input(path, name)
    if size > _SPAN_BYTES and source.has_lines(path):
      spans = [
        file._replace(start=start, stop=start + _SPAN_BYTES)
        for start in range(0, size, _SPAN_BYTES)
      ]
      spans[-1] = spans[-1]._replace(stop=file.stop)
      tasks[-1:-1] = [[span] for span in spans]
      task_sizes[-1:-1] = [size // len(spans)] * len(spans)
      continue
    is_full = task_sizes[-1] + size > _TASK_BYTES
    if tasks[-1] and (is_full or len(tasks[-1]) == _MAX_TASK_FILES):
      tasks.append([])
      task_sizes.append(0)
    tasks[-1].append(file)
    task_sizes[-1] += size
  if not tasks[-1]:
    return tasks[:-1], task_sizes[:-1]
  return tasks, task_sizes


def _name_files(paths: Sequence[str]) -> list[str]:
  """Returns paths below their common directory, for messages and manifest."""
  common = posixpath.commonprefix(paths).rpartition('/')[0]
  return [path[len(common) :].lstrip('/') for path in paths]


def _identity(job: GroupJob, paths: Sequence[str], sizes: Sequence[int]) -> str:
  """Returns a hash of all that the files of a work directory depend on."""
  files = [
    (path, size, 0 if is_remote(path) else os.stat(path).st_mtime_ns)
    for path, size in zip(paths, sizes, strict=True)
  ]
  functions = [f.source_digest for f in job.own_functions() if f]
  values = (
    *(versions(job.key), functions),
    *(dataclasses.replace(job, paths=()), files),
  )
  return hashlib.sha256(repr(values).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class _Schedule:
  """Deals numbers out to workers.

  Beam's own runner would give each process as many, however long they take. So
  each gets all, and does those that no other has claimed.
  """

  num_workers: int
  claims: str
  """A directory of this machine; without processes of this machine ''."""

  def elements(self, numbers: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
    """Returns (key, numbers) pairs; at least one."""
    if self.claims:
      return [(worker, numbers) for worker in range(self.num_workers)]
    return [(number, [number]) for number in numbers] or [(0, [])]

  def take(self, step: str, numbers: Iterable[int]) -> Iterator[int]:
    """Yields the numbers of an element that this worker does."""
    for number in numbers:
      if not self.claims or self._claim(f'{step}-{number}'):
        yield number

  def _claim(self, name: str) -> bool:
    flags = os.O_CREAT | os.O_EXCL
    try:
      os.close(os.open(os.path.join(self.claims, name), flags))
    except FileExistsError:
      return False
    return True


@contextlib.contextmanager
def _new_schedule(num_workers: int, work: str) -> Iterator[_Schedule]:
  with contextlib.ExitStack() as stack:
    claims = ''
    if num_workers:
      # After a kill it goes with the work directory.
      place = None if is_remote(work) else work
      claims = stack.enter_context(tempfile.TemporaryDirectory(dir=place))
    yield _Schedule(num_workers, claims)


def _build(
  pipeline: beam.Pipeline,
  work: steps.Work,
  schedule: _Schedule,
  sizes: Sequence[int],
) -> None:
  done = reports.find_tasks(work.directory)
  # The largest first, so that workers end together.
  numbers = sorted(range(len(sizes)), key=lambda n: sizes[n], reverse=True)
  numbers = [number for number in numbers if number not in done]
  (
    pipeline
    | 'CreateTasks' >> beam.Create(schedule.elements(numbers))
    | 'Read' >> beam.FlatMap(_read, work, schedule)
    | 'GroupReports' >> beam.GroupByKey()
    | 'PlanCombining'
    >> beam.FlatMap(_plan_combining, work, schedule, list(done.values()))
    | 'DealRuns' >> beam.GroupByKey()
    | 'Combine' >> beam.FlatMap(_combine, work, schedule)
    | 'GroupRuns' >> beam.GroupByKey()
    | 'PlanMerging' >> beam.FlatMap(_plan_merging, work, schedule)
    | 'DealShards' >> beam.GroupByKey()
    | 'Merge' >> beam.FlatMap(_merge, work, schedule)
  )


# What a step returns has one key, so that the next sees all of it; '' is there
# where there is nothing else.


def _read(element, work, schedule):
  yield 0, ''
  for number in schedule.take('read', element[1]):
    yield 0, steps.read(work, number)


def _plan_combining(key_and_reports, work, schedule, done):
  found = [*done, *filter(None, key_and_reports[1])]
  return schedule.elements(range(steps.plan_combining(work, found)))


def _combine(key_and_numbers, work, schedule):
  yield 0, ''
  for numbers in key_and_numbers[1]:
    for number in schedule.take(steps.COMBINE, numbers):
      yield 0, steps.combine(work, number)


def _plan_merging(key_and_runs, work, schedule):
  steps.plan_merging(work, filter(None, key_and_runs[1]))
  done = reports.find_shards(work.directory)
  numbers = range(work.job.num_all_shards())
  return schedule.elements([n for n in numbers if n not in done])


def _merge(key_and_numbers, work, schedule):
  for numbers in key_and_numbers[1]:
    for number in schedule.take(steps.MERGE, numbers):
      steps.merge(work, number)
  return ()
