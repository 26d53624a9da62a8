"""Client ids: the sorted ones of a corpus in memory, and one id as text."""

import bisect
import collections.abc
import itertools
import operator
import re
import typing
import unicodedata
import urllib.parse
from collections.abc import Iterable
from typing import overload

import numpy as np

if typing.TYPE_CHECKING:
  import pyarrow as pa

_READ_AT_ONCE = 1 << 13
# Control characters, line and paragraph separators; and the surrogates that
# stand for bytes that are not UTF-8.
_ESCAPED_CATEGORIES = frozenset({'Cc', 'Zl', 'Zp', 'Cs'})
# Of a cell that a spreadsheet takes for a formula; also in full width.
_FORMULA_STARTS = ('=', '+', '-', '@', '＝', '＋', '－', '＠')
_BROKEN_ESCAPE = re.compile(r'%(?![0-9A-Fa-f]{2})')


class ClientIds(collections.abc.Sequence):
  """The client ids of a corpus: a sorted sequence of bytes.

  A million ids take their own bytes and 4 for each, not a million objects.
  """

  def __init__(self, arrays: 'Iterable[pa.BinaryArray]'):
    """Takes over ids.

    Args:
      arrays: Ids of type `pa.binary()`, one array after the other; all are
        distinct, in ascending order.
    """
    import pyarrow as pa

    self._ids = pa.chunked_array(arrays, pa.binary())

  def __len__(self) -> int:
    return len(self._ids)

  @overload
  def __getitem__(self, index: int) -> bytes: ...
  @overload
  def __getitem__(self, index: slice) -> list[bytes]: ...
  def __getitem__(self, index):
    found = self._ids[index]
    return found.to_pylist() if isinstance(index, slice) else found.as_py()

  def __iter__(self) -> collections.abc.Iterator[bytes]:
    for start in range(0, len(self), _READ_AT_ONCE):
      yield from self[start : start + _READ_AT_ONCE]

  def __contains__(self, client_id: object) -> bool:
    return self.position(client_id) is not None

  def position(self, client_id: object) -> int | None:
    """Returns the position of `client_id`, or None. Takes O(log n)."""
    if not isinstance(client_id, bytes):
      return None
    position = bisect.bisect_left(self, client_id)
    is_there = position < len(self) and self[position] == client_id
    return position if is_there else None

  def require_position(self, client_id: object, corpus: object) -> int:
    """Returns the position of a client of a corpus; KeyError if none."""
    position = self.position(client_id)
    if position is None:
      raise KeyError(
        f'{client_id!r} is not a client of {str(corpus)!r}; client ids are '
        'bytes, listed in `client_ids`'
      )
    return position

  def where(self, is_chosen: np.ndarray) -> 'ChosenIds':
    """Returns some of the ids, those where bool [len(self)] is true."""
    dtype = np.int32 if len(self) < 1 << 31 else np.int64
    return ChosenIds(self, np.arange(len(self), dtype=dtype)[is_chosen])


class ChosenIds(collections.abc.Sequence):
  """Some client ids of a corpus, in its order, at 4 bytes each.

  Equal to every sequence of the same ids.
  """

  def __init__(self, ids: ClientIds, positions: np.ndarray):
    """Takes over positions.

    Args:
      ids: All ids.
      positions: Those of the chosen ones, integers [num_chosen], ascending.
    """
    self._ids = ids
    self.positions = positions

  def __len__(self) -> int:
    return len(self.positions)

  @overload
  def __getitem__(self, index: int) -> bytes: ...
  @overload
  def __getitem__(self, index: slice) -> list[bytes]: ...
  def __getitem__(self, index):
    found = self.positions[index]
    if isinstance(index, slice):
      return [self._ids[i] for i in found]
    return self._ids[found]

  def __iter__(self) -> collections.abc.Iterator[bytes]:
    # To find each by its position takes longer than to pass the others.
    is_chosen = np.zeros(len(self._ids), bool)
    is_chosen[self.positions] = True
    return itertools.compress(self._ids, is_chosen.tobytes())

  def __contains__(self, client_id: object) -> bool:
    position = self._ids.position(client_id)
    if position is None:
      return False
    place = int(np.searchsorted(self.positions, position))
    return place < len(self) and self.positions[place] == position

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, collections.abc.Sequence):
      return NotImplemented
    return len(self) == len(other) and all(map(operator.eq, self, other))

  __hash__ = None


def client_id_to_text(client_id: bytes) -> str:
  """Returns a client id as one line of text, reversibly.

  Valid UTF-8 stands for itself. Control characters, line separators, bytes
  that are not UTF-8, and the percent sign itself are written as `%XX`, one
  per byte.
  """
  text = client_id.decode('utf-8', 'surrogateescape')
  return ''.join(
    _escape(character)
    if character == '%'
    or unicodedata.category(character) in _ESCAPED_CATEGORIES
    else character
    for character in text
  )


def client_id_to_cell(client_id: bytes) -> str:
  """Returns a client id as a cell of a CSV file, reversibly.

  The text of `client_id_to_text`, in which a first character that would make
  it a formula of a spreadsheet is written as `%XX`, too: = + - @.
  """
  text = client_id_to_text(client_id)
  if text.startswith(_FORMULA_STARTS):
    text = _escape(text[0]) + text[1:]
  return text


def text_to_client_id(text: str) -> bytes:
  """Returns the client id that one of the two functions above wrote as `text`.

  Raises:
    ValueError: If a percent sign is not followed by two hexadecimal digits.
  """
  if _BROKEN_ESCAPE.search(text):
    raise ValueError(
      f'a client id must have two hexadecimal digits after %, found {text!r}'
    )
  return urllib.parse.unquote_to_bytes(text)


def _escape(character: str) -> str:
  data = character.encode('utf-8', 'surrogateescape')
  return ''.join(f'%{byte:02X}' for byte in data)
