"""The manifest of a grouped corpus: what it holds, and what was dropped why.

Nothing but the manifest knows the source, the key, the options and the raw
files. `find_fault` therefore notices only values of these that cannot be.
"""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tff_fedfish import files, json_values
from tff_fedfish.errors import UserError

SCHEMA_VERSION = 1
ORDER = 2
"""See `Manifest.order`."""
_PLAIN_NAME = re.compile(r'[\w-][\w.-]{0,199}', re.ASCII)
MANIFEST_NAME = 'manifest.json'
MAX_INPUTS = 10_000
"""Only the damaged ones of more raw files are named."""

_COPY_COMMANDS = {
  's3': 'aws s3 cp --recursive',
  'gs': 'gcloud storage rsync --recursive',
  'hdfs': 'hdfs dfs -get',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
  """Numbers of what went in and what came out.

  `records_in = records_out + sum(drops.values())` always holds.
  """

  records_in: int
  """Records read from the raw files."""
  records_out: int
  """Records stored as examples."""
  num_groups: int
  num_records: int
  """TFRecords over all shards: one per group, or per part of a group."""
  drops: Mapping[str, int]
  """Dropped records by reason."""
  num_mixed_time_groups: int = 0
  """Groups that hold times of several kinds: see `time_order`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
  """One TFRecord file."""

  name: str
  sha256: str
  num_bytes: int
  num_records: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFile:
  """One raw file, by its name and, where needed, some directories above it."""

  name: str
  records_in: int
  records_out: int
  damage: str | None = None
  """Why reading stopped before the end, if it did: a reason in `drops`."""
  damage_byte: int | None = None
  """Bytes of the file, as it is stored, that could be used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropExample:
  """The first record that was dropped for one reason."""

  file: str | None = None
  line: int | None = None
  """1-based number of the line, row or post in its file."""
  group: str | None = None
  """For records dropped from a whole group, such as duplicates, instead of
  file and line."""
  excerpt: str = ''
  """The beginning of what was dropped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
  """The part of a corpus that this is, where the corpus was split."""

  name: str
  """Such as 'train' or 'held_out'."""
  names: tuple[str, ...]
  """All parts, each a grouped corpus of its own beside this one."""
  rule: str
  """Rule that tells the parts apart, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Everything `manifest.json` says; written last, so it marks completeness."""

  corpus: str
  """The source, such as 'c4'; for json_lines, the name that it was given."""
  key: str
  """Key that the examples of a group share, such as 'host'; for json_lines the
  path of the field."""
  feature_names: tuple[str, ...]
  """The bytes features that every stored example has."""
  counts: Counts
  shards: tuple[Shard, ...]
  options: Mapping[str, Any]
  """Options that shaped the output, without paths."""
  num_input_files: int
  inputs: tuple[InputFile, ...]
  """All raw files or, of very many, those that are damaged."""
  drop_examples: Mapping[str, DropExample]
  """First dropped record by reason."""
  split: Split | None = None
  """None where the corpus is whole."""
  order: int = 1
  """How the examples of a group are sorted: 2, by (`time_order.time_key`,
  timestamp, url, SHA-256); 1, in earlier versions, by the last three."""
  index_sha256: str = ''
  """Empty in manifests of earlier versions."""
  fingerprint: str = ''
  """See `corpus_index.fingerprint`. Empty in manifests of earlier versions."""
  schema_version: int = SCHEMA_VERSION

  @property
  def source(self) -> str:
    """Kind of the raw files, such as 'c4' or 'json_lines'."""
    return str(self.options.get('source', self.corpus))

  def to_bytes(self) -> bytes:
    """Returns what `manifest.json` holds; equal manifests give equal bytes."""
    value = {'schema_version': self.schema_version} | dataclasses.asdict(self)
    return (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode()


def read_manifest(directory: str | os.PathLike) -> Manifest:
  """Reads and checks the manifest of a grouped corpus.

  Raises:
    UserError: If `directory` is no grouped corpus, or one of a newer schema.
  """
  directory = pathlib.Path(directory)
  path = directory / MANIFEST_NAME
  if not path.is_file():
    # A path keeps one of the two slashes.
    remote = re.fullmatch(r'([a-z][a-z0-9]+):/([^/].*)', str(directory))
    if remote and not directory.exists():
      raise _not_local(*remote.groups())
    found = (
      f'has no {MANIFEST_NAME}'
      if directory.is_dir()
      else ('is a file' if directory.exists() else 'does not exist')
    )
    raise _not_a_corpus(directory, found)
  try:
    manifest = files.read_json(path, schema=Manifest, upgrade=_upgrade)
    _require_file_names(manifest)
  except files.NewerSchemaError as error:
    raise UserError(
      f'{str(directory)!r} must be a grouped corpus of schema version '
      f'{SCHEMA_VERSION} or older, but was written by a newer version of '
      f'fedfish (schema version {error.version}). Upgrade fedfish, or group '
      'the corpus again.'
    ) from error
  except ValueError as error:
    # What is no JSON object at all is not worth more words.
    is_told = isinstance(error, json_values.WrongValueError) and error.name
    raise _not_a_corpus(
      directory,
      f'has an unreadable {MANIFEST_NAME}{f" ({error})" if is_told else ""}',
    ) from error
  return manifest


def _not_local(scheme: str, path: str) -> UserError:
  url, name = f'{scheme}://{path}', path.rstrip('/').rpartition('/')[2]
  command = _COPY_COMMANDS.get(scheme)
  example = f', such as by `{command} {url} {name}`' if command else ' to one'
  return UserError(
    f'A grouped corpus is read from a disk, but {url!r} is not on one. Copy it'
    f'{example}, check the copy by `fedfish verify`, and name that.'
  )


def _upgrade(value: dict[str, Any]) -> dict[str, Any]:
  """Adds what earlier versions did not write."""
  inputs = value.get('inputs')
  num_inputs = len(inputs) if isinstance(inputs, list) else 0
  return {'num_input_files': num_inputs} | value


def _require_file_names(manifest: Manifest) -> None:
  """Shards are read from inside the directory, and from nowhere else."""
  for i, shard in enumerate(manifest.shards):
    json_values.require(
      bool(_PLAIN_NAME.fullmatch(shard.name)),
      f'shards[{i}].name',
      'the name of a file',
      shard.name,
    )


def _not_a_corpus(directory: pathlib.Path, found: str) -> UserError:
  return UserError(
    f'{str(directory)!r} is not a grouped corpus: it {found}. Run `fedfish '
    'group` to make one, or name its output directory.'
  )


RANGES = {
  # Protocol buffers cannot hold more than 2 GiB; leave room for the last one.
  'max_record_bytes': (1, 1 << 30),
  'max_document_bytes': (1, 1 << 30),
  'max_examples_per_group': (1, 1 << 62),
  'min_examples_per_group': (1, 1 << 62),
  'drop_duplicates': (False, True),
}
"""Options of `fedfish group` -> their lowest and their highest value."""

GROUP_DROPS = {
  'duplicate_text': 'drop_duplicates',
  'small_group': 'min_examples_per_group',
  'group_cap': 'max_examples_per_group',
}
"""Reasons of drops from groups -> the option that asks for them."""


def find_fault(manifest: Manifest) -> str | None:
  """Returns the first thing that cannot be so, or None.

  Args:
    manifest: A manifest whose values have the right types.

  Returns:
    Text that goes on after the manifest's path, such as "must ..., but ...".
  """
  checks = (_grouping_checks, _option_checks, _input_checks, _drop_checks)
  return next(
    (
      f'must have {what}, but has {found!r}'
      for check in checks
      for is_right, what, found in check(manifest)
      if not is_right
    ),
    None,
  )


def find_wrong_count(manifest: Manifest, **held: int) -> str | None:
  """Returns the first count that is not what the corpus holds, or None.

  Args:
    manifest: See `find_fault`.
    **held: Fields of `Counts`, and what the shards hold of each.

  Returns:
    See `find_fault`.
  """
  counts = manifest.counts
  # What the manifest says of itself, once records_out is known to be right.
  held['records_in'] = counts.records_out + sum(counts.drops.values())
  for name, found in held.items():
    if (value := getattr(counts, name)) != found:
      return (
        f'must say {name} {found}, which is what the corpus holds'
        f'{" and dropped" * (name == "records_in")}, but says {value}'
      )
  # Of very many files, only the damaged ones are listed.
  has_all = len(manifest.inputs) == manifest.num_input_files
  num_read = sum(file.records_in for file in manifest.inputs)
  if has_all and num_read != counts.records_in:
    return (
      'must say of its inputs that their records_in are '
      f'{counts.records_in} together, as it says of the corpus, but they are '
      f'{num_read}'
    )
  return None


_Checks = Iterator[tuple[bool, str, Any]]
"""(Whether something is right, what it must be, what it is)."""


def _grouping_checks(manifest: Manifest) -> _Checks:
  # Light modules.
  from pipelines.keys import KEYS
  from pipelines.source import SOURCE_NAMES

  corpus, key, options = manifest.corpus, manifest.key, manifest.options
  yield manifest.source in SOURCE_NAMES, 'a `corpus` that exists', corpus
  if manifest.source != 'json_lines':
    yield key in KEYS, f'a `key` of {", ".join(KEYS)}', key
    feature, features = _key_feature(key), manifest.feature_names
    yield feature in features, f'the feature {feature} of its `key`', features
    return
  yield bool(corpus), 'a `corpus` with a name', corpus
  for name in ('key_field', 'text_field', 'time_field'):
    field = options.get(name)
    is_right = isinstance(field, str) and field != ''
    is_right |= field is None and name == 'time_field'
    yield is_right, f'the name of a field as `options.{name}`', field
  field = options['key_field']
  yield key == field, f'the `key` {field!r} of its `options`', key


def _key_feature(key: str) -> str:
  return 'author' if key == 'author' else 'url'


def _option_checks(manifest: Manifest) -> _Checks:
  yield (
    1 <= manifest.order <= ORDER,
    f'an `order` up to {ORDER}',
    manifest.order,
  )
  options, num_shards = manifest.options, len(manifest.shards)
  found = options.get('num_shards')
  is_right = type(found) is int and found == num_shards
  yield is_right, f'the `options.num_shards` {num_shards}, as it lists', found
  for name, (low, high) in RANGES.items():
    # Earlier versions did not write all.
    value = options.get(name, low)
    is_right = type(value) is type(low) and low <= value <= high
    is_right |= value is None and name == 'max_examples_per_group'
    yield is_right, f'{low} to {high} as `options.{name}`', value


def _input_checks(manifest: Manifest) -> _Checks:
  inputs, num_files = manifest.inputs, manifest.num_input_files
  is_right = num_files == len(inputs) > 0 or (
    num_files > max(MAX_INPUTS, len(inputs))
    and all(file.damage for file in inputs)
  )
  yield is_right, f'the `num_input_files` {len(inputs)}, as it lists', num_files
  names = [file.name for file in inputs]
  is_right = all(
    part not in ('', '.', '..') for name in names for part in name.split('/')
  )
  # In this order, so that the job's own does not matter.
  is_right &= names == sorted(set(names))
  yield is_right, 'relative paths, sorted, as names of its `inputs`', names
  for file in inputs:
    is_right = file.records_out <= file.records_in
    is_right &= not file.damage or file.damage in manifest.counts.drops
    yield is_right, 'counts and damage of its `inputs` that can be', file


def _drop_checks(manifest: Manifest) -> _Checks:
  drops, options = manifest.counts.drops, manifest.options
  examples = manifest.drop_examples
  yield examples.keys() == drops.keys(), 'an example of each drop', [*examples]
  file_to_records = {file.name: file.records_in for file in manifest.inputs}
  has_all = len(file_to_records) == manifest.num_input_files
  reasons = (*GROUP_DROPS, 'other_split')
  for reason, example in examples.items():
    option = GROUP_DROPS.get(reason)
    if option is not None:
      what = f'an `options.{option}` that explains its drops by {reason}'
      yield bool(options.get(option)), what, options.get(option)
      is_right = example.group is not None
    else:
      is_right = example.file is not None and (example.line or 0) >= 1
      if has_all and is_right:
        is_right = example.line <= file_to_records.get(example.file, 0)
    yield is_right, f'an example of {reason} in one of its `inputs`', example
  if has_all:
    # What reading hands on is stored, or dropped from a group, or is another
    # part's.
    num_handed_on = manifest.counts.records_out
    num_handed_on += sum(drops.get(reason, 0) for reason in reasons)
    found = sum(file.records_out for file in manifest.inputs)
    what = f'the `records_out` {num_handed_on} of its `inputs` together'
    yield found == num_handed_on, what, found
