"""Random access to the groups of a grouped corpus, by client id."""

import functools
import heapq
import itertools
import operator
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tff_fedfish.data import corpus_index, places, records
from tff_fedfish.data.client_ids import ClientIds
from tff_fedfish.data.corpus_index import INDEX_NAME, RecordLocations
from tff_fedfish.data.manifest import ADVICE, Manifest, read_manifest
from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  import tensorflow as tf

# Read at a time around one record, from a store.
_RECORD_BYTES = 1 << 16
# Read at a time of the shards that are read from beginning to end.
_STREAM_BYTES = 16 << 20

Example = dict[str, bytes]
"""The values of one example by feature name."""


class GroupedCorpus:
  """A `Corpus` that `fedfish group` wrote; every group is a client.

  Opening reads the manifest and, of the index, what is needed to find records;
  sizes and shards are read when they are asked for. None of it imports
  TensorFlow. Instances hold no open files: threads may share one, and processes
  may be handed one.

  Methods that take a client id raise a KeyError if there is no such client. All
  raise a UserError if what they read is damaged, or if the index was replaced
  since the corpus was opened.

  Attributes:
    directory: Where the corpus lies.
    manifest: What it holds, and what was dropped when it was made.
    locations: Places of every client's records.
    client_ids: All client ids, sorted.
  """

  held_out: ClassVar[tuple[bytes, ...]] = ()
  twins: ClassVar[None] = None
  row_name: ClassVar[str] = 'sequences'

  def __init__(self, directory: str | os.PathLike):
    """Opens a grouped corpus.

    Args:
      directory: The output directory of `fedfish group`, local or of a store.

    Raises:
      UserError: If it is no grouped corpus, is one of a newer schema, lacks
        its index or a shard, or has the index of another corpus.
    """
    self.directory = places.directory_of(directory)
    self.manifest: Manifest = read_manifest(self.directory)
    self._check_shards()
    self.locations: RecordLocations = corpus_index.read_locations(directory)
    self.client_ids: ClientIds = self.locations.client_ids
    self._check_index()

  def sizes(self, column: str) -> np.ndarray:
    """Returns one size of every client, in the order of `client_ids`.

    Args:
      column: 'num_examples', 'num_words' or 'num_bytes'.

    Returns:
      int64 [num_clients].
    """
    first_rows = self.locations.row_limits[:-1]
    values = self._read_column(column)
    if len(first_rows) == len(values):
      return values
    return np.add.reduceat(values, first_rows)

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of every group's id, examples and words.

    It does not depend on the number of shards, nor on where the corpus lies: a
    corpus that is grouped again is the same one. The manifest's is taken where
    the index is still the one that the manifest was written with.
    """
    manifest = self.manifest
    if manifest.fingerprint:
      index_sha256 = corpus_index.index_sha256(self.directory)
      if index_sha256 == manifest.index_sha256:
        return manifest.fingerprint
    sizes = map(self.sizes, corpus_index.FINGERPRINTED)
    return corpus_index.fingerprint(self.client_ids, sizes)

  def examples(self, client_id: bytes) -> list[Example]:
    """Returns the client's examples as stored, parts joined."""
    examples = []
    for row in self._rows(client_id):
      shard = self.manifest.shards[self.locations.shards[row]]
      path = places.join(self.directory, shard.name)
      offset = int(self.locations.offsets[row])
      with places.open_file(path, _RECORD_BYTES) as file:
        payload = records.read_record(file, offset, path)
      found, _, more = decode_record(payload, path, offset)
      if found != client_id:
        raise UserError(
          f'{str(path)!r} must hold client {client_id!r} at byte {offset}, '
          f'but holds {found!r}: {INDEX_NAME} belongs to another corpus. '
          f'{ADVICE}'
        )
      examples += more
    return examples

  def stream(
    self, *, by_id: bool = False
  ) -> Iterator[tuple[bytes, list[Example]]]:
    """Yields (client id, examples as stored) of every client once.

    Reads every shard from its beginning to its end, which is faster than
    `examples` for every client.

    Args:
      by_id: Whether the order is that of `client_ids`. It takes all shards at
        once, and holds a client of each; where a process may not open twice as
        many files, clients are read one by one. Otherwise the order is that on
        the disk, shard by shard, in each by client id, and one client is held.
    """
    names = [shard.name for shard in self.manifest.shards]
    if by_id and len(names) > _max_open():
      return ((i, self.examples(i)) for i in self.client_ids)
    num_open = len(names) if by_id else 1
    shards = (
      self._stream_shard(places.join(self.directory, name), num_open)
      for name in names
    )
    if by_id:
      return heapq.merge(*shards, key=operator.itemgetter(0))
    return itertools.chain.from_iterable(shards)

  def client_dataset(self, client_id: bytes) -> 'tf.data.Dataset':
    """Returns the client's stored examples, in stored order, not batched.

    Elements map each of `manifest.feature_names` to a scalar tf.string.
    """
    import tensorflow as tf

    examples = self.examples(client_id)
    return tf.data.Dataset.from_tensor_slices(
      {
        name: tf.constant([example[name] for example in examples], tf.string)
        for name in self.manifest.feature_names
      }
    )

  def _stream_shard(
    self, path: str, num_open: int
  ) -> Iterator[tuple[bytes, list[Example]]]:
    """Yields what `stream` does of a shard, one of several that are open."""
    buffer_bytes = max(_STREAM_BYTES // num_open, _RECORD_BYTES)
    with places.open_file(path, buffer_bytes) as file:
      decoded = (
        decode_record(payload, path, offset)
        for offset, payload in records.iterate_records(file, path)
      )
      for client_id, parts in itertools.groupby(
        decoded, operator.itemgetter(0)
      ):
        examples = []
        for number, (_, part, more) in enumerate(parts):
          if part != number:
            raise UserError(
              f'{str(path)!r} must hold all parts of a client one after the '
              f'other, but of {client_id!r} part {part} comes in place of part '
              f'{number}. {ADVICE}'
            )
          examples += more
        yield client_id, examples

  def stored_rows(self, *sizes: str) -> Iterator[tuple[int, tuple]]:
    """Yields the rows of the index in the order in which records are stored.

    Args:
      *sizes: Columns of the index, such as 'num_words'.

    Yields:
      The client's place in `client_ids`, and a tuple: client id, part, shard,
      offset, and the sizes.
    """
    ids, row_limits, shards, offsets = self.locations
    columns = shards, offsets, *map(self._read_column, sizes)
    owners = np.repeat(np.arange(len(ids)), np.diff(row_limits))
    # In each shard records lie in the order of the index.
    for row in np.argsort(shards, kind='stable'):
      owner = int(owners[row])
      part = int(row - row_limits[owner])
      yield owner, (ids[owner], part, *(int(column[row]) for column in columns))

  def _rows(self, client_id: bytes) -> range:
    position = self.client_ids.require_position(client_id, self.directory)
    start, stop = self.locations.row_limits[position : position + 2]
    return range(start, stop)

  def _read_column(self, name: str) -> np.ndarray:
    """Reads a size of every record from the index: int64 [num_rows]."""
    num_rows = len(self.locations.offsets)
    return corpus_index.read_column(self.directory, name, num_rows)

  def _check_shards(self) -> None:
    shards = self.manifest.shards
    paths = [places.join(self.directory, shard.name) for shard in shards]
    sizes = places.map_many(places.size, paths)
    for shard, size in zip(shards, sizes, strict=True):
      if size != shard.num_bytes:
        problem = 'is missing' if size is None else f'has {size} bytes'
        raise UserError(
          f'{str(self.directory)!r} must hold the shard {shard.name} of '
          f'{shard.num_bytes} bytes, but it {problem}. {ADVICE}'
        )

  def _check_index(self) -> None:
    """Compares what costs nothing; `fedfish verify` compares everything."""
    ids, row_limits, shards, offsets = self.locations
    num_records = sum(shard.num_records for shard in self.manifest.shards)
    is_right = len(offsets) == num_records and len(row_limits) == len(ids) + 1
    if is_right and num_records:
      num_bytes = max(shard.num_bytes for shard in self.manifest.shards)
      is_right = (
        row_limits[0] == 0
        and 0 <= offsets.min() <= offsets.max() < num_bytes
        and 0 <= shards.min() <= shards.max() < len(self.manifest.shards)
      )
    if not is_right:
      raise UserError(
        f'{str(self.directory)!r} must hold the {INDEX_NAME} of its '
        f'{num_records} records, but that names other ones: it belongs to '
        f'another corpus. {ADVICE}'
      )


def _max_open() -> int:
  """Returns how many shards may be open at a time: half of all files."""
  return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


def decode_record(
  payload: bytes, path: str | os.PathLike, offset: int
) -> tuple[bytes, int, list[Example]]:
  """Returns (client id, part, examples) of a record; parts count from 0.

  Args:
    payload: The record without its frame.
    path: The shard, for errors.
    offset: First byte of the record's frame in it, for errors.

  Raises:
    UserError: If it is no group.
  """
  try:
    record = records.decode_group_record(payload)
    if record.group_id is None:
      raise ValueError(f'no feature `{records.GROUP_ID_FEATURE}`')
    examples = list(map(records.decode_example, record.examples))
  except ValueError as error:
    raise UserError(
      f'{str(path)!r} must hold a group at byte {offset}, but what is there is '
      f'not readable as one ({error}). Run `fedfish group` again.'
    ) from error
  return record.group_id, record.part or 0, examples


def example_texts(
  client_id: bytes, examples: Sequence[Mapping[str, bytes]]
) -> list[bytes]:
  """Returns the texts of a client's examples, as stored.

  Raises:
    UserError: If an example has no feature `text`; names the client.
  """
  try:
    return [example['text'] for example in examples]
  except KeyError as error:
    raise UserError(
      f'Client {client_id!r} has an example without the feature `text`. '
      'Every example needs one: group the corpus again with `fedfish group`.'
    ) from error
