"""The grouping job: raw files -> blocks -> shards, index and manifest.

    ReadBlocks -> GroupByShard -> WriteShards
        |                             ^
        +---- optional features ------+

Beam moves whole blocks, a few elements per file, because its cost is per
element. Counts travel as files, not as Beam's counters, which count a retried
bundle twice.
"""

import dataclasses
import errno
import os
import posixpath
import re
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import finish_corpus, output_files
from pipelines.blocks import SortedRecords
from pipelines.input_files import file_sizes
from pipelines.job import GroupJob
from pipelines.read_raw_files import RawFileReader
from pipelines.write_groups import shard_name, write_shard
from tff_fedfish.data.manifest import Manifest
from tff_fedfish.errors import FailedError, UserError

# By name: what Beam calls DirectRunner first tries to download a Go program.
DEFAULT_RUNNER = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'

Task = tuple[tuple[str, str], ...]
"""(path, name in messages and the manifest) of files that are read together."""

# Small files are read together, so that their blocks are not small, too.
_TASK_BYTES = 16 << 20
_MAX_TASK_FILES = 1000

_USER_ERROR = (
  re.escape(f'{UserError.__module__}.{UserError.__qualname__}')
  + r': (.*?) \[while running'
)
_OS_ERROR = r'\w*Error: (\[Errno \d+\].*?)(?: \[while running|\n|$)'
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
      start; `finish_corpus.progress` tells how far the job is.

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
  tasks = plan_tasks(job)
  try:
    with output_files.stage(str(output)) as staging:
      if watch is not None:
        watch(staging, len(tasks))
      with beam.Pipeline(options=options) as pipeline:
        _build(pipeline, job, tasks, staging)
      # No worker comes by a shard that gets no record.
      missing, features = finish_corpus.missing_shards(job, staging)
      for number in missing:
        _write_shard((number, ()), job, staging, [features])
      return finish_corpus.finish(job, len(tasks), staging)
  except Exception as error:
    if found := _find_message(error, UserError, _USER_ERROR):
      raise UserError(found) from error
    if 'Channel closed prematurely' in str(error):
      raise ChildProcessError(
        f'a worker process of the grouping into {str(output)!r} ended before '
        'its work was done, perhaps for lack of memory. Nothing was kept. Use '
        'fewer workers, or more shards, and run it again.'
      ) from error
    if found := _find_message(error, OSError, _OS_ERROR):
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

  They are without directories or, if two files then have the same one, paths
  below the directory that all have in common.
  """
  names = [posixpath.basename(path) for path in paths]
  if len(set(names)) == len(names):
    return names
  common = posixpath.commonprefix(paths).rpartition('/')[0]
  return [path[len(common) :].lstrip('/') for path in paths]


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
    >> beam.FlatMap(_read_blocks, job, staging).with_outputs(
      'features', main='blocks'
    )
  )
  (
    read.blocks
    | 'GroupByShard' >> beam.GroupByKey()
    | 'WriteShards'
    >> beam.FlatMap(
      _write_shard, job, staging, beam.pvalue.AsIter(read.features)
    )
  )


def _read_blocks(numbered_task, job, staging):
  """(task number, task) -> blocks by shard, and the optional features met."""
  task_num, task = numbered_task
  reader = RawFileReader(job)
  yield from reader.read(task)
  finish_corpus.write_task_report(staging, task_num, reader.reports)
  yield beam.pvalue.TaggedOutput('features', reader.features)


def _write_shard(numbered_blocks, job, staging, features):
  """(shard number, blocks) -> a shard file and its part of the index."""
  number, blocks = numbered_blocks
  part, shard_num = divmod(number, job.num_shards)
  name = shard_name(shard_num, job.num_shards)
  path = posixpath.join(staging, job.part_names()[part] or '', name)
  found = SortedRecords(
    blocks, job.load_source(), sorted(set().union(*features))
  )
  report, index = write_shard(path, shard_num, found, job)
  finish_corpus.write_shard_report(staging, number, report, index)
  return ()


def _find_message(
  error: BaseException, kind: type[Exception], pattern: str
) -> str | None:
  """Returns the message of an error of a kind, if that is behind one of Beam's.

  The pattern finds it in the text of Beam's, which is all that comes from
  another process.
  """
  cause = error
  while cause is not None:
    if isinstance(cause, kind):
      # Beam adds where it came from to the message.
      return str(cause).partition(' [while running ')[0]
    cause = cause.__cause__ or cause.__context__
  found = re.search(pattern, str(error))
  return found and found[1]
