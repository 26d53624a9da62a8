"""The grouping job: raw files -> blocks -> shards, index and manifest.

    ReadBlocks -> GroupByShard -> WriteShards
        |                             ^
        +---- optional features ------+

Beam moves whole blocks, a few elements per file, because its cost is per
element. Everything exact travels as data, not as Beam's counters, which count
a retried bundle twice.
"""

import dataclasses
import errno
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import finish_corpus, output_files, work_files
from pipelines.input_files import file_sizes
from pipelines.job import GroupJob
from pipelines.read_raw_files import RawFileReader
from tff_fedfish.data.manifest import Manifest
from tff_fedfish.errors import FailedError, UserError

# By name: what Beam calls DirectRunner first tries to download a Go program.
DEFAULT_RUNNER = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'

Task = tuple[tuple[str, str], ...]
"""(path, name in messages and the manifest) of files that are read together."""

# Small files are read together, so that their blocks are not small, too.
_TASK_BYTES = 16 << 20
_MAX_TASK_FILES = 1000

# Errors of the disk and the memory, whatever the input holds.
_OF_THE_MACHINE = (
  *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
  *(errno.EIO, errno.EROFS, errno.ENOMEM),
)


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
    output: A directory that does not exist, or is empty; local, or one that
      Beam's file systems know. Where the runner uses other machines, they must
      see it under the same path.
    beam_flags: Options that Beam's `PipelineOptions` knows.
    watch: Called with (staging directory, number of reading tasks) at the
      start; `work_files.progress` tells how far the job is.

  Returns:
    The manifest; if the corpus is split, that of every part that has a record.

  Raises:
    UserError: If not one record could be grouped, a file could not be read, or
      the job is strict and a record has a fault.
    FailedError: If the machine failed, such as on a full disk.
    ChildProcessError: If a worker process of this machine was killed.
    RuntimeError: If records were lost: a fault of this program.
  """
  options = PipelineOptions(_with_runner(beam_flags))
  tasks = plan_tasks(job)
  try:
    with output_files.stage(str(output)) as staging:
      if watch is not None:
        watch(staging, len(tasks))
      with beam.Pipeline(options=options) as pipeline:
        _build(pipeline, job, tasks, staging)
      return finish_corpus.finish(job, len(tasks), staging)
  except Exception as error:
    if (user_error := _find_user_error(error)) is not None:
      raise user_error from error
    if 'Channel closed prematurely' in str(error):
      raise ChildProcessError(
        f'a worker process of the grouping into {str(output)!r} ended before '
        'its work was done, perhaps for lack of memory. Nothing was kept. Use '
        'fewer workers, or more shards, and run it again.'
      ) from error
    if (found := _find_os_error(error)) is not None:
      stopped = f'Grouping into {str(output)!r} stopped ({found})'
      if any(f'[Errno {code}]' in found for code in _OF_THE_MACHINE):
        raise FailedError(
          f'{stopped}; nothing was kept. Check the disk and its free space, '
          'then run it again.'
        ) from error
      raise UserError(
        f'{stopped}; nothing was kept. Check the input files, then run it '
        'again.'
      ) from error
    raise


def plan_tasks(job: GroupJob) -> list[Task]:
  """Returns what to read together: one large file, or several small ones."""
  tasks, task, num_bytes = [], [], 0
  paths = sorted(job.paths)
  names = name_files(paths)
  for path, name, size in zip(paths, names, file_sizes(paths), strict=True):
    if task and (
      num_bytes + size > _TASK_BYTES or len(task) == _MAX_TASK_FILES
    ):
      tasks.append(tuple(task))
      task, num_bytes = [], 0
    task.append((path, name))
    num_bytes += size
  return [*tasks, tuple(task)]


def name_files(paths: Sequence[str]) -> list[str]:
  """Returns names for messages and the manifest, as short as tells them apart.

  Args:
    paths: Different paths.

  Returns:
    The names without directories, or, if two files have the same one, paths
    below the directory that all have in common.
  """
  names = [posixpath.basename(path) for path in paths]
  if len(set(names)) == len(names):
    return names
  common = posixpath.commonprefix(paths).rpartition('/')[0]
  return [path[len(common) :].lstrip('/') for path in paths]


def _with_runner(beam_flags: Sequence[str]) -> list[str]:
  if any(flag.split('=')[0] == '--runner' for flag in beam_flags):
    return list(beam_flags)
  return [f'--runner={DEFAULT_RUNNER}', *beam_flags]


def _build(
  pipeline: beam.Pipeline,
  job: GroupJob,
  tasks: Sequence[Task],
  staging: str,
) -> None:
  # The functions need not carry the names of all files.
  job = dataclasses.replace(job, paths=())
  read = (
    pipeline
    | 'CreateTasks' >> beam.Create(list(enumerate(tasks)))
    | 'ReadBlocks'
    >> beam.ParDo(_ReadBlocks(job, staging)).with_outputs(
      'features', main='blocks'
    )
  )
  (
    read.blocks
    | 'GroupByShard' >> beam.GroupByKey()
    | 'WriteShards'
    >> beam.ParDo(_WriteShard(job, staging), beam.pvalue.AsIter(read.features))
  )


class _ReadBlocks(beam.DoFn):
  """(task number, task) -> blocks by shard, and the optional features met."""

  def __init__(self, job: GroupJob, staging: str):
    self._job = job
    self._staging = staging

  def process(
    self, numbered_task: tuple[int, Task]
  ) -> Iterator[tuple[int, bytes]]:
    task_num, task = numbered_task
    reader = RawFileReader(self._job)
    yield from reader.read(task)
    work_files.write_report(self._staging, task_num, reader.reports)
    yield beam.pvalue.TaggedOutput('features', reader.features)


class _WriteShard(beam.DoFn):
  """(shard number, blocks) -> a shard file and its part of the index."""

  def __init__(self, job: GroupJob, staging: str):
    self._job = job
    self._staging = staging

  def process(
    self,
    keyed_blocks: tuple[int, Iterable[bytes]],
    features: Iterable[list[str]],
  ) -> None:
    number, blocks = keyed_blocks
    work_files.write_numbered_shard(
      self._job, self._staging, number, blocks, sorted(set().union(*features))
    )


def _find_user_error(error: Exception) -> UserError | None:
  for cause in _causes(error):
    if isinstance(cause, UserError):
      # Beam adds where it came from to the message.
      return UserError(str(cause).partition(' [while running ')[0])
  # From another process, only a text comes.
  name = re.escape(f'{UserError.__module__}.{UserError.__qualname__}')
  found = re.search(rf'{name}: (.*?) \[while running', str(error))
  return UserError(found[1]) if found else None


def _find_os_error(error: Exception) -> str | None:
  """Returns what the system said, if that is behind an error of Beam's."""
  for cause in _causes(error):
    if isinstance(cause, OSError):
      return str(cause).partition(' [while running ')[0]
  found = re.search(
    r'\w*Error: (\[Errno \d+\].*?)(?: \[while running|\n|$)', str(error)
  )
  return found[1] if found else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__
