"""From the reports that workers leave behind to the index and the manifest.

There is one small file for every reading task and every shard. A task that a
runner repeats replaces its file by the same bytes, so what is counted from them
was counted once.
"""

import dataclasses
import hashlib
import io
import itertools
import json
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import output_files, splits
from pipelines.job import GroupJob
from tff_fedfish.data.corpus_index import INDEX_NAME, INDEX_SCHEMA
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

_WORK = 'work'
_TASKS = 'reports'
_SHARDS = 'shards'
_OTHER_SPLIT = 'other_split'

# A `FileReport` or `ShardReport` that was written as JSON and read again.
_Report = dict[str, Any]


def write_task_report(
  staging: str, task_num: int, file_reports: Sequence[Any]
) -> None:
  """Leaves the `FileReport`s of one reading task."""
  _write_json(staging, _TASKS, task_num, file_reports)


def write_shard_report(
  staging: str, number: int, report: Any, index: pa.Table
) -> None:
  """Leaves the `ShardReport` of a shard and its part of the index."""
  path = _path(staging, _SHARDS, number, 'parquet')
  with output_files.open_to_write(path) as file:
    pq.write_table(index, file)
  _write_json(staging, _SHARDS, number, report)


def progress(staging: str) -> tuple[int, int]:
  """Returns (reading tasks done, shards written) of a running job."""
  return len(_json_files(staging, _TASKS)), len(_json_files(staging, _SHARDS))


def missing_shards(job: GroupJob, staging: str) -> tuple[list[int], list[str]]:
  """Returns (shards not written, optional features of those that are)."""
  paths = _json_files(staging, _SHARDS)
  written = {int(posixpath.basename(path).split('.')[0]) for path in paths}
  numbers = range(job.num_shards * len(job.part_names()))
  features = []
  if paths:
    features = json.loads(output_files.read_bytes(paths[0]))[
      'optional_features'
    ]
  return [n for n in numbers if n not in written], features


def finish(job: GroupJob, num_tasks: int, staging: str) -> list[Manifest]:
  """Writes index and manifest, of every part, if nothing was lost.

  Args:
    job: What was grouped.
    num_tasks: How many reading tasks there were.
    staging: Where the shards and the reports are. Holds nothing but grouped
      corpora afterwards.

  Returns:
    One manifest, or one for every part of the split that has a record.

  Raises:
    UserError: If not one record could be grouped.
    RuntimeError: If records were lost: a fault of this program.
  """
  tasks = _read_json(staging, _TASKS)
  shards = _read_json(staging, _SHARDS)
  files = list(itertools.chain.from_iterable(tasks))
  _check(job, files, shards, len(tasks) == num_tasks)
  corpora = []
  for i, name in enumerate(job.part_names()):
    numbers = range(i * job.num_shards, (i + 1) * job.num_shards)
    directory = posixpath.join(staging, name or '')
    index = _read_index(staging, numbers)
    if not index.num_rows:
      # An empty corpus helps nobody; the other parts' manifests name this one.
      output_files.remove(directory)
      continue
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
  output_files.remove(posixpath.join(staging, _WORK))
  for directory, manifest in corpora:
    path = posixpath.join(directory, MANIFEST_NAME)
    with output_files.open_to_write(path) as file:
      file.write(manifest.to_bytes())
  return [manifest for _, manifest in corpora]


def _check(
  job: GroupJob,
  files: Sequence[_Report],
  shards: Sequence[_Report],
  all_read: bool,
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
    not all_read
    or len(files) != len(job.paths)
    or records_in != handed_on + num_read_drops
    or handed_on != stored + num_shard_drops
  ):
    raise RuntimeError(
      f'Records were lost: {records_in} read from {len(files)} of '
      f'{len(job.paths)} files, {num_read_drops} dropped, {handed_on} '
      f'handed on, {num_shard_drops} dropped from groups, {stored} '
      'written. Nothing is kept.'
    )
  if stored:
    return
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
  files: Sequence[_Report],
  shards: Sequence[_Report],
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
    ),
    shards=tuple(Shard(**shard['shard']) for shard in shards),
    options=job.options(),
    num_input_files=len(files),
    inputs=_input_files(files),
    drop_examples={reason: first for reason, (_, first) in drops.items()},
    split=job.split
    and Split(
      name=names[part], names=names, rule=splits.describe(job.split, source)
    ),
  )


def _records_out(file: _Report) -> int:
  return sum(tally['num'] for tally in file['parts'])


def _file_drops(
  files: Iterable[_Report], part: int | None = None
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
  shards: Iterable[_Report],
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


def _input_files(files: Iterable[_Report]) -> tuple[InputFile, ...]:
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
  if len(inputs) > MAX_INPUTS:
    inputs = [file for file in inputs if file.damage]
  return tuple(sorted(inputs, key=_sortable))


def _sortable(entry: InputFile | DropExample) -> list[tuple[bool, Any]]:
  return [(value is not None, value) for value in dataclasses.astuple(entry)]


def _read_index(staging: str, numbers: Iterable[int]) -> pa.Table:
  """Returns the index of some shards, sorted."""
  parts = (
    output_files.read_bytes(_path(staging, _SHARDS, number, 'parquet'))
    for number in numbers
  )
  return pa.concat_tables(
    pq.read_table(io.BytesIO(part), schema=INDEX_SCHEMA) for part in parts
  ).sort_by([('group_id', 'ascending'), ('part', 'ascending')])


def _path(staging: str, kind: str, number: int, suffix: str) -> str:
  return posixpath.join(staging, _WORK, kind, f'{number:08d}.{suffix}')


def _json_files(staging: str, kind: str) -> list[str]:
  paths = output_files.list_files(posixpath.join(staging, _WORK, kind))
  return [path for path in paths if path.endswith('.json')]


def _read_json(staging: str, kind: str) -> list[Any]:
  """Returns what the files of a kind hold, in the order of their numbers."""
  paths = _json_files(staging, kind)
  return [json.loads(output_files.read_bytes(path)) for path in paths]


def _write_json(staging: str, kind: str, number: int, value: Any) -> None:
  with output_files.open_to_write(_path(staging, kind, number, 'json')) as file:
    file.write(json.dumps(value, default=dataclasses.asdict).encode())
