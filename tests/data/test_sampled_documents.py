"""Training rows of shuffled documents, tokenized only as far as needed."""

import numpy as np
import pytest

from tff_fedfish.data import randomness, tokenizers
from tff_fedfish.data.client_sequences import ClientSequences

#            0        1        2
_PIECES = ['[PAD]', '[UNK]', '[END]', *'abcdefghij']
_ROUND = dict(shuffle_seed=5, round_num=1)


class _Corpus:
  """A client's documents: letters, one after the other."""

  def __init__(self, *documents):
    self._documents = documents

  def examples(self, client_id):
    return [{'text': ' '.join(text).encode()} for text in self._documents]


class _CountingTokenizer:
  """Counts the texts that it encodes."""

  def __init__(self, tokenizer):
    self._tokenizer = tokenizer
    self.num_texts = 0

  def encode_batch(self, texts):
    self.num_texts += len(texts)
    return self._tokenizer.encode_batch(texts)

  def __getattr__(self, name):
    return getattr(self._tokenizer, name)


@pytest.fixture(name='tokenizer')
def _tokenizer():
  return _CountingTokenizer(
    tokenizers.WordPieceTokenizer('\n'.join(_PIECES).encode(), 'vocab.txt')
  )


def _clients(tokenizer, *documents, **options):
  return ClientSequences(
    _Corpus(*documents),
    tokenizer,
    sequence_length=3,
    sampling='documents',
    **options,
  )


def _order(num_documents, client_id=b'x', shuffle_seed=5, round_num=1):
  return randomness.permutation(
    num_documents,
    pass_num=round_num,
    shuffle_seed=shuffle_seed,
    client_id=client_id,
  )


def test_rows_by_hand(tokenizer):
  documents = ('aaa', 'bb', 'cccc')
  clients = _clients(tokenizer, *documents)
  stream = []
  for number in _order(3):
    stream += [3 + number] * len(documents[number]) + [2]
  # 3 + 2 + 4 letters and three ends: three rows of four tokens, of which two
  # are kept.
  found = clients.training_sequences(b'x', **_ROUND, max_sequences=2)
  assert found.tokens.tolist() == [stream[:4], stream[4:8]]
  assert found.num_dropped_sequences == 1
  assert found.num_dropped_tokens == 4
  everything = clients.training_sequences(b'x', **_ROUND)
  assert everything.tokens.tolist() == [stream[:4], stream[4:8], stream[8:]]
  assert everything.num_dropped_sequences == 0


def test_a_large_client_is_not_tokenized_whole(tokenizer):
  # 7 tokens each with the end; three rows of four need 12, two documents.
  clients = _clients(tokenizer, *['abcdef'] * 1_000)
  found = clients.training_sequences(b'x', **_ROUND, max_sequences=2)
  assert len(found) == 2
  assert tokenizer.num_texts == 32


def test_order_depends_on_seed_round_and_client(tokenizer):
  letters = 'abcdefghij'
  clients = _clients(tokenizer, *letters)

  def first(**options):
    options = dict(client_id=b'x', **_ROUND) | options
    found = clients.training_sequences(**options, max_sequences=5)
    return found.tokens.ravel().tolist()

  assert first() == first()
  others = (
    first(round_num=2),
    first(shuffle_seed=6),
    first(client_id=b'y'),
  )
  assert all(other != first() for other in others)
  # Letter, end: documents are whole and in their shuffled order.
  expected = np.stack([3 + _order(10), np.full(10, 2)], axis=1).ravel()
  assert first() == expected.tolist()
