"""Checks that a grouped corpus is whole: every byte, record and count.

Reads every shard once, with one record in memory beside the index.
"""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable
from typing import Any, BinaryIO

from tff_fedfish.data import corpus_index, places, records
from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.data.corpus_index import FINGERPRINTED, INDEX_NAME
from tff_fedfish.data.grouped_corpus import (
  Example,
  GroupedCorpus,
  decode_record,
)
from tff_fedfish.data.manifest import ADVICE, MANIFEST_NAME, Manifest
from tff_fedfish.errors import UserError

_ROW = f'row ({", ".join(corpus_index.INDEX_SCHEMA.names)})'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
  """Amounts of a corpus that were read and found right."""

  num_shards: int
  num_groups: int
  num_records: int
  num_examples: int
  num_words: int
  num_bytes: int
  """Bytes of the shards, frames included."""


def verify_corpus(
  directory: str | os.PathLike,
  on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> Checked:
  """Reads a grouped corpus once, and stops at the first thing that is wrong.

  Checks the SHA-256 of manifest, index and shards, the checksum of every frame,
  the features of every example and its text's encoding, that every record is
  the one that the index names, and the counts of the manifest. `on_bytes` is
  called after each record with its length in the shard.

  Raises:
    UserError: If anything is wrong.
  """
  corpus = GroupedCorpus(directory)
  _check_index(corpus)
  manifest = corpus.manifest
  rows = corpus.stored_rows('num_examples', 'num_bytes', 'num_words')
  for shard_num, shard in enumerate(manifest.shards):
    path = places.join(corpus.directory, shard.name)
    with places.open_file(path) as file:
      hashed = _HashedFile(file)
      for offset, payload in records.iterate_records(hashed, path):
        client_id, part, examples = decode_record(payload, path, offset)
        num_words = _count_words(client_id, examples, manifest)
        stored = client_id, part, shard_num, offset
        stored += len(examples), len(payload), num_words
        _, row = next(rows, (0, None))
        _require(corpus, INDEX_NAME, _ROW, stored, row)
        on_bytes(records.frame_size(len(payload)))
    sha256 = hashed.hash.hexdigest()
    _require(corpus, shard.name, 'SHA-256', shard.sha256, sha256)
  _, row = next(rows, (0, None))
  _require(corpus, INDEX_NAME, _ROW, None, row)
  # Its columns are read again.
  del rows
  # Every record is the one that the index names.
  checked = Checked(
    num_shards=len(manifest.shards),
    num_groups=len(corpus.client_ids),
    num_records=len(corpus.locations.offsets),
    num_examples=int(corpus.sizes('num_examples').sum()),
    num_words=int(corpus.sizes('num_words').sum()),
    num_bytes=sum(shard.num_bytes for shard in manifest.shards),
  )
  _check_counts(corpus, checked)
  return checked


class _HashedFile:
  """A file that can only be read on, and the hash of what was read."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self.hash = hashlib.sha256()

  def read(self, size: int) -> bytes:
    data = self._file.read(size)
    self.hash.update(data)
    return data


def _check_index(corpus: GroupedCorpus) -> None:
  """Raises a UserError if the index was changed or is not sorted."""
  if required := corpus.manifest.index_sha256:
    found = corpus_index.index_sha256(corpus.directory)
    _require(corpus, INDEX_NAME, 'SHA-256', required, found)
  if any(a >= b for a, b in itertools.pairwise(corpus.client_ids)):
    path = places.join(corpus.directory, INDEX_NAME)
    raise UserError(
      f'{path!r} must be sorted by group id, but is not. {ADVICE}'
    )


def _count_words(
  client_id: bytes, examples: list[Example], manifest: Manifest
) -> int:
  """Returns the words of a record; raises if its examples are other ones."""
  num_words = 0
  try:
    for example in examples:
      if example.keys() != set(manifest.feature_names):
        raise ValueError(f'it has {", ".join(example) or "none"}')
      num_words += len(example['text'].decode().split())
  except ValueError as error:
    raise UserError(
      f'Group {client_id_to_text(client_id)!r} must have examples of '
      f'{", ".join(manifest.feature_names)}, the text in UTF-8, but one is '
      f'none ({error}). {ADVICE}'
    ) from error
  return num_words


def _check_counts(corpus: GroupedCorpus, checked: Checked) -> None:
  """Raises a UserError if the manifest counts anything else."""
  manifest, counts = corpus.manifest, corpus.manifest.counts
  num_dropped = sum(counts.drops.values())
  for name, required, said in (
    ('records_in', checked.num_examples + num_dropped, counts.records_in),
    ('records_out', checked.num_examples, counts.records_out),
    ('num_groups', checked.num_groups, counts.num_groups),
    ('num_records', checked.num_records, counts.num_records),
  ):
    _require(corpus, MANIFEST_NAME, name, required, said)
  if manifest.fingerprint:
    sizes = map(corpus.sizes, FINGERPRINTED)
    required = corpus_index.fingerprint(corpus.client_ids, sizes)
    said = manifest.fingerprint
    _require(corpus, MANIFEST_NAME, 'fingerprint', required, said)


def _require(
  corpus: GroupedCorpus, name: str, what: str, required: Any, found: Any
) -> None:
  """Raises a UserError about a file of the corpus, unless both are equal."""
  if found != required:
    path = places.join(corpus.directory, name)
    raise UserError(
      f'{path!r} must have the {what} {required}, but has {found}. {ADVICE}'
    )
