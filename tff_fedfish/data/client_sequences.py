"""Client id to token sequences: tokenized on demand, kept in memory."""

from __future__ import annotations

import collections
import math
import threading
import typing
from collections.abc import Iterable, Sequence

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.grouped_corpus import GroupedCorpus, example_texts
from tff_fedfish.data.sequences import ClientRows, Sequences
from tff_fedfish.data.tokenizers import Tokenizer

if typing.TYPE_CHECKING:
  from tff_fedfish.data.token_store import StoredDocuments

_DOCUMENTS_AT_ONCE = 32
# Of sequences that are kept in memory; the least recently used client goes.
_CACHE_BYTES = 512 << 20


class ClientSequences(ClientRows):
  """The token sequences of every client of a corpus. Thread safe."""

  def __init__(
    self,
    corpus: GroupedCorpus,
    tokenizer: Tokenizer,
    *,
    sequence_length: int,
    drop_short_block: bool = False,
    sampling: str = 'blocks',
  ):
    """Reads nothing yet.

    Args:
      corpus: Source of examples with a bytes feature `text`.
      tokenizer: Turns texts into token ids.
      sequence_length: Next-token targets in a full sequence, at least 1.
      drop_short_block: See `sequences.build_sequences`.
      sampling: 'blocks' or 'documents': what `training_sequences` shuffles.
        With 'documents' it reads only as many as it needs, and counts dropped
        rows only among those.
    """
    self.sequence_length = sequence_length
    self._corpus = corpus
    self.tokenizer = tokenizer
    self.drop_short_block = drop_short_block
    self.sampling = sampling
    self._lock = threading.Lock()
    self._cache: collections.OrderedDict[bytes, Sequences] = (
      collections.OrderedDict()
    )
    self._cached_bytes = 0

  def sequences(self, client_id: bytes) -> Sequences:
    """Returns all sequences of a client in document order.

    Args:
      client_id: A client of the corpus.

    Returns:
      Sequences whose arrays may be shared and read-only.

    Raises:
      KeyError: If the corpus has no such client.
      UserError: As `documents`.
    """
    with self._lock:
      if client_id in self._cache:
        self._cache.move_to_end(client_id)
        return self._cache[client_id]
    # Outside the lock: other threads go on. Two that ask for the same client at
    # once both tokenize it and obtain equal results.
    built = self.build(self.documents(client_id))
    # Shared by the cache: a caller that writes must fail, not corrupt others.
    built.tokens.flags.writeable = False
    built.num_targets.flags.writeable = False
    self._remember(client_id, built)
    return built

  def documents(self, client_id: bytes) -> list[np.ndarray]:
    """Returns the token ids of a client's documents, in their order.

    Raises:
      KeyError: If the corpus has no such client.
      UserError: If an example has no text, or one that cannot be encoded.
    """
    documents = self._open_documents(client_id)
    return documents.read(range(len(documents)))

  def build(self, documents: Iterable[np.ndarray]) -> Sequences:
    """Returns the sequences of some documents."""
    return sequences_lib.build_sequences(
      documents,
      sequence_length=self.sequence_length,
      end_of_text_id=self.tokenizer.end_of_text_id,
      padding_id=self.tokenizer.padding_id,
      drop_short_block=self.drop_short_block,
    )

  def _shuffled(self, round_num, max_sequences, *, shuffle_seed, client_id):
    if self.sampling == 'blocks':
      return super()._shuffled(
        round_num,
        max_sequences,
        shuffle_seed=shuffle_seed,
        client_id=client_id,
      )
    documents = self._open_documents(client_id)
    order = randomness.permutation(
      len(documents),
      pass_num=round_num,
      shuffle_seed=shuffle_seed,
      client_id=client_id,
    )
    num_wanted = math.inf
    if max_sequences is not None:
      # One more row, to see that there are more.
      num_wanted = (max_sequences + 1) * (self.sequence_length + 1)
    chosen, num_tokens = [], 0
    for start in range(0, len(order), _DOCUMENTS_AT_ONCE):
      read = documents.read(order[start : start + _DOCUMENTS_AT_ONCE])
      chosen += read
      # With the token that ends each.
      num_tokens += sum(map(len, read)) + len(read)
      if num_tokens >= num_wanted:
        break
    rows = self.build(chosen)
    return rows, np.arange(len(rows))

  def _open_documents(self, client_id: bytes) -> _Texts | StoredDocuments:
    """Returns documents that can be read by their numbers."""
    texts = example_texts(client_id, self._corpus.examples(client_id))
    return _Texts(texts, self.tokenizer)

  def _remember(self, client_id: bytes, built: Sequences) -> None:
    size = _num_bytes(built)
    with self._lock:
      if client_id in self._cache or size > _CACHE_BYTES:
        return
      self._cache[client_id] = built
      self._cached_bytes += size
      while self._cached_bytes > _CACHE_BYTES:
        _, evicted = self._cache.popitem(last=False)
        self._cached_bytes -= _num_bytes(evicted)


class _Texts:
  """Documents of a client that are tokenized when they are read."""

  def __init__(self, texts: Sequence[bytes], tokenizer: Tokenizer):
    self._texts, self._tokenizer = texts, tokenizer

  def __len__(self) -> int:
    return len(self._texts)

  def read(self, numbers: Iterable[int]) -> list[np.ndarray]:
    return self._tokenizer.encode_batch([self._texts[i] for i in numbers])


def _num_bytes(sequences: Sequences) -> int:
  return sequences.tokens.nbytes + sequences.num_targets.nbytes
