"""Client id to token sequences: tokenized on demand, cached."""

from __future__ import annotations

import collections
import math
import threading
import typing
from collections.abc import Iterable

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.grouped_corpus import GroupedCorpus, example_texts
from tff_fedfish.data.sequences import ClientRows, Sequences
from tff_fedfish.data.token_cache import TokenCache
from tff_fedfish.data.tokenizers import Tokenizer

if typing.TYPE_CHECKING:
  import tensorflow as tf


_DOCUMENTS_AT_ONCE = 32


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
    cache_bytes: int = 512 * 2**20,
    token_cache: TokenCache | None = None,
  ):
    """Reads nothing yet.

    Args:
      corpus: Source of examples with a bytes feature `text`.
      tokenizer: Turns texts into token ids.
      sequence_length: Next-token targets in a full sequence, at least 1.
      drop_short_block: See `sequences.build_sequences`.
      sampling: 'blocks' or 'documents': what `training_sequences` shuffles.
        With 'documents' it reads as many as it needs, so that what it says of
        dropped rows counts only those that it read.
      cache_bytes: Token sequences kept in memory, at most; those of the least
        recently used client go first. 0 keeps none.
      token_cache: Documents of long clients on the disk. None: there is none.
    """
    self.sequence_length = sequence_length
    self._corpus = corpus
    self.tokenizer = tokenizer
    self.drop_short_block = drop_short_block
    self.sampling = sampling
    self._cache_bytes = cache_bytes
    self._token_cache = token_cache
    self._lock = threading.Lock()
    self._cache: collections.OrderedDict[bytes, Sequences] = (
      collections.OrderedDict()
    )
    self._cached_bytes = 0

  @property
  def element_spec(self) -> collections.OrderedDict[str, tf.TensorSpec]:
    """The type of a batch, the same for every client."""
    return sequences_lib.batch_spec(self.sequence_length)

  def sequences(self, client_id: bytes) -> Sequences:
    """Returns all sequences of a client in document order.

    Args:
      client_id: A client of the corpus.

    Returns:
      Sequences whose arrays are shared and read-only.

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
    built = self._build(client_id)
    self._remember(client_id, built)
    return built

  def documents(self, client_id: bytes) -> list[np.ndarray]:
    """Returns the token ids of a client's documents, in their order.

    Raises:
      KeyError: If the corpus has no such client.
      UserError: If an example has no text, or one that cannot be encoded.
    """
    if self._token_cache is not None:
      found = self._token_cache.load(client_id)
      if found is not None:
        return found
    texts = example_texts(client_id, self._corpus.examples(client_id))
    documents = self.tokenizer.encode_batch(texts)
    if self._token_cache is not None:
      self._token_cache.store(client_id, documents)
    return documents

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
    texts = example_texts(client_id, self._corpus.examples(client_id))
    order = randomness.permutation(
      len(texts),
      pass_num=round_num,
      shuffle_seed=shuffle_seed,
      client_id=client_id,
    )
    num_wanted = math.inf
    if max_sequences is not None:
      # One more row, to see that there are more.
      num_wanted = (max_sequences + 1) * (self.sequence_length + 1)
    documents, num_tokens = [], 0
    for start in range(0, len(order), _DOCUMENTS_AT_ONCE):
      chunk = order[start : start + _DOCUMENTS_AT_ONCE]
      read = self.tokenizer.encode_batch([texts[i] for i in chunk])
      documents += read
      # With the token that ends each.
      num_tokens += sum(map(len, read)) + len(read)
      if num_tokens >= num_wanted:
        break
    rows = self.build(documents)
    return rows, np.arange(len(rows))

  def _build(self, client_id: bytes) -> Sequences:
    built = self.build(self.documents(client_id))
    # Shared by the cache: a caller that writes must fail, not corrupt others.
    built.tokens.flags.writeable = False
    built.num_targets.flags.writeable = False
    return built

  def _remember(self, client_id: bytes, built: Sequences) -> None:
    size = _num_bytes(built)
    with self._lock:
      if client_id in self._cache or size > self._cache_bytes:
        return
      self._cache[client_id] = built
      self._cached_bytes += size
      while self._cached_bytes > self._cache_bytes:
        _, evicted = self._cache.popitem(last=False)
        self._cached_bytes -= _num_bytes(evicted)


def _num_bytes(sequences: Sequences) -> int:
  return sequences.tokens.nbytes + sequences.num_targets.nbytes
