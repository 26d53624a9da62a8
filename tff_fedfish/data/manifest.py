"""The manifest of a grouped corpus: contents, options and dropped records.

`manifest.json` holds the SHA-256 of its other values, which finds every change.
Manifests of earlier versions have none and are read as they are.
"""

import dataclasses
import errno
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from tff_fedfish import files, json_values
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

SCHEMA_VERSION = 1
ORDER = 2
"""See `Manifest.order`."""
MANIFEST_NAME = 'manifest.json'
TOKEN_STORE_NAME = 'token_store.json'
"""In place of a manifest it marks the tokens of a corpus; see `token_store`."""
ADVICE = 'Copy the directory again, or run `fedfish group` again.'
_NO_FILE = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_OF_DEMO = (
  'runs/demo/corpora/debian_descriptions',
  'runs/demo/corpora/sotu_by_president',
)
_PLAIN_NAME = re.compile(r'[\w-][\w.-]{0,199}', re.ASCII)


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
  num_small_groups: int = 0
  """Groups that `min_examples_per_group` dropped; not told by earlier versions.
  """
  times_not_read: int = 0
  """Records, of all parts of a split, that are stored without their time, which
  is neither text nor a number. Written only if there are any."""


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

  @property
  def is_useless(self) -> bool:
    """Whether the file has records, but none that could be used."""
    return self.records_in - bool(self.damage) > 0 == self.records_out


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
  """All raw files or, of very many, the damaged and the useless ones."""
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
  versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  """Versions of fedfish and of the packages that tell keys. Empty in manifests
  of earlier versions."""
  schema_version: int = SCHEMA_VERSION

  @property
  def source(self) -> str:
    """Kind of the raw files, such as 'c4' or 'json_lines'."""
    return str(self.options.get('source', self.corpus))

  def to_bytes(self) -> bytes:
    """Returns what `manifest.json` holds; equal manifests give equal bytes."""
    value = {'schema_version': self.schema_version} | dataclasses.asdict(self)
    if not self.counts.times_not_read:
      # Manifests of earlier versions stay equal.
      del value['counts']['times_not_read']
    if not self.versions:
      del value['versions']
    value = files.with_hash(value)
    return (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode()


def read_manifest(directory: str | os.PathLike) -> Manifest:
  """Reads and checks the manifest of a grouped corpus.

  Raises:
    UserError: If `directory` is no grouped corpus, is one of a newer schema, or
      its manifest was changed.
    OSError: If the manifest is there but cannot be read.
  """
  directory = places.directory_of(directory)
  path = places.join(directory, MANIFEST_NAME)
  # A store that does not answer is known within seconds.
  places.size(path, is_patient=False)
  try:
    content = places.read_bytes(path)
  except OSError as error:
    # An error of a store has no number.
    if not (isinstance(error, FileNotFoundError) or error.errno in _NO_FILE):
      raise
    raise _not_a_corpus(directory) from error
  with files.explained(path, 'the manifest of a grouped corpus', ADVICE):
    value = files.parse_json(content)
    manifest = files.from_json_object(value, schema=Manifest, upgrade=_upgrade)
    _require_file_names(manifest)
  return manifest


def _upgrade(value: dict[str, Any]) -> dict[str, Any]:
  """Checks the hash, and adds what earlier versions did not write."""
  if 'sha256' in value:
    files.require_hash(value)
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


def _not_a_corpus(directory: str | os.PathLike) -> UserError:
  if places.size(places.join(directory, TOKEN_STORE_NAME)) is not None:
    return UserError(
      f'{str(directory)!r} must be a grouped corpus, but holds the tokens of '
      'one. Name the corpus, or, for `train`, `evaluate` and `generate`, '
      'tokens on a local disk.'
    )
  found = f'has no {MANIFEST_NAME}'
  advice = (
    'Run `fedfish group` to make one, or name its output directory (of '
    '`train`: `--config.data.directory`).'
  )
  if not places.is_remote(directory) and not os.path.isdir(directory):
    found = 'is a file' if os.path.exists(directory) else 'does not exist'
    if not os.path.isabs(directory):
      found = f'{found} in {os.getcwd()!r}'
    if str(directory) in _OF_DEMO:
      advice = 'Run `fedfish demo` here to make it, or name another corpus.'
  return UserError(
    f'{str(directory)!r} is not a grouped corpus: it {found}. {advice}'
  )
