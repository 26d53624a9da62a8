"""From what the workers left behind to the index and the manifest."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import output_files, splits, work_files
from pipelines.job import GroupJob
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

OTHER_SPLIT = 'other_split'


class _Found(NamedTuple):
  """Contents of the workers' files."""

  files: list[dict[str, Any]]
  shards: list[dict[str, Any]]
  """Files by (part of the split, shard)."""


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
  names = work_files.part_names(job)
  reports = work_files.read_reports(staging)
  shards = work_files.read_shard_reports(staging)
  if missing := set(range(job.num_shards * len(names))) - shards.keys():
    # No worker comes by a shard that gets no record.
    features = next(
      (shard['optional_features'] for shard in shards.values()), []
    )
    for number in missing:
      work_files.write_numbered_shard(job, staging, number, [], features)
    shards = work_files.read_shard_reports(staging)
  found = _Found(
    [file for files in reports.values() for file in files],
    list(shards.values()),
  )
  _check(job, found, len(reports) == num_tasks)
  corpora = []
  for i, name in enumerate(names):
    index = work_files.read_index(job, staging, i)
    directory = work_files.corpus_directory(staging, name)
    if index.num_rows:
      sink = pa.BufferOutputStream()
      pq.write_table(index, sink)
      data = sink.getvalue()
      path = output_files.join(directory, INDEX_NAME)
      with output_files.open_to_write(path) as file:
        file.write(data)
      manifest = _manifest(job, found, index, i, names)
      digest = hashlib.sha256(data).hexdigest()
      corpora.append(
        (directory, dataclasses.replace(manifest, index_sha256=digest))
      )
    else:
      # An empty corpus helps nobody; the other parts' manifests name this one.
      output_files.remove(directory)
  work_files.remove(staging)
  for directory, manifest in corpora:
    path = output_files.join(directory, MANIFEST_NAME)
    with output_files.open_to_write(path) as file:
      file.write(manifest.to_bytes())
  return [manifest for _, manifest in corpora]


def _manifest(
  job: GroupJob,
  found: _Found,
  index: pa.Table,
  split_num: int,
  names: Sequence[str | None],
) -> Manifest:
  """Returns the manifest of one part of the split, or of the whole."""
  source = job.load_source()
  first = split_num * job.num_shards
  shards = found.shards[first : first + job.num_shards]
  split = None
  if job.split is not None:
    split = Split(
      name=names[split_num],
      names=tuple(names),
      rule=splits.describe(job.split, source),
    )
  return Manifest(
    corpus=job.name or job.source_name,
    key=job.key,
    feature_names=(
      *source.feature_names,
      *shards[0]['optional_features'],
    ),
    counts=_count(found.files, shards, index, split_num),
    shards=tuple(Shard(**shard['shard']) for shard in shards),
    options=job.options(),
    num_input_files=len(found.files),
    inputs=_input_files(found.files),
    drop_examples=_first_drops(found.files, shards, split_num),
    split=split,
  )


def _count(
  files: Sequence[dict],
  shards: Sequence[dict],
  index: pa.Table,
  split_num: int,
) -> Counts:
  drops = Counter()
  for report in (*files, *shards):
    drops.update(report['drops'])
  other = sum(
    sum(file['split_records_out']) - file['split_records_out'][split_num]
    for file in files
  )
  if other:
    drops[OTHER_SPLIT] = other
  return Counts(
    records_in=sum(file['records_in'] for file in files),
    records_out=work_files.num_examples(index),
    num_groups=pc.sum(pc.equal(index.column('part'), 0)).as_py() or 0,
    num_records=index.num_rows,
    drops=dict(sorted(drops.items())),
  )


def _check(job: GroupJob, found: _Found, all_read: bool) -> None:
  """Raises if a record is neither stored nor counted as dropped."""
  read_drops, shard_drops = (
    sum((Counter(report['drops']) for report in reports), Counter())
    for reports in found
  )
  records_in = sum(file['records_in'] for file in found.files)
  handed_on = sum(sum(file['split_records_out']) for file in found.files)
  stored = sum(shard['num_examples'] for shard in found.shards)
  if (
    not all_read
    or len(found.files) != len(job.paths)
    or records_in != handed_on + read_drops.total()
    or handed_on != stored + shard_drops.total()
  ):
    raise RuntimeError(
      f'Records were lost: {records_in} read from {len(found.files)} of '
      f'{len(job.paths)} files, {read_drops.total()} dropped, {handed_on} '
      f'handed on, {shard_drops.total()} dropped from groups, {stored} '
      'written. Nothing is kept.'
    )
  if not stored:
    drops = ', '.join(
      f'{n} {reason}' for reason, n in sorted(read_drops.items())
    )
    option = '--key' if job.fields is None else '--key_field'
    raise UserError(
      f'`--input` must hold records that can be grouped by {job.key}, but of '
      f'{records_in} records none could ({drops or "empty files"}).'
      f'{_hint(job, read_drops)} Name other files, or another `{option}`.'
    )


def _hint(job: GroupJob, drops: Counter) -> str:
  if 'missing_author' not in drops or job.source_name == 'stack_overflow':
    return ''
  return (
    ' A record without a field "author" is a missing_author; `fedfish group '
    'json_lines --key_field FIELD` reads any other.'
  )


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
  files: Sequence[dict], shards: Sequence[dict], split_num: int
) -> dict[str, DropExample]:
  """Returns the smallest (file name, record), or group, of every reason."""
  reason_to_first = {}
  for report in files:
    others = [
      first
      for i, first in enumerate(report['split_firsts'])
      if first is not None and i != split_num
    ]
    first_drops = report['first_drops']
    if others:
      first_drops = first_drops | {OTHER_SPLIT: min(others)}
    for reason, (line, excerpt) in first_drops.items():
      found = (report['name'], line, excerpt)
      reason_to_first[reason] = min(found, reason_to_first.get(reason, found))
  examples = {
    reason: DropExample(file=file, line=line, excerpt=excerpt)
    for reason, (file, line, excerpt) in reason_to_first.items()
  }
  reason_to_first = {}
  for report in shards:
    for reason, found in report['first_drops'].items():
      reason_to_first[reason] = min(found, reason_to_first.get(reason, found))
  for reason, (group, excerpt) in reason_to_first.items():
    examples[reason] = DropExample(group=group, excerpt=excerpt)
  return dict(sorted(examples.items()))
