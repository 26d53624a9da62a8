"""From the reports of workers to the index and the manifest."""

import dataclasses
import hashlib
import itertools
import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import splits, worker_reports
from pipelines.job import GroupJob
from pipelines.output import WorkDirectory
from pipelines.worker_reports import Report
from tff_fedfish.data import places
from tff_fedfish.data.corpus_index import INDEX_NAME, fingerprint_of_index
from tff_fedfish.data.manifest import (
  MANIFEST_NAME,
  MAX_INPUTS,
  ORDER,
  Counts,
  DropExample,
  InputFile,
  Manifest,
  Shard,
  Split,
)
from tff_fedfish.errors import UserError

_OTHER_SPLIT = 'other_split'


def finish(
  job: GroupJob, num_tasks: int, work: WorkDirectory
) -> list[Manifest]:
  """Writes index and manifest, of every part, if nothing was lost.

  Args:
    job: What was grouped.
    num_tasks: How many reading tasks there were.
    work: Where the shards and the reports are. Gets the names of all files
      of the grouped corpora.

  Returns:
    One manifest, or one for every part of the split that has a record.

  Raises:
    UserError: If not one record could be grouped.
    RuntimeError: If records were lost: a fault of this program.
  """
  tasks = worker_reports.read_task_reports(work.path)
  files = list(itertools.chain.from_iterable(tasks))
  found = worker_reports.read_shard_reports(work.path)
  reports = {number: report for number, (_, report, _) in found.items()}
  all_there = len(tasks) == num_tasks and len(found) == job.num_all_shards()
  _check(job, files, reports.values(), all_there)
  manifests = []
  for i, name in enumerate(job.part_names()):
    numbers = range(i * job.num_shards, (i + 1) * job.num_shards)
    index = pa.concat_tables(found[number][2] for number in numbers).sort_by(
      [('group_id', 'ascending'), ('part', 'ascending')]
    )
    if not index.num_rows:
      # An empty corpus helps nobody; the other parts' manifests name this one.
      continue
    shards = [reports[number] for number in numbers]
    manifest = _manifest(job, files, shards, index, i)
    sink = pa.BufferOutputStream()
    pq.write_table(index, sink)
    data = sink.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    manifest = dataclasses.replace(
      manifest, index_sha256=digest, fingerprint=fingerprint_of_index(index)
    )
    manifests.append(manifest)
    for number, shard in zip(numbers, manifest.shards, strict=True):
      work.files[found[number][0]] = posixpath.join(name or '', shard.name)
    for file, content in (
      (INDEX_NAME, data),
      (MANIFEST_NAME, manifest.to_bytes()),
    ):
      path = posixpath.join(work.path, f'{i}-{file}')
      places.write_bytes(path, content)
      work.files[path] = posixpath.join(name or '', file)
  return manifests


def _check(
  job: GroupJob,
  files: Sequence[Report],
  shards: Collection[Report],
  all_there: bool,
) -> None:
  """Raises if a record is neither stored nor counted as dropped."""
  read_drops = _add_up(_file_drops(files))
  num_read_drops, num_shard_drops = (
    sum(num for num, _ in drops.values())
    for drops in (read_drops, _add_up(_shard_drops(shards)))
  )
  records_in = sum(file['records_in'] for file in files)
  handed_on = sum(map(_records_out, files))
  stored = sum(shard['num_examples'] for shard in shards)
  if (
    not all_there
    or len(files) != len(job.paths)
    or records_in != handed_on + num_read_drops
    or handed_on != stored + num_shard_drops
  ):
    raise RuntimeError(
      f'Records were lost: {records_in} read from {len(files)} of '
      f'{len(job.paths)} files, {num_read_drops} dropped, {handed_on} '
      f'handed on, {num_shard_drops} dropped from groups, {stored} written. '
      'Nothing is kept.'
    )
  if stored:
    return
  if handed_on:
    raise UserError(
      f'`--min_examples_per_group` is {job.min_examples_per_group}, but no '
      'group has as many examples. Lower it.'
    )
  drops = ', '.join(
    f'{num} {reason}' for reason, (num, _) in read_drops.items()
  )
  option = '--key' if job.fields is None else '--key_field'
  hint = ''
  if 'missing_author' in read_drops and job.source_name != 'stack_overflow':
    hint = (
      ' A record without a field "author" is a missing_author; `fedfish group '
      'json_lines --key_field FIELD` reads any other.'
    )
  raise UserError(
    f'`--input` must hold records that can be grouped by {job.key}, but of '
    f'{records_in} records none could ({drops or "empty files"}).{hint} Name '
    f'other files, or another `{option}`.'
  )


