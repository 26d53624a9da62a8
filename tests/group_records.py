"""Records that tests write and read as Protocol Buffers hold them."""

import os
from collections.abc import Iterator, Mapping

from tff_fedfish.data import records


def encode_example(features: Mapping[str, bytes]) -> bytes:
  """Returns a serialized `tf.train.Example` of one bytes value per feature."""
  return records.example_encoder(tuple(features))(tuple(features.values()))


def read_group_records(
  path: str | os.PathLike,
) -> Iterator[records.GroupRecord]:
  """Yields the groups of our shards, and of those of Dataset Grouper."""
  with open(path, 'rb') as file:
    for _, payload in records.iterate_records(file, path):
      yield records.decode_group_record(payload)
