"""From the reports of workers to the index and the manifest."""

import dataclasses
import importlib.metadata
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pipelines import reports, splits
from pipelines.merge_index import MergedIndex, merge_index
from pipelines.options import GroupJob
from pipelines.output import LostRecordsError, WorkDirectory
from pipelines.reports import FileReport, Plan, ShardReport, Tally
from pipelines.rows import names_of
from tff_fedfish.data import places
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.data.manifest import (
  MANIFEST_NAME,
  ORDER,
  Counts,
  DropExample,
  InputFile,
  Manifest,
  Split,
)
from tff_fedfish.errors import UserError
from tff_fedfish.version import __version__

# Only the damaged and the useless ones of more raw files are named.
_MAX_INPUTS = 10_000
_OTHER_SPLIT = 'other_split'
# Key -> packages of which another version may group otherwise.
_OF_KEYS = {
  'host': ('ada-url',),
  'owner': ('ada-url',),
  'domain': ('ada-url', 'tldextract'),
}
# Option -> reasons of drops that it may be the cause of.
_CAUSES = {
  'key': ('missing_url', 'no_host', 'missing_author'),
  'key_field': ('missing_key', 'malformed_key', 'empty_key'),
  'text_field': ('missing_text', 'malformed_text'),
}


def finish(
  job: GroupJob, num_tasks: int, plan: Plan, work: WorkDirectory
) -> list[Manifest]:
  """Writes index and manifest, of every part, if nothing was lost.

  Args:
    job: The job.
    num_tasks: How many reading tasks there were.
    plan: What was merged.
    work: Holds the shards and the reports. Gets the names of all files of the
      grouped corpora.

  Returns:
    One manifest, or one for every part of the split that has a record.

  Raises:
    UserError: If not one record could be grouped.
    RuntimeError: If records were lost: a fault of this program.
  """
  tasks = reports.read_task_reports(plan.tasks)
  files = _whole_files(file for task in tasks for file in task.files)
  shards = reports.read_shard_reports(work.path)
  all_there = len(plan.tasks) == num_tasks
  all_there &= len(shards) == job.num_all_shards()
  _check(job, files, [report for _, report in shards.values()], all_there)
  optional = job.load_source().optional_feature_names
  features = tuple(sorted(names_of(plan.features, optional)))
  manifests = []
  for i, name in enumerate(job.part_names()):
    numbers = range(i * job.num_shards, (i + 1) * job.num_shards)
    index_path = places.join(work.path, f'{i}-{INDEX_NAME}')
    parts = [reports.index_of_shard(shards[number][0]) for number in numbers]
    index = merge_index(parts, index_path)
    if index is None:
      # An empty corpus helps nobody; the other parts' manifests name this one.
      continue
    own = [shards[number][1] for number in numbers]
    manifest = _manifest(job, files, own, features, index, i)
    manifests.append(manifest)
    directory = f'{name}/' if name else ''
    for number, shard in zip(numbers, manifest.shards, strict=True):
      work.files[shards[number][0]] = directory + shard.name
    manifest_path = places.join(work.path, f'{i}-{MANIFEST_NAME}')
    places.write_bytes(manifest_path, manifest.to_bytes())
    work.files[manifest_path] = directory + MANIFEST_NAME
    work.files[index_path] = directory + INDEX_NAME
  return manifests


def _whole_files(found: Iterable[FileReport]) -> list[FileReport]:
  """Returns a report of each file, of those of its spans."""
  files: dict[str, FileReport] = {}
  for span in sorted(found, key=lambda report: (report.name, report.start)):
    whole = files.setdefault(span.name, span)
    if whole is span:
      continue
    for reason, tally in span.drops.items():
      # Lines count from the start of a span.
      line = tally.first.line + whole.records_in
      first = dataclasses.replace(tally.first, line=line)
      total = whole.drops.setdefault(reason, Tally(0, first))
      total.num += tally.num
    whole.records_in += span.records_in
    whole.parts = tuple(map(sum, zip(whole.parts, span.parts, strict=True)))
    whole.damage = whole.damage or span.damage
    whole.times_not_read += span.times_not_read
  return list(files.values())


