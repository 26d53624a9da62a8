"""Random access to the groups of a grouped corpus, by client id."""

import collections.abc
import os
import pathlib
from typing import TYPE_CHECKING, overload

import numpy as np
import pyarrow as pa

from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_NAME, read_index
from tff_fedfish.data.manifest import Manifest, read_manifest
from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  import tensorflow as tf


class ClientIds(collections.abc.Sequence):
  """The client ids of a corpus: a sorted sequence of bytes.

  Backed by one Arrow array, so a million ids take their own bytes and an
  offset each, not a million Python objects.
  """

  def __init__(self, sorted_ids: pa.BinaryArray):
    self._ids = sorted_ids

  def __len__(self) -> int:
    return len(self._ids)

  @overload
  def __getitem__(self, index: int) -> bytes: ...
  @overload
  def __getitem__(self, index: slice) -> list[bytes]: ...
  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    index = int(index)
    if not -len(self) <= index < len(self):
      raise IndexError(f'index {index} is out of range for {len(self)} clients')
    return self._ids[index % len(self)].as_py()

  def __iter__(self) -> collections.abc.Iterator[bytes]:
    return (value.as_py() for value in self._ids)

  def __contains__(self, client_id: object) -> bool:
    return self.position(client_id) is not None

  def index(self, value: bytes, start: int = 0, stop: int | None = None) -> int:
    """Returns the position of `value`; ValueError where it is not present."""
    position = self.position(value)
    if position is None or position not in range(len(self))[start:stop]:
      raise ValueError(f'{value!r} is not a client id')
    return position

  def position(self, client_id: object) -> int | None:
    """Returns the position of `client_id`, or None. Takes O(log n)."""
    if not isinstance(client_id, bytes):
      return None
    low, high = 0, len(self)
    while low < high:
      middle = (low + high) // 2
      if self._ids[middle].as_py() < client_id:
        low = middle + 1
      else:
        high = middle
    found = low < len(self) and self._ids[low].as_py() == client_id
    return low if found else None

  def __repr__(self) -> str:
    return f'<{len(self)} client ids>'


class GroupedCorpus:
  """A directory that `fedfish group` wrote; every group is a client.

  Opening reads the manifest and the index, not the shards, and does not import
  TensorFlow. Instances hold no open files: threads may share one, and processes
  may be handed one.

  Attributes:
    directory: Where the corpus lies.
    manifest: What it holds, and what was dropped when it was made.
    client_ids: All client ids, sorted.
  """

  def __init__(self, directory: str | os.PathLike):
    """Opens a grouped corpus.

    Args:
      directory: The output directory of `fedfish group`.

    Raises:
      UserError: If it is no grouped corpus, is one of a newer schema, or lacks
        its index or a shard.
    """
    self.directory = pathlib.Path(directory)
    self.manifest: Manifest = read_manifest(self.directory)
    self._check_shards()
    index = read_index(self.directory)
    self._columns = {
      name: index.column(name).to_numpy()
      for name in ('shard', 'offset', 'num_examples', 'num_bytes', 'num_words')
    }
    # Rows are sorted by (group id, part): a group is its part 0 and the rows
    # up to the next one.
    starts = np.flatnonzero(index.column('part').to_numpy() == 0)
    self._row_limits = np.append(starts, index.num_rows)
    ids = index.column('group_id').combine_chunks().take(pa.array(starts))
    self.client_ids = ClientIds(ids)

  def num_examples(self, client_id: bytes) -> int:
    """Returns how many examples the client has.

    Raises:
      KeyError: If there is no such client.
    """
    return self._sum('num_examples', client_id)

  def num_words(self, client_id: bytes) -> int:
    """Returns how many whitespace-separated words the client's texts have.

    Raises:
      KeyError: If there is no such client.
    """
    return self._sum('num_words', client_id)

  def num_bytes(self, client_id: bytes) -> int:
    """Returns how many bytes the client's records take.

    Raises:
      KeyError: If there is no such client.
    """
    return self._sum('num_bytes', client_id)

  def sizes(self, column: str) -> np.ndarray:
    """Returns one size of every client, in the order of `client_ids`.

    Args:
      column: 'num_examples', 'num_words' or 'num_bytes'.

    Returns:
      int64 [num_clients].
    """
    if not len(self.client_ids):
      return np.zeros(0, np.int64)
    return np.add.reduceat(self._columns[column], self._row_limits[:-1])

  def examples(self, client_id: bytes) -> list[dict[str, bytes]]:
    """Returns the client's examples as stored, parts joined.

    Args:
      client_id: One of `client_ids`.

    Returns:
      One dict per example, from feature name to value.

    Raises:
      KeyError: If there is no such client.
      UserError: If its record is damaged.
    """
    rows = self._rows(client_id)
    examples = []
    for row in range(rows.start, rows.stop):
      shard = self.manifest.shards[self._columns['shard'][row]]
      path = self.directory / shard.name
      offset = int(self._columns['offset'][row])
      record = records.decode_group_record(records.read_record(path, offset))
      if record.group_id != client_id:
        raise UserError(
          f'{str(path)!r} must hold client {client_id!r} at byte {offset}, '
          f'but holds {record.group_id!r}: {INDEX_NAME} belongs to another '
          'corpus. Run `fedfish group` again.'
        )
      examples.extend(map(records.decode_example, record.examples))
    return examples

  def client_dataset(self, client_id: bytes) -> 'tf.data.Dataset':
    """Returns the client's stored examples, in stored order, not batched.

    Args:
      client_id: One of `client_ids`.

    Returns:
      A dataset whose elements map each of `manifest.feature_names` to a scalar
      tf.string.

    Raises:
      KeyError: If there is no such client.
      UserError: If its record is damaged.
    """
    import tensorflow as tf

    examples = self.examples(client_id)
    return tf.data.Dataset.from_tensor_slices(
      {
        name: tf.constant([example[name] for example in examples], tf.string)
        for name in self.manifest.feature_names
      }
    )

  def cohort(self, seed: int, round_num: int, cohort_size: int) -> list[bytes]:
    """Returns the clients drawn for one round, from all clients.

    Args:
      seed: The cohort seed.
      round_num: 1-based round number.
      cohort_size: How many clients to draw.
    """
    from tff_fedfish.data import cohorts

    return cohorts.draw_cohort(
      self.client_ids, seed=seed, round_num=round_num, cohort_size=cohort_size
    )

  def _rows(self, client_id: bytes) -> slice:
    position = self.client_ids.position(client_id)
    if position is None:
      raise KeyError(
        f'{client_id!r} is not a client of {str(self.directory)!r}; client '
        'ids are bytes, listed in `client_ids`'
      )
    start, stop = self._row_limits[position : position + 2]
    return slice(int(start), int(stop))

  def _sum(self, column: str, client_id: bytes) -> int:
    return int(self._columns[column][self._rows(client_id)].sum())

  def _check_shards(self) -> None:
    for shard in self.manifest.shards:
      path = self.directory / shard.name
      found = path.stat().st_size if path.is_file() else None
      if found != shard.num_bytes:
        problem = 'is missing' if found is None else f'has {found} bytes'
        raise UserError(
          f'{str(self.directory)!r} must hold the shard {shard.name} of '
          f'{shard.num_bytes} bytes, but it {problem}. Copy the directory '
          'again, or run `fedfish group` again.'
        )