def _manifest(
  job: GroupJob,
  files: Sequence[Report],
  shards: Sequence[Report],
  index: pa.Table,
  part: int,
) -> Manifest:
  """Returns the manifest of a part of the split, with its shards and index."""
  source = job.load_source()
  names = job.part_names()
  drops = _add_up(
    itertools.chain(_file_drops(files, part), _shard_drops(shards))
  )
  return Manifest(
    corpus=job.name or job.source_name,
    key=job.key,
    feature_names=(*source.feature_names, *shards[0]['optional_features']),
    counts=Counts(
      records_in=sum(file['records_in'] for file in files),
      records_out=pc.sum(index.column('num_examples')).as_py(),
      num_groups=pc.sum(pc.equal(index.column('part'), 0)).as_py(),
      num_records=index.num_rows,
      drops={reason: num for reason, (num, _) in drops.items()},
      num_mixed_time_groups=sum(
        shard['num_mixed_time_groups'] for shard in shards
      ),
    ),
    shards=tuple(Shard(**shard['shard']) for shard in shards),
    options=job.options(),
    order=ORDER,
    num_input_files=len(files),
    inputs=_input_files(files),
    drop_examples={reason: first for reason, (_, first) in drops.items()},
    split=job.split
    and Split(
      name=names[part], names=names, rule=splits.describe(job.split, source)
    ),
  )


def _records_out(file: Report) -> int:
  return sum(tally['num'] for tally in file['parts'])


def _file_drops(
  files: Iterable[Report], part: int | None = None
) -> Iterator[tuple[str, int, DropExample]]:
  """Yields (reason, how many, the first) of the drops of every file.

  For a part of the split, the records of the others count as dropped, too.
  """
  for file in files:
    others = (
      (_OTHER_SPLIT, tally)
      for i, tally in enumerate(file['parts'])
      if part is not None and i != part and tally['num']
    )
    for reason, tally in itertools.chain(file['drops'].items(), others):
      line, excerpt = tally['first']
      first = DropExample(file=file['name'], line=line, excerpt=excerpt)
      yield reason, tally['num'], first


def _shard_drops(
  shards: Iterable[Report],
) -> Iterator[tuple[str, int, DropExample]]:
  """Yields (reason, how many, the first) of the drops of every shard."""
  for shard in shards:
    for reason, tally in shard['drops'].items():
      group, excerpt = tally['first']
      yield reason, tally['num'], DropExample(group=group, excerpt=excerpt)


def _add_up(
  drops: Iterable[tuple[str, int, DropExample]],
) -> dict[str, tuple[int, DropExample]]:
  """Returns how many records were dropped and the first, by reason, sorted."""
  totals = {}
  for reason, num, first in drops:
    total, smallest = totals.get(reason, (0, first))
    smallest = min(smallest, first, key=_sortable)
    totals[reason] = total + num, smallest
  return dict(sorted(totals.items()))


def _input_files(files: Sequence[Report]) -> tuple[InputFile, ...]:
  """Returns the raw files, in an order that their paths do not change."""
  inputs = [
    InputFile(
      name=file['name'],
      records_in=file['records_in'],
      records_out=_records_out(file),
      damage=file['damage'],
      damage_byte=file['damage_byte'],
    )
    for file in files
  ]
  if len(files) > MAX_INPUTS:
    inputs = [file for file in inputs if file.damage]
  return tuple(sorted(inputs, key=_sortable))


def _sortable(entry: InputFile | DropExample) -> list[tuple[bool, Any]]:
  return [(value is not None, value) for value in dataclasses.astuple(entry)]
