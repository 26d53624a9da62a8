"""Sizes of the texts in Arrow arrays, without decoding them.

Where a column is kept as its distinct values and their positions, some bytes of
a file may stand for gigabytes of text.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def text_bytes(array: pa.Array) -> np.ndarray:
  """Returns how many bytes of text and of binary data each element holds.

  Args:
    array: Of any type; the texts in lists and structs count, too.

  Returns:
    int64 [num_elements]; 0 where there is no text.
  """
  kind = array.type
  if pa.types.is_dictionary(kind):
    sizes = pa.array(text_bytes(array.dictionary), pa.int64())
    return _to_numpy(sizes.take(array.indices))
  if pa.types.is_struct(kind):
    return sum(
      map(text_bytes, array.flatten()), start=np.zeros(len(array), np.int64)
    )
  if _is_list(kind):
    ends = np.cumsum(_to_numpy(pc.list_value_length(array)))
    totals = np.concatenate([[0], np.cumsum(text_bytes(array.flatten()))])
    return np.diff(totals[ends], prepend=0)
  if _is_text(kind):
    return _to_numpy(pc.binary_length(array))
  return np.zeros(len(array), np.int64)


def longest_distinct_text(array: pa.Array) -> int:
  """Returns the size of the longest text that is kept once for all elements."""
  return max(
    (
      int(text_bytes(dictionary).max(initial=0))
      for dictionary in _dictionaries(array)
    ),
    default=0,
  )


def longest_start(row: pa.RecordBatch, num_bytes: int) -> bytes:
  """Returns the beginning of the longest text of a row.

  Args:
    row: One row; texts inside lists and structs are not found.
    num_bytes: How much of it, at most.
  """
  longest, start = 0, b''
  for column in row.columns:
    if pa.types.is_dictionary(column.type):
      index = column.indices[0].as_py()
      # Nothing, if there is none.
      column = column.dictionary.slice(index or 0, int(index is not None))
    if _is_text(column.type) and text_bytes(column).sum() > longest:
      longest = text_bytes(column).sum()
      start = pc.binary_slice(_to_binary(column), 0, num_bytes)[0].as_py()
  return start


def _dictionaries(array: pa.Array) -> Iterator[pa.Array]:
  if pa.types.is_dictionary(array.type):
    yield array.dictionary
  elif pa.types.is_struct(array.type):
    for field in array.flatten():
      yield from _dictionaries(field)
  elif _is_list(array.type):
    yield from _dictionaries(array.flatten())


def _is_list(kind: pa.DataType) -> bool:
  return (
    pa.types.is_list(kind)
    or pa.types.is_large_list(kind)
    or pa.types.is_fixed_size_list(kind)
  )


def _to_binary(array: pa.Array) -> pa.Array:
  if pa.types.is_string(array.type):
    return array.cast(pa.binary())
  if pa.types.is_large_string(array.type):
    return array.cast(pa.large_binary())
  return array


def _is_text(kind: pa.DataType) -> bool:
  return (
    pa.types.is_string(kind)
    or pa.types.is_large_string(kind)
    or pa.types.is_binary(kind)
    or pa.types.is_large_binary(kind)
  )


def _to_numpy(sizes: pa.Array) -> np.ndarray:
  return pc.fill_null(sizes, 0).to_numpy().astype(np.int64)