def _check(
  job: GroupJob,
  files: Sequence[FileReport],
  shards: Collection[ShardReport],
  all_there: bool,
) -> None:
  """Raises if a record is neither stored nor counted as dropped."""
  read_drops = _add_up(files)
  num_read_drops, num_shard_drops = (
    sum(tally.num for tally in drops.values())
    for drops in (read_drops, _add_up(shards))
  )
  records_in = sum(file.records_in for file in files)
  handed_on = sum(file.records_out() for file in files)
  stored = sum(shard.num_examples for shard in shards)
  if (
    not all_there
    or len(files) != len(job.paths)
    or records_in != handed_on + num_read_drops
    or handed_on != stored + num_shard_drops
  ):
    raise LostRecordsError(
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
  raise _nothing_to_group(job, records_in, read_drops)


def _nothing_to_group(
  job: GroupJob, records_in: int, drops: dict[str, Tally]
) -> UserError:
  reasons = ', '.join(f'{tally.num} {name}' for name, tally in drops.items())
  hint, advice = '', 'Name other files'
  if drops:
    reason = max(drops, key=lambda name: drops[name].num)
    first = drops[reason].first
    hint = f' The first {reason} is record {first.line} of {first.file!r}'
    hint += f': {first.excerpt!r}.' if first.excerpt else '.'
    for option, reasons_of_option in _CAUSES.items():
      if reason in reasons_of_option and (job.fields or option == 'key'):
        advice += f', or another `--{option}`'
  return UserError(
    f'`--input` must hold records that can be grouped by {job.key}, but of '
    f'{records_in} records none could ({reasons or "empty files"}).{hint} '
    f'{advice}.'
  )


def _manifest(
  job: GroupJob,
  files: Sequence[FileReport],
  shards: Sequence[ShardReport],
  features: Sequence[str],
  index: MergedIndex,
  part: int,
) -> Manifest:
  """Returns the manifest of a part of the split, with its shards and index."""
  source = job.load_source()
  names = job.part_names()
  drops = _add_up([*files, *shards])
  num_drops = {reason: tally.num for reason, tally in drops.items()}
  if others := sum(file.records_out() - file.parts[part] for file in files):
    num_drops = dict(sorted([*num_drops.items(), (_OTHER_SPLIT, others)]))
  return Manifest(
    corpus=job.name or job.source_name,
    key=job.key,
    feature_names=(*source.feature_names, *features),
    counts=Counts(
      records_in=sum(file.records_in for file in files),
      records_out=index.num_examples,
      num_groups=index.num_groups,
      num_records=index.num_rows,
      drops=num_drops,
      num_mixed_time_groups=sum(
        shard.num_mixed_time_groups for shard in shards
      ),
      num_small_groups=sum(shard.num_small_groups for shard in shards),
      times_not_read=sum(file.times_not_read for file in files),
    ),
    shards=tuple(shard.shard for shard in shards),
    index_sha256=index.sha256,
    fingerprint=index.fingerprint,
    versions=versions(job.key),
    options=job.options(),
    order=ORDER,
    num_input_files=len(files),
    inputs=_input_files(files),
    drop_examples={reason: tally.first for reason, tally in drops.items()},
    split=job.split
    and Split(
      name=names[part], names=names, rule=splits.describe(job.split, source)
    ),
  )


def versions(key: str) -> dict[str, str]:
  """Returns the versions that decide how records are grouped."""
  packages = _OF_KEYS.get(key, ())
  found = {name: importlib.metadata.version(name) for name in packages}
  return {'fedfish': __version__, **found}


def _add_up(found: Iterable[FileReport | ShardReport]) -> dict[str, Tally]:
  """Returns how many records were dropped and the first, by reason, sorted."""
  totals: dict[str, Tally] = {}
  for report in found:
    for reason, tally in report.drops.items():
      total = totals.get(reason, Tally(0, tally.first))
      first = min(total.first, tally.first, key=_sortable)
      totals[reason] = Tally(total.num + tally.num, first)
  return dict(sorted(totals.items()))


def _input_files(files: Sequence[FileReport]) -> tuple[InputFile, ...]:
  """Returns the raw files, in an order that their paths do not change."""
  inputs = [
    InputFile(
      name=file.name,
      records_in=file.records_in,
      records_out=file.records_out(),
      damage=file.damage,
    )
    for file in files
  ]
  if len(files) > _MAX_INPUTS:
    inputs = [file for file in inputs if file.damage or file.is_useless]
  return tuple(sorted(inputs, key=_sortable))


def _sortable(entry: InputFile | DropExample) -> list[tuple[bool, Any]]:
  return [(value is not None, value) for value in vars(entry).values()]
