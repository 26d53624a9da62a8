"""From what the workers left behind to the index and the manifest."""

import dataclasses
import glob
import json
import os
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.job import GroupJob
from pipelines.source import load_source
from tff_fedfish.data.corpus_index import INDEX_NAME, INDEX_SCHEMA
from tff_fedfish.data.manifest import (
  Counts,
  DropExample,
  InputFile,
  Manifest,
  Shard,
)
from tff_fedfish.errors import UserError
from tff_fedfish.files import write_atomically, write_json

# Inside the unfinished output: one small file per raw file and per shard.
_WORK = '.work'
_REPORTS = 'reports'
_PARTS = 'parts'


def make_work_directory(staging: pathlib.Path) -> pathlib.Path:
  """Returns a new directory for what `finish` will put together."""
  work = staging / _WORK
  for name in (_REPORTS, _PARTS):
    (work / name).mkdir(parents=True)
  return work


def write_report(
  work: str | os.PathLike, file_num: int, report: dict[str, Any]
) -> None:
  """Leaves the report of one raw file, a `FileReport` as a dict.

  A repeated call, as by a runner that retries, replaces the file by itself.
  """
  write_json(pathlib.Path(work) / _REPORTS / f'{file_num:08d}.json', report)


def write_part(
  work: str | os.PathLike,
  shard_num: int,
  shard: Shard,
  index: pa.Table,
  optional_features: Sequence[str],
) -> None:
  """Leaves what is to be known of one shard; may be repeated, too."""
  path = pathlib.Path(work) / _PARTS / f'{shard_num:05d}'
  with write_atomically(path.with_suffix('.parquet'), 'wb') as file:
    pq.write_table(index, file)
  part = {
    'shard': dataclasses.asdict(shard),
    'optional_features': list(optional_features),
  }
  write_json(path.with_suffix('.json'), part)


def progress(output: str | os.PathLike) -> tuple[int, int]:
  """Returns (raw files read, shards written) of a running job."""
  output = pathlib.Path(output)
  done = [0, 0]
  for work in output.parent.glob(f'.{glob.escape(output.name)}.*/{_WORK}'):
    for i, name in enumerate((_REPORTS, _PARTS)):
      done[i] += len(_sorted(work / name, '.json'))
  return done[0], done[1]


def finish(
  job: GroupJob, staging: pathlib.Path, work: pathlib.Path
) -> Manifest:
  """Writes the index and returns the manifest, if nothing was lost.

  Args:
    job: What was grouped.
    staging: Where the shards are.
    work: Where reports and parts are.

  Raises:
    UserError: If not one record could be grouped.
    RuntimeError: If records were lost: a fault of this program.
  """
  reports = [_read_json(path) for path in _sorted(work / _REPORTS, '.json')]
  parts = [_read_json(path) for path in _sorted(work / _PARTS, '.json')]
  index = pa.concat_tables(
    pq.read_table(path, schema=INDEX_SCHEMA)
    for path in _sorted(work / _PARTS, '.parquet')
  ).sort_by([('group_id', 'ascending'), ('part', 'ascending')])
  counts = _count(reports, index)
  _check(job, counts, len(reports), len(parts))
  pq.write_table(index, staging / INDEX_NAME)
  source = load_source(job.source_name)
  return Manifest(
    corpus=job.source_name,
    key=job.key,
    feature_names=(
      *source.feature_names,
      *parts[0]['optional_features'],
    ),
    counts=counts,
    shards=tuple(Shard(**part['shard']) for part in parts),
    options={
      'num_shards': job.num_shards,
      'max_record_bytes': job.max_record_bytes,
    },
    inputs=_input_files(reports),
    drop_examples=_first_drops(reports),
  )


def _count(reports: Sequence[dict], index: pa.Table) -> Counts:
  drops = sum((Counter(report['drops']) for report in reports), Counter())
  return Counts(
    records_in=sum(report['records_in'] for report in reports),
    records_out=pc.sum(index.column('num_examples')).as_py() or 0,
    num_groups=pc.sum(pc.equal(index.column('part'), 0)).as_py() or 0,
    num_records=index.num_rows,
    drops=dict(sorted(drops.items())),
  )


def _check(
  job: GroupJob, counts: Counts, num_reports: int, num_parts: int
) -> None:
  num_dropped = sum(counts.drops.values())
  if (num_reports, num_parts) != (len(job.paths), job.num_shards) or (
    counts.records_in != counts.records_out + num_dropped
  ):
    raise RuntimeError(
      f'Records were lost: {counts.records_in} read from {num_reports} of '
      f'{len(job.paths)} files, {counts.records_out} written to {num_parts} '
      f'of {job.num_shards} shards, {num_dropped} dropped. Nothing is kept.'
    )
  if not counts.records_out:
    found = ', '.join(f'{n} {reason}' for reason, n in counts.drops.items())
    raise UserError(
      f'`--input` must hold records that can be grouped by {job.key}, but of '
      f'{counts.records_in} records none could ({found or "empty files"}). '
      'Name other files, or another `--key`.'
    )


def _input_files(reports: Sequence[dict]) -> tuple[InputFile, ...]:
  """Returns the raw files, in an order that their paths do not change."""
  fields = [field.name for field in dataclasses.fields(InputFile)]
  rows = [tuple(report[name] for name in fields) for report in reports]
  return tuple(
    InputFile(**dict(zip(fields, row, strict=True)))
    for row in sorted(rows, key=lambda row: (*row[:-1], row[-1] or ''))
  )


def _first_drops(reports: Sequence[dict]) -> dict[str, DropExample]:
  """Returns the smallest (file name, line) of every reason."""
  reason_to_first = {}
  for report in reports:
    for reason, line in report['first_drops'].items():
      found = (report['name'], line)
      reason_to_first[reason] = min(found, reason_to_first.get(reason, found))
  return {
    reason: DropExample(file=file, line=line)
    for reason, (file, line) in sorted(reason_to_first.items())
  }


def _sorted(directory: pathlib.Path, suffix: str) -> list[pathlib.Path]:
  # A name that begins with a dot is of a file that is still being written.
  return sorted(
    path
    for path in directory.glob(f'*{suffix}')
    if not path.name.startswith('.')
  )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text(encoding='utf-8'))
