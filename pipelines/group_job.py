"""The grouping job: raw files -> blocks -> shards, index and manifest.

    ReadGroups -> GroupByShard -> WriteShards
        |                             ^
        +-> file reports -> features -+

Beam moves whole blocks, a few elements per file, because its cost is per
element. Everything exact travels as data, not as Beam's counters, which count
a retried bundle twice.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import finish_corpus
from pipelines.job import GroupJob
from pipelines.keys import KEYS
from pipelines.read_groups import Block, FileReport, read_groups
from pipelines.source import load_source
from pipelines.write_groups import write_shard
from tff_fedfish.data.manifest import Manifest
from tff_fedfish.errors import UserError
from tff_fedfish.files import write_directory_atomically

# By name: what Beam calls DirectRunner first tries to download a Go program.
DEFAULT_RUNNER = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'


def run_group_job(
  job: GroupJob,
  output: str | os.PathLike,
  beam_flags: Sequence[str] = (),
) -> Manifest:
  """Groups raw files into a directory that appears when it is complete.

  Args:
    job: What to group.
    output: A local directory that does not exist, or is empty. Where the runner
      uses other machines, they must see it under the same path.
    beam_flags: Options that Beam's `PipelineOptions` knows.

  Returns:
    The manifest.

  Raises:
    UserError: If not one record could be grouped, or a file could not be read
      or written.
    RuntimeError: If records were lost: a fault of this program.
  """
  options = PipelineOptions(_with_runner(beam_flags))
  try:
    with write_directory_atomically(output) as staging:
      work = finish_corpus.make_work_directory(staging)
      with beam.Pipeline(options=options) as pipeline:
        _build(pipeline, job, str(staging), str(work))
      manifest = finish_corpus.finish(job, staging, work)
      shutil.rmtree(work)
      manifest.write(staging)
  except Exception as error:
    if (os_error := _find_os_error(error)) is not None:
      raise UserError(
        f'Grouping into {str(output)!r} stopped ({os_error}); nothing was '
        'kept. Check the input files and the free space, then run it again.'
      ) from error
    raise
  return manifest


def _with_runner(beam_flags: Sequence[str]) -> list[str]:
  if any(flag.split('=')[0] == '--runner' for flag in beam_flags):
    return list(beam_flags)
  return [f'--runner={DEFAULT_RUNNER}', *beam_flags]


def _find_os_error(error: BaseException | None) -> OSError | None:
  """Returns the system's error behind one that Beam wrapped, if there is."""
  while error is not None and not isinstance(error, OSError):
    error = error.__cause__ or error.__context__
  return error


def _build(
  pipeline: beam.Pipeline, job: GroupJob, staging: str, work: str
) -> None:
  read = (
    pipeline
    | 'CreatePaths' >> beam.Create(list(enumerate(sorted(job.paths))))
    | 'SpreadPaths' >> beam.Reshuffle()
    | 'ReadGroups'
    >> beam.ParDo(_ReadGroups(job)).with_outputs('reports', main='blocks')
  )
  read.reports | 'WriteReports' >> beam.Map(_write_report, work=work)
  features = (
    read.reports
    | 'GetFeatures' >> beam.Map(lambda report: report[1]['features'])
    | 'UniteFeatures' >> beam.CombineGlobally(_unite)
  )
  # Every shard is written, also one that got no group.
  shards = pipeline | 'CreateShards' >> beam.Create(
    [(shard_num, []) for shard_num in range(job.num_shards)]
  )
  (
    (read.blocks, shards)
    | 'Flatten' >> beam.Flatten()
    | 'GroupByShard' >> beam.GroupByKey()
    | 'WriteShards'
    >> beam.ParDo(
      _WriteShard(job, staging, work), beam.pvalue.AsSingleton(features)
    )
  )


class _ReadGroups(beam.DoFn):
  """(file number, path) -> blocks by shard, and the file's report."""

  def __init__(self, job: GroupJob):
    self._job = job

  def process(self, numbered_path: tuple[int, str]) -> Iterator:
    file_num, path = numbered_path
    report = FileReport(os.path.basename(path))
    yield from read_groups(
      load_source(self._job.source_name),
      path,
      KEYS[self._job.key],
      self._job.num_shards,
      report,
      block_bytes=self._job.block_bytes,
    )
    value = dataclasses.asdict(report) | {'features': sorted(report.features)}
    yield beam.pvalue.TaggedOutput('reports', (file_num, value))


class _WriteShard(beam.DoFn):
  """(shard number, blocks) -> a shard file and its part of the index."""

  def __init__(self, job: GroupJob, staging: str, work: str):
    self._job = job
    self._staging = staging
    self._work = work

  def process(
    self, keyed_blocks: tuple[int, Iterable[Block]], features: list[str]
  ) -> None:
    shard_num, blocks = keyed_blocks
    source = load_source(self._job.source_name)
    shard, index = write_shard(
      self._staging,
      shard_num,
      self._job.num_shards,
      blocks,
      source.feature_names + source.optional_feature_names,
      source.feature_names + tuple(features),
      self._job.max_record_bytes,
    )
    finish_corpus.write_part(self._work, shard_num, shard, index, features)


def _unite(lists: Iterable[list[str]]) -> list[str]:
  return sorted(set().union(*lists))


def _write_report(report: tuple[int, dict], work: str) -> None:
  finish_corpus.write_report(work, *report)
