"""The grouping job: raw files -> blocks -> pieces -> shards, index, manifest.

    ReadBlocks -> GroupByPiece -> SortPieces -> GroupByShard -> WriteShards

Beam moves whole blocks, a few elements per file, because its cost is per
element; between pieces and shards only names of files. Counts travel as files,
not as Beam's counters, which count a retried bundle twice. The job is built of
what every runner has: no side input, no second output, no large element.
"""

import dataclasses
import functools
import os
import posixpath
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import (
  DirectOptions,
  PipelineOptions,
)

from pipelines import finish_corpus, worker_reports
from pipelines.beam_internals import lock_buffers, watch_workers
from pipelines.blocks import names_of, sort_blocks
from pipelines.input_files import file_sizes
from pipelines.job import GroupJob
from pipelines.job_errors import raise_understood
from pipelines.output import require_shared, work_directory
from pipelines.pieces import (
  PieceKeys,
  merge_pieces,
  tasks_per_piece,
  write_piece,
)
from pipelines.read_raw_files import RawFileReader
from pipelines.write_groups import write_shard
from tff_fedfish.data.manifest import Manifest
from tff_fedfish.errors import UserError

# By name: what Beam calls DirectRunner first tries to download a Go program.
DEFAULT_RUNNER = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'

Task = tuple[tuple[str, str], ...]
"""(path, name in messages and the manifest) of files that are read together."""

# Small files are read together, so that their blocks are not small, too.
_TASK_BYTES = 16 << 20
_MAX_TASK_FILES = 1000


def run_group_job(
  job: GroupJob,
  output: str | os.PathLike,
  beam_flags: Sequence[str] = (),
  *,
  watch: Callable[[str, int], None] | None = None,
) -> list[Manifest]:
  """Groups raw files into a directory that appears when it is complete.

  Args:
    job: What to group.
    output: A directory that does not exist, or is empty; local, or one of a
      store. Where the runner uses other machines, they must see it under the
      same path.
    beam_flags: Options that Beam's `PipelineOptions` knows.
    watch: Called with (work directory, number of reading tasks) at the start;
      `worker_reports.progress` tells how far the job is.

  Returns:
    The manifest; if the corpus is split, that of every part that has a record.

  Raises:
    UserError: If not one record could be grouped, a file could not be read, or
      the job is strict and a record has a fault.
    FailedError: If the machine failed, such as on a full disk.
    ChildProcessError: If a worker process of this machine was killed.
    RuntimeError: If records were lost: a fault of this program.
  """
  if not any(flag.split('=')[0] == '--runner' for flag in beam_flags):
    beam_flags = [f'--runner={DEFAULT_RUNNER}', *beam_flags]
  options = PipelineOptions(list(beam_flags))
  _require_sound(options)
  lock_buffers()
  watch_workers()
  tasks, task_bytes = _plan_tasks(job)
  try:
    directories = worker_reports.DIRECTORIES
    with work_directory(str(output), directories) as staging:
      if watch is not None:
        watch(staging.path, len(tasks))
      work = _Work(
        # The functions need not carry the names of all files.
        job=dataclasses.replace(job, paths=()),
        staging=staging.path,
        num_bytes=sum(task_bytes),
        num_tasks=len(tasks),
      )
      with beam.Pipeline(options=options) as pipeline:
        _build(pipeline, work, tasks)
      return finish_corpus.finish(job, len(tasks), staging)
  except Exception as error:
    raise_understood(error, str(output), options)
    raise


def _require_sound(options: PipelineOptions) -> None:
  """Refuses a mode of Beam's own runner in which it loses elements."""
  mode = options.view_as(DirectOptions).direct_running_mode
  if mode == 'multi_threading':
    raise UserError(
      "`--direct_running_mode` must be 'in_memory' or 'multi_processing', but "
      f'is {mode!r}, in which Beam loses records. Use multi_processing with as '
      'many `--direct_num_workers`.'
    )


