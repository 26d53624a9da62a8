"""From what the workers left behind to the index and the manifest."""

import dataclasses
import hashlib
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import output_files, splits, work_files
from pipelines.job import GroupJob
from pipelines.write_groups import write_numbered_shard
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.data.manifest import (
  MANIFEST_NAME,
  MAX_INPUTS,
  Counts,
  DropExample,
  InputFile,
  Manifest,
  Shard,
  Split,
)
from tff_fedfish.errors import UserError

_OTHER_SPLIT = 'other_split'


def finish(job: GroupJob, num_tasks: int, staging: str) -> list[Manifest]:
  """Writes index and manifest, of every part, if nothing was lost.

  Args:
    job: What was grouped.
    num_tasks: How many reading tasks there were.
    staging: Where the shards and what the workers left are. Holds nothing but
      grouped corpora afterwards.

  Returns:
    One manifest, or one for every part of the split that has a record.

  Raises:
    UserError: If not one record could be grouped.
    RuntimeError: If records were lost: a fault of this program.
  """
  names = job.part_names()
  reports = work_files.read_reports(staging)
  shards = work_files.read_shard_reports(staging)
  if missing := set(range(job.num_shards * len(names))) - shards.keys():
    # No worker comes by a shard that gets no record.
    features = next(
      (shard['optional_features'] for shard in shards.values()), []
    )
    for number in missing:
      write_numbered_shard(job, staging, number, [], features)
    shards = work_files.read_shard_reports(staging)
  files = [file for task_files in reports.values() for file in task_files]
  _check(job, files, shards.values(), len(reports) == num_tasks)
  corpora = []
  for i, name in enumerate(names):
    numbers = range(i * job.num_shards, (i + 1) * job.num_shards)
    index = work_files.read_index(staging, numbers)
    directory = posixpath.join(staging, name or '')
    if index.num_rows:
      sink = pa.BufferOutputStream()
      pq.write_table(index, sink)
      data = sink.getvalue()
      path = posixpath.join(directory, INDEX_NAME)
      with output_files.open_to_write(path) as file:
        file.write(data)
      manifest = _manifest(job, files, [shards[n] for n in numbers], index, i)
      digest = hashlib.sha256(data).hexdigest()
      corpora.append(
        (directory, dataclasses.replace(manifest, index_sha256=digest))
      )
    else:
      # An empty corpus helps nobody; the other parts' manifests name this one.
      output_files.remove(directory)
  work_files.remove(staging)
  for directory, manifest in corpora:
    path = posixpath.join(directory, MANIFEST_NAME)
    with output_files.open_to_write(path) as file:
      file.write(manifest.to_bytes())
  return [manifest for _, manifest in corpora]


def _manifest(
  job: GroupJob,
  files: Sequence[dict[str, Any]],
  shards: Sequence[dict[str, Any]],
  index: pa.Table,
  part: int,
) -> Manifest:
  """Returns the manifest of one part of the split, or of the whole.

  Args:
    job: What was grouped.
    files: The reports of all raw files.
    shards: The reports of the part's shards.
    index: The index of the part.
    part: 0-based number of the part.
  """
  source = job.load_source()
  split = None
  if job.split is not None:
    split = Split(
      name=job.part_names()[part],
      names=job.part_names(),
      rule=splits.describe(job.split, source),
    )
  drops = _sum_drops([*files, *shards])
  if other := sum(
    sum(file['split_records_out']) - file['split_records_out'][part]
    for file in files
  ):
    drops[_OTHER_SPLIT] = other
  return Manifest(
    corpus=job.name or job.source_name,
    key=job.key,
    feature_names=(*source.feature_names, *shards[0]['optional_features']),
    counts=Counts(
      records_in=sum(file['records_in'] for file in files),
      records_out=pc.sum(index.column('num_examples')).as_py(),
      num_groups=pc.sum(pc.equal(index.column('part'), 0)).as_py(),
      num_records=index.num_rows,
      drops=dict(sorted(drops.items())),
    ),
    shards=tuple(Shard(**shard['shard']) for shard in shards),
    options=job.options(),
    num_input_files=len(files),
    inputs=_input_files(files),
    drop_examples=_first_drops(files, shards, part),
    split=split,
  )


def _check(
  job: GroupJob,
  files: Sequence[dict[str, Any]],
  shards: Iterable[dict[str, Any]],
  all_read: bool,
) -> None:
  """Raises if a record is neither stored nor counted as dropped."""
  read_drops, shard_drops = _sum_drops(files), _sum_drops(shards)
  records_in = sum(file['records_in'] for file in files)
  handed_on = sum(sum(file['split_records_out']) for file in files)
  stored = sum(shard['num_examples'] for shard in shards)
  if (
    not all_read
    or len(files) != len(job.paths)
    or records_in != handed_on + read_drops.total()
    or handed_on != stored + shard_drops.total()
  ):
    raise RuntimeError(
      f'Records were lost: {records_in} read from {len(files)} of '
      f'{len(job.paths)} files, {read_drops.total()} dropped, {handed_on} '
      f'handed on, {shard_drops.total()} dropped from groups, {stored} '
      'written. Nothing is kept.'
    )
  if stored:
    return
  drops = ', '.join(f'{n} {reason}' for reason, n in sorted(read_drops.items()))
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


def _sum_drops(reports: Iterable[dict[str, Any]]) -> Counter:
  """Returns how many records were dropped, by reason."""
  drops = Counter()
  for report in reports:
    drops.update(report['drops'])
  return drops


def _input_files(files: Sequence[dict]) -> tuple[InputFile, ...]:
  """Returns the raw files, in an order that their paths do not change."""
  inputs = [
    InputFile(
      name=file['name'],
      records_in=file['records_in'],
      records_out=sum(file['split_records_out']),
      damage=file['damage'],
      damage_byte=file['damage_byte'],
    )
    for file in files
  ]
  if len(inputs) > MAX_INPUTS:
    inputs = [file for file in inputs if file.damage]
  return tuple(
    sorted(
      inputs,
      key=lambda file: [
        (value is not None, value) for value in dataclasses.astuple(file)
      ],
    )
  )


def _first_drops(
  files: Sequence[dict[str, Any]], shards: Sequence[dict[str, Any]], part: int
) -> dict[str, DropExample]:
  """Returns the smallest (file name, record), or group, of every reason."""
  found = [
    (reason, (file['name'], line, excerpt))
    for file in files
    for reason, (line, excerpt) in file['first_drops'].items()
  ]
  found += [
    (_OTHER_SPLIT, (file['name'], *first))
    for file in files
    for i, first in enumerate(file['split_firsts'])
    if first is not None and i != part
  ]
  found += [
    (reason, (group, excerpt))
    for shard in shards
    for reason, (group, excerpt) in shard['first_drops'].items()
  ]
  reason_to_first = {}
  for reason, first in found:
    reason_to_first[reason] = min(first, reason_to_first.get(reason, first))
  return {
    reason: DropExample(file=first[0], line=first[1], excerpt=first[2])
    if len(first) == 3
    else DropExample(group=first[0], excerpt=first[1])
    for reason, first in sorted(reason_to_first.items())
  }
