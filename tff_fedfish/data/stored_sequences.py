"""Client id to token sequences, read from a token store when chosen."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.sequences import Rows, Sequences
from tff_fedfish.data.token_description import require_vocabulary
from tff_fedfish.data.token_store import (
  StoredDocuments,
  TokenStore,
  verify_once,
)
from tff_fedfish.data.tokenizers import Tokenizer


class StoredSequences(ClientSequences):
  """The sequences of `ClientSequences`, from a token store of the corpus.

  Only the rows that are chosen are read from the disk.
  """

  def __init__(self, store: TokenStore, tokenizer: Tokenizer, **options):
    """Reads the store to verify it, once.

    Args:
      store: The tokenized corpus.
      tokenizer: The vocabulary that it was tokenized with.
      **options: See `ClientSequences`.

    Raises:
      UserError: If the store is of another vocabulary, or is damaged.
    """
    super().__init__(store, tokenizer, **options)
    require_vocabulary(store.description, tokenizer, store.directory)
    verify_once(store.directory)

  def sequences(self, client_id: bytes) -> Sequences:
    """Returns all sequences of a client; see `ClientSequences`."""
    return self._selectable(client_id).all()

  def rows_of(self, positions: Sequence[int]) -> 'StreamRows':
    """Returns the sequences of clients one after the other, not read yet.

    Args:
      positions: Places of the clients in the store's `client_ids`.
    """
    return StreamRows(
      store=self._corpus,
      streams=self._corpus.streams(positions),
      sequence_length=self.sequence_length,
      padding_id=self.tokenizer.padding_id,
      drop_short_block=self.drop_short_block,
    )

  def _selectable(self, client_id: bytes) -> 'StreamRows':
    return self.rows_of([self._corpus.position(client_id)])

  def _open_documents(self, client_id: bytes) -> StoredDocuments:
    return self._corpus.documents(client_id)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamRows(Rows):
  """Sequences of joined documents that are on the disk until selected.

  The rows of each stream are those that `build_sequences` makes of it.
  """

  store: TokenStore
  streams: np.ndarray
  """int64 [num_streams, 2]: first token of each and the one after the last."""
  sequence_length: int
  padding_id: int
  drop_short_block: bool

  @functools.cached_property
  def _lost(self) -> np.ndarray:
    """int64 [num_streams]: tokens of last blocks that are dropped."""
    left = self._lengths % self._block_length
    is_dropped = self.drop_short_block | (left < 2)
    return np.where(is_dropped, left, 0)

  @functools.cached_property
  def _row_limits(self) -> np.ndarray:
    """int64 [num_streams]: number of the row after the last of each stream."""
    num_kept = self._lengths - self._lost
    return np.cumsum(-(-num_kept // self._block_length))

  @property
  def _lengths(self) -> np.ndarray:
    return self.streams[:, 1] - self.streams[:, 0]

  @property
  def _block_length(self) -> int:
    return self.sequence_length + 1

  def __len__(self) -> int:
    return int(self._row_limits[-1]) if len(self.streams) else 0

  @property
  def num_tokens(self) -> int:
    """Real tokens; see `Rows`."""
    return int(self._lengths.sum() - self._lost.sum())

  def num_tokens_at(self, index: np.ndarray) -> int:
    """Returns the real tokens in some rows, which are not read."""
    return int(self._places(index)[1].sum())

  def all(self) -> Sequences:
    """Returns all rows in their order."""
    return self.select(np.arange(len(self)))

  def select(self, index: np.ndarray) -> Sequences:
    """Reads the rows with some numbers, counted over all streams."""
    starts, lengths = self._places(index)
    shape = len(starts), self._block_length
    rows = np.full(shape, self.padding_id, np.int32)
    for row, start, length in zip(
      rows, starts.tolist(), lengths.tolist(), strict=True
    ):
      row[:length] = self.store.tokens[start : start + length]
    return Sequences(
      rows,
      (lengths - 1).astype(np.int32),
      num_short_block_tokens=int(self._lost.sum()),
    )

  def _places(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns first token and number of tokens of rows, int64 [num_rows]."""
    # An empty stream ends where the one before does: the next one is meant.
    stream = np.searchsorted(self._row_limits, index, side='right')
    first_rows = np.concatenate([[0], self._row_limits])[stream]
    start, stop = self.streams[stream].T
    start = start + (index - first_rows) * self._block_length
    return start, np.minimum(stop - start, self._block_length)