def _plan_tasks(job: GroupJob) -> tuple[list[Task], list[int]]:
  """Returns what to read together, and how many bytes each task has.

  A task is one large file, or several small ones.
  """
  tasks, task_bytes, task, num_bytes = [], [], [], 0
  paths = sorted(job.paths)
  names, sizes = name_files(paths), file_sizes(paths)
  for path, name, size in zip(paths, names, sizes, strict=True):
    if task and (
      num_bytes + size > _TASK_BYTES or len(task) == _MAX_TASK_FILES
    ):
      tasks.append(tuple(task))
      task_bytes.append(num_bytes)
      task, num_bytes = [], 0
    task.append((path, name))
    num_bytes += size
  return [*tasks, tuple(task)], [*task_bytes, num_bytes]


def name_files(paths: Sequence[str]) -> list[str]:
  """Returns names for messages and the manifest, as short as tells them apart.

  They are without directories or, if two files then have the same one, paths
  below the directory that all have in common.
  """
  names = [posixpath.basename(path) for path in paths]
  if len(set(names)) < len(names):
    common = posixpath.commonprefix(paths).rpartition('/')[0]
    names = [path[len(common) :].lstrip('/') for path in paths]
  return names


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
  """Tells a worker all that it must know for any part of the job."""

  job: GroupJob
  staging: str
  num_bytes: int
  """Size of all that is read."""
  num_tasks: int

  def prepare(self) -> None:
    """Checks, once in a process, that the worker sees what others write."""
    _require_shared(self.staging)

  def features(self) -> tuple[str, ...]:
    """Returns the optional features that the corpus stores, sorted."""
    names = self.job.load_source().optional_feature_names
    return tuple(sorted(names_of(_read_features(self.staging), names)))

  def keys(self, task_num: int) -> PieceKeys:
    """Returns the pieces of one of the tasks that together read all."""
    num_shards = self.job.num_all_shards()
    return PieceKeys(
      task_num, tasks_per_piece(self.num_bytes, self.num_tasks, num_shards)
    )


# Not in a DoFn's `setup`, which not all runners call.
_require_shared = functools.lru_cache(1)(require_shared)
_read_features = functools.lru_cache(1)(worker_reports.read_features)


def _build(pipeline: beam.Pipeline, work: _Work, tasks: Sequence[Task]) -> None:
  (
    pipeline
    | 'CreateTasks' >> beam.Create(list(enumerate(tasks)))
    | 'ReadBlocks' >> beam.FlatMap(_read_blocks, work)
    | 'GroupByPiece' >> beam.GroupByKey()
    | 'SortPieces' >> beam.Map(_sort_piece, work)
    | 'GroupByShard' >> beam.GroupByKey()
    | 'WriteShards' >> beam.FlatMap(_write_shard, work)
  )


def _read_blocks(numbered_task, work):
  """(task number, task) -> (piece, block) pairs."""
  work.prepare()
  task_num, task = numbered_task
  job = work.job
  if task_num == 0:
    # A block without records of each shard, so that all are written.
    for number in range(job.num_all_shards()):
      yield (number, -1, 0), b''
  reader = RawFileReader(job, work.keys(task_num))
  yield from reader.read(task)
  worker_reports.write_task_report(
    work.staging, task_num, reader.reports, reader.features
  )


def _sort_piece(key_and_blocks, work):
  """(piece, its blocks) -> (shard number, path of the sorted piece, or '')."""
  work.prepare()
  key, blocks = key_and_blocks
  number = key[0]
  blocks = [block for block in blocks if block]
  if not blocks:
    return number, ''
  table = sort_blocks(blocks, work.job.load_source(), work.features())
  path = worker_reports.name_piece(work.staging, key)
  write_piece(path, table)
  return number, path


def _write_shard(number_and_paths, work):
  """(shard number, paths of its pieces) -> a shard and its report."""
  work.prepare()
  job, (number, paths) = work.job, number_and_paths
  path = worker_reports.name_shard(work.staging, number)
  with merge_pieces([path for path in paths if path]) as rows:
    report, index = write_shard(path, number % job.num_shards, rows, job)
  report.optional_features = work.features()
  worker_reports.write_shard_report(path, report, index)
  return ()
