"""The index of a grouped corpus as rows, to compare with the shards.

`GroupedCorpus` trusts the index, and reads columns; here it is to be checked.
"""

import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_fedfish.data.corpus_index import INDEX_NAME, read_index
from tff_fedfish.errors import UserError

ADVICE = 'Copy the directory again, or run `fedfish group` again.'
"""Remedy of a damaged corpus."""

# Values of numpy and Arrow become Python's many at a time, which is fast, and
# not all at once, which takes memory.
_ROWS_AT_ONCE = 10_000


class Row(NamedTuple):
  """Entry of the index for a record.

  Attributes:
    group_id: See `INDEX_SCHEMA`; so are those that are not listed here.
    is_only_part: Whether the group has no other record.
  """

  group_id: bytes
  part: int
  is_only_part: bool
  offset: int
  num_examples: int
  num_bytes: int
  num_words: int


class IndexRows:
  """The rows of the index, by shard."""

  def __init__(self, directory: str | os.PathLike):
    """Reads the index of a grouped corpus.

    Args:
      directory: A directory that `fedfish group` wrote.

    Raises:
      UserError: If the index is missing or is no such table.
    """
    self._path = pathlib.Path(directory) / INDEX_NAME
    table = read_index(directory)
    self._ids = table.column('group_id')
    names = ('part', 'shard', 'offset', 'num_examples', 'num_bytes')
    self._columns = {
      name: table.column(name).to_numpy() for name in (*names, 'num_words')
    }
    # By place in the shards; stable, so that equal offsets are found below.
    self._order = np.lexsort((self._columns['offset'], self._columns['shard']))

  def check(self, num_shards: int) -> None:
    """Checks what can be known without the shards.

    Args:
      num_shards: How many shards the corpus has.

    Raises:
      UserError: If the rows are not sorted, or name a shard that is none.
    """
    part, shard = self._columns['part'], self._columns['shard']
    is_next = pc.equal(self._ids[1:], self._ids[:-1]).to_numpy()
    is_later = pc.greater(self._ids[1:], self._ids[:-1]).to_numpy()
    is_right = np.where(
      is_next, part[1:] == part[:-1] + 1, is_later & (part[1:] == 0)
    )
    is_right = np.concatenate([part[:1] == 0, is_right.astype(bool)])
    self._require(is_right, 'be sorted by (group_id, part), parts from 0')
    is_right = (shard >= 0) & (shard < num_shards)
    self._require(is_right, f'name shards from 0 to {num_shards - 1}')

  def rows_of_shard(self, shard_num: int) -> Iterator[Row]:
    """Yields the rows of a shard in the order of their offsets."""
    shard, part = self._columns['shard'], self._columns['part']
    limits = np.searchsorted(
      shard, [shard_num, shard_num + 1], sorter=self._order
    )
    first, last = limits.tolist()
    for start in range(first, last, _ROWS_AT_ONCE):
      rows = self._order[start : min(start + _ROWS_AT_ONCE, last)]
      is_first = part[rows] == 0
      is_last = np.take(part, rows + 1, mode='clip') == 0
      is_last |= rows + 1 == len(part)
      columns = [part[rows], is_first & is_last] + [
        self._columns[name][rows]
        for name in ('offset', 'num_examples', 'num_bytes', 'num_words')
      ]
      yield from map(
        Row,
        self._ids.take(pa.array(rows)).to_pylist(),
        *(column.tolist() for column in columns),
      )

  def _require(self, is_right: np.ndarray, required: str) -> None:
    if is_right.all():
      return
    row = int(np.argmin(is_right))
    raise UserError(
      f'{str(self._path)!r} must {required}, but row {row} says '
      f'{show_group(self._ids[row].as_py())}, part '
      f'{self._columns["part"][row]}, shard {self._columns["shard"][row]}. '
      f'{ADVICE}'
    )


def show_group(group_id: bytes) -> str:
  """Returns a group's name as it stands in an error message."""
  return f'group {group_id.decode("utf-8", "backslashreplace")!r}'
