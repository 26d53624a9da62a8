"""Training rows of shuffled documents, tokenized only as far as needed."""

import pytest
from token_stores import letter_tokenizer

from tff_fedfish.data import randomness
from tff_fedfish.data.client_sequences import ClientSequences

_ROUND = dict(shuffle_seed=5, round_num=2)


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
  return _CountingTokenizer(letter_tokenizer())


def _clients(tokenizer, *documents, **options):
  return ClientSequences(
    _Corpus(*documents),
    tokenizer,
    sequence_length=3,
    sampling='documents',
    **options,
  )


def test_rows_by_hand(tokenizer):
  documents = ('aaa', 'bb', 'cccc')
  clients = _clients(tokenizer, *documents)
  stream = []
  order = randomness.permutation(3, pass_num=2, shuffle_seed=5, client_id=b'x')
  for number in order:
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
