"""The manifest of a grouped corpus: what it holds, and what was dropped why."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_fedfish.errors import UserError

SCHEMA_VERSION = 1
MANIFEST_NAME = 'manifest.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
  """What went in and what came out.

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
  """How many bytes of the file, as it is stored, could be used."""


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
  """Which part of a corpus this is, where the corpus was split."""

  name: str
  """Such as 'train' or 'held_out'."""
  names: tuple[str, ...]
  """All parts, each a grouped corpus of its own beside this one."""
  rule: str
  """How the parts are told apart, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Everything `manifest.json` says; written last, so it marks completeness."""

  corpus: str
  """The source, such as 'c4'."""
  key: str
  """What examples of a group share, such as 'host'."""
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
  """By reason."""
  split: Split | None = None
  """None where the corpus is whole."""
  index_sha256: str = ''
  """Empty in manifests of earlier versions."""
  schema_version: int = SCHEMA_VERSION

  def to_bytes(self) -> bytes:
    """Returns what `manifest.json` holds; equal manifests give equal bytes."""
    value = {'schema_version': self.schema_version} | dataclasses.asdict(self)
    return (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode()


def read_manifest(directory: str | os.PathLike) -> Manifest:
  """Reads and checks the manifest of a grouped corpus.

  Args:
    directory: A directory that `fedfish group` wrote.

  Raises:
    UserError: If it is no grouped corpus, or one of a newer schema.
  """
  directory = pathlib.Path(directory)
  path = directory / MANIFEST_NAME
  if not path.is_file():
    found = (
      f'has no {MANIFEST_NAME}'
      if directory.is_dir()
      else ('is a file' if directory.exists() else 'does not exist')
    )
    raise _not_a_corpus(directory, found)
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
    version = value['schema_version']
    if not isinstance(version, int):
      raise TypeError('schema_version is not a number')
  except (ValueError, KeyError, TypeError) as error:
    raise _not_a_corpus(
      directory, f'has an unreadable {MANIFEST_NAME}'
    ) from error
  if version > SCHEMA_VERSION:
    raise UserError(
      f'{str(directory)!r} must be a grouped corpus of schema version '
      f'{SCHEMA_VERSION} or older, but was written by a newer version of '
      f'fedfish (schema version {version}). Upgrade fedfish, or group the '
      'corpus again.'
    )
  try:
    return _from_json(value)
  except (KeyError, TypeError) as error:
    raise _not_a_corpus(
      directory, f'has an unreadable {MANIFEST_NAME}'
    ) from error


def _from_json(value: dict[str, Any]) -> Manifest:
  return Manifest(
    schema_version=value['schema_version'],
    corpus=value['corpus'],
    key=value['key'],
    feature_names=tuple(value['feature_names']),
    counts=Counts(**value['counts']),
    shards=tuple(Shard(**shard) for shard in value['shards']),
    options=value['options'],
    num_input_files=value.get('num_input_files', len(value['inputs'])),
    inputs=tuple(InputFile(**file) for file in value['inputs']),
    drop_examples={
      reason: DropExample(**example)
      for reason, example in value['drop_examples'].items()
    },
    split=_split_from_json(value.get('split')),
    index_sha256=value.get('index_sha256', ''),
  )


def _split_from_json(value: dict[str, Any] | None) -> Split | None:
  if value is None:
    return None
  return Split(**value | {'names': tuple(value['names'])})


def _not_a_corpus(directory: pathlib.Path, found: str) -> UserError:
  return UserError(
    f'{str(directory)!r} is not a grouped corpus: it {found}. Run `fedfish '
    'group` to make one, or name its output directory.'
  )
