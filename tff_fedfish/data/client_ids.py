"""The client ids of a grouped corpus: a sorted sequence of bytes."""

import bisect
import collections.abc
import itertools
from typing import NamedTuple, overload

import pyarrow as pa

# Every so many ids, one is held as an object: `bisect` is fast over those.
_SAMPLING = 256


class _Chunk(NamedTuple):
  """Consecutive ids; id `i` is `data[limits[i] : limits[i + 1]]`."""

  limits: memoryview
  data: memoryview
  samples: list[bytes]


class ClientIds(collections.abc.Sequence):
  """The client ids of a corpus: a sorted sequence of bytes.

  Backed by Arrow's buffers, so a million ids take their own bytes and an offset
  each, not a million Python objects.
  """

  def __init__(self, sorted_ids: pa.BinaryArray | pa.ChunkedArray):
    """Takes over the ids of an array.

    Args:
      sorted_ids: Ids of type `pa.binary()`, distinct, in ascending order.
    """
    self._ids = sorted_ids
    arrays = getattr(sorted_ids, 'chunks', [sorted_ids])
    arrays = [array for array in arrays if len(array)]
    self._chunks = [_chunk(array) for array in arrays]
    self._starts = [0, *itertools.accumulate(map(len, arrays))]
    self._first_ids = [chunk.samples[0] for chunk in self._chunks]

  def __len__(self) -> int:
    return self._starts[-1]

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
    index %= len(self)
    chunk_num = bisect.bisect_right(self._starts, index) - 1
    limits, data, _ = self._chunks[chunk_num]
    index -= self._starts[chunk_num]
    return data[limits[index] : limits[index + 1]].tobytes()

  def __iter__(self) -> collections.abc.Iterator[bytes]:
    for limits, data, _ in self._chunks:
      for start, stop in itertools.pairwise(limits):
        yield data[start:stop].tobytes()

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
    chunk_num = bisect.bisect_right(self._first_ids, client_id) - 1
    if chunk_num < 0:
      return None
    limits, data, samples = self._chunks[chunk_num]
    # The id at `low` is not greater than `client_id`, that at `high` is.
    low = (bisect.bisect_right(samples, client_id) - 1) * _SAMPLING
    high = min(low + _SAMPLING, len(limits) - 1)
    while high - low > 1:
      middle = (low + high) // 2
      # Only bytes can be ordered, not views of them.
      if data[limits[middle] : limits[middle + 1]].tobytes() <= client_id:
        low = middle
      else:
        high = middle
    if data[limits[low] : limits[low + 1]] != client_id:
      return None
    return self._starts[chunk_num] + low

  def __repr__(self) -> str:
    return f'<{len(self)} client ids>'

  def __reduce__(self):
    # Views cannot be pickled; they are made again.
    return ClientIds, (self._ids,)


def _chunk(array: pa.BinaryArray) -> _Chunk:
  _, limits, data = array.buffers()
  # The buffers may hold more than the array, which can be a slice.
  stop = array.offset + len(array) + 1
  limits = memoryview(limits)[4 * array.offset : 4 * stop].cast('i')
  # Arrow has no buffer where all ids are empty.
  data = memoryview(data or b'').cast('B')
  samples = array.take(pa.array(range(0, len(array), _SAMPLING))).to_pylist()
  return _Chunk(limits, data, samples)
