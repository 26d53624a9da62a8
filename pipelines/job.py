"""The grouping job: raw files -> blocks -> pieces -> shards, index, manifest.

    ReadBlocks -> GroupByPiece -> SortPieces -> GroupByShard -> WriteShards

Beam moves whole blocks, a few elements per file, because its cost is per
element; between pieces and shards only names of files. The job is built of what
every runner has: no side input, no second output, no large element.
"""

import dataclasses
import functools
import os
import posixpath
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

from pipelines import output as outputs
from pipelines import reports
from pipelines.beam_internals import lock_buffers, watch_workers
from pipelines.blocks import names_of, sort_blocks
from pipelines.finish import finish
from pipelines.input_files import file_sizes
from pipelines.options import GroupJob
from pipelines.pieces import (
  PieceBlocks,
  merge_pieces,
  tasks_per_piece,
  write_piece,
)
from pipelines.read_files import FileReader
from pipelines.run_errors import raise_understood
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
  """Groups raw files into a directory that is complete once it has a manifest.

  Args:
    job: What to group.
    output: A directory that does not exist or is empty, local or of a store.
      Where the runner uses other machines, they must see it under the same
      path.
    beam_flags: Options that Beam's `PipelineOptions` knows.
    watch: Called with (work directory, number of reading tasks) at the start;
      `reports.progress` tells how far the job is.

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
  _check_runner(options)
  lock_buffers()
  watch_workers()
  tasks, num_bytes = _plan_tasks(job)
  try:
    with outputs.work_directory(str(output), reports.DIRECTORIES) as directory:
      if watch is not None:
        watch(directory.path, len(tasks))
      work = _Work(
        # The functions need not carry the names of all files.
        job=dataclasses.replace(job, paths=()),
        directory=directory.path,
        tasks_per_piece=tasks_per_piece(
          num_bytes, len(tasks), job.num_all_shards()
        ),
      )
      with beam.Pipeline(options=options) as pipeline:
        _build(pipeline, work, tasks)
      return finish(job, len(tasks), directory)
  except Exception as error:
    raise_understood(error, str(output))
    raise


def _check_runner(options: PipelineOptions) -> None:
  """Refuses what Beam's own runner fails at, or loses elements with."""
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


def _plan_tasks(job: GroupJob) -> tuple[list[Task], int]:
  """Returns what to read together, and how many bytes all tasks have.

  A task is one large file, or several small ones.
  """
  tasks, task, task_bytes = [], [], 0
  paths = sorted(job.paths)
  names, sizes = _name_files(paths), file_sizes(paths)
  for path, name, size in zip(paths, names, sizes, strict=True):
    if task and (
      task_bytes + size > _TASK_BYTES or len(task) == _MAX_TASK_FILES
    ):
      tasks.append(tuple(task))
      task, task_bytes = [], 0
    task.append((path, name))
    task_bytes += size
  return [*tasks, tuple(task)], sum(sizes)


def _name_files(paths: Sequence[str]) -> list[str]:
  """Returns paths below their common directory, for messages and manifest."""
  common = posixpath.commonprefix(paths).rpartition('/')[0]
  return [path[len(common) :].lstrip('/') for path in paths]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
  """Tells a worker all that it must know for any part of the job."""

  job: GroupJob
  directory: str
  """The work directory."""
  tasks_per_piece: int

  def prepare(self) -> None:
    """Checks, once in a process, that it sees the work directory."""
    _require_shared(self.directory)

  def features(self) -> tuple[str, ...]:
    """Returns the optional features that the corpus stores, sorted."""
    names = self.job.load_source().optional_feature_names
    return tuple(sorted(names_of(_read_features(self.directory), names)))


# Not in a DoFn's `setup`, which not all runners call.
_require_shared = functools.lru_cache(1)(outputs.require_shared)
_read_features = functools.lru_cache(1)(reports.read_features)


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
  blocks = PieceBlocks(task_num, work.tasks_per_piece, job.block_bytes)
  reader = FileReader(job, blocks)
  yield from reader.read(task)
  reports.write_task_report(
    work.directory, task_num, reader.reports, reader.features
  )


def _sort_piece(key_and_blocks, work):
  """(piece, its blocks) -> (shard number, path of the sorted piece, or '')."""
  work.prepare()
  key, blocks = key_and_blocks
  blocks = [block for block in blocks if block]
  if not blocks:
    return key[0], ''
  table = sort_blocks(blocks, work.job.load_source(), work.features())
  path = reports.name_piece(work.directory, key)
  write_piece(path, table)
  return key[0], path


def _write_shard(number_and_paths, work):
  """(shard number, paths of its pieces) -> a shard and its report."""
  work.prepare()
  job, (number, paths) = work.job, number_and_paths
  path = reports.name_shard(work.directory, number)
  with merge_pieces([path for path in paths if path]) as rows:
    report, index = write_shard(path, number % job.num_shards, rows, job)
  report.optional_features = work.features()
  reports.write_shard_report(path, report, index)
  return ()
