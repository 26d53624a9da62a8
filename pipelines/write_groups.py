"""Writes one shard: sorted group records, and the rows of its index."""

import collections
import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipelines.read_groups import Block
from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.manifest import Shard
from tff_fedfish.files import write_atomically


class _Example(NamedTuple):
  """A stored example; tuples of these sort into the stored order."""

  timestamp: bytes
  url: bytes
  sha256: bytes
  serialized: bytes
  num_words: int


def shard_name(shard_num: int, num_shards: int) -> str:
  """Returns the shard's file name."""
  return f'groups-{shard_num:05d}-of-{num_shards:05d}.tfrecord'


def write_shard(
  directory: str | os.PathLike,
  shard_num: int,
  num_shards: int,
  blocks: Iterable[Block],
  value_names: Sequence[str],
  feature_names: Sequence[str],
  max_record_bytes: int,
) -> tuple[Shard, pa.Table]:
  """Writes the groups of one shard; the same bytes for any order of blocks.

  Args:
    directory: Where to write.
    shard_num: 0-based number of the shard.
    num_shards: How many shards there are.
    blocks: All records of the shard.
    value_names: What the values of a record stand for.
    feature_names: The features to store; a record's missing values become
      empty ones.
    max_record_bytes: A group whose examples take more is stored in several
      records.

  Returns:
    The shard, and its part of the index, of `INDEX_SCHEMA`.
  """
  group_id_to_examples = _encode(blocks, value_names, feature_names)
  name = shard_name(shard_num, num_shards)
  rows = []
  offset = 0
  with write_atomically(pathlib.Path(directory) / name, 'wb') as file:
    hashing = _HashingWriter(file)
    for group_id in sorted(group_id_to_examples):
      # Let go of a group once it is written.
      examples = sorted(group_id_to_examples.pop(group_id))
      parts = list(_split(examples, max_record_bytes))
      for part, part_examples in enumerate(parts):
        payload = records.encode_group_record(
          group_id,
          [example.serialized for example in part_examples],
          part if len(parts) > 1 else None,
        )
        num_words = sum(example.num_words for example in part_examples)
        rows.append(
          (
            group_id,
            part,
            shard_num,
            offset,
            len(part_examples),
            len(payload),
            num_words,
          )
        )
        offset += records.write_record(hashing, payload)
  columns = zip(*rows, strict=True) if rows else [[]] * len(INDEX_SCHEMA)
  index = pa.table(
    [
      pa.array(column, field.type)
      for column, field in zip(columns, INDEX_SCHEMA, strict=True)
    ],
    schema=INDEX_SCHEMA,
  )
  shard = Shard(
    name=name,
    sha256=hashing.hexdigest(),
    num_bytes=offset,
    num_records=len(rows),
  )
  return shard, index


def _encode(
  blocks: Iterable[Block],
  value_names: Sequence[str],
  feature_names: Sequence[str],
) -> dict[bytes, list[_Example]]:
  group_id_to_examples = collections.defaultdict(list)
  for block in blocks:
    for group_id, group in block:
      for values in group:
        features = dict(zip(value_names, values, strict=True))
        serialized = records.encode_example(
          {name: features[name] or b'' for name in feature_names}
        )
        group_id_to_examples[group_id].append(
          _Example(
            features['timestamp'],
            features['url'],
            hashlib.sha256(serialized).digest(),
            serialized,
            len(features['text'].decode().split()),
          )
        )
  return group_id_to_examples


def _split(
  examples: Sequence[_Example], max_record_bytes: int
) -> Iterator[list[_Example]]:
  """Cuts a group into parts; an example larger than the limit stands alone."""
  part, num_bytes = [], 0
  for example in examples:
    size = len(example.serialized)
    if part and num_bytes + size > max_record_bytes:
      yield part
      part, num_bytes = [], 0
    part.append(example)
    num_bytes += size
  yield part


class _HashingWriter:
  """Passes bytes on to a file, and computes their SHA-256."""

  def __init__(self, file):
    self._file = file
    self._hash = hashlib.sha256()

  def write(self, data: bytes) -> None:
    self._hash.update(data)
    self._file.write(data)

  def hexdigest(self) -> str:
    return self._hash.hexdigest()
