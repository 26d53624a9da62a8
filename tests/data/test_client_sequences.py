"""Client sequences: cached by bytes, shuffled by seed, round and client."""

import threading

import numpy as np
import pytest
from token_stores import letter_tokenizer

from tff_fedfish.data import client_sequences, randomness
from tff_fedfish.data.client_sequences import ClientSequences

# A client's text of 20 letters and the end token: three sequences of 8 tokens,
# the last with 21 - 16 = 5 of them real. 3 * 8 * 4 bytes of tokens and 3 * 4 of
# num_targets.
_CLIENT_BYTES = 108


class _Corpus:
  """Clients whose only text repeats their own letter 20 times."""

  def __init__(self):
    self.reads = []
    self.lock = threading.Lock()

  def examples(self, client_id):
    with self.lock:
      self.reads.append(client_id)
    return [{'text': b' '.join([client_id] * 20)}]


@pytest.fixture(name='tokenizer', scope='module')
def _tokenizer():
  return letter_tokenizer()


@pytest.fixture(name='corpus')
def _corpus():
  return _Corpus()


def test_sequences_of_a_client(corpus, tokenizer):
  clients = ClientSequences(corpus, tokenizer, sequence_length=7)
  found = clients.sequences(b'b')
  # b is piece 4: 20 of them, the end token 2, padding 0.
  np.testing.assert_array_equal(
    found.tokens, [[4] * 8, [4] * 8, [4, 4, 4, 4, 2, 0, 0, 0]]
  )
  np.testing.assert_array_equal(found.num_targets, [7, 7, 4])
  assert found.tokens.nbytes + found.num_targets.nbytes == _CLIENT_BYTES


def test_a_client_is_tokenized_once(corpus, tokenizer):
  clients = ClientSequences(corpus, tokenizer, sequence_length=7)
  assert clients.sequences(b'a') is clients.sequences(b'a')
  for round_num in range(5):
    clients.training_sequences(b'a', shuffle_seed=1, round_num=round_num)
  assert corpus.reads == [b'a']


def test_the_least_recently_used_is_forgotten(corpus, tokenizer, monkeypatch):
  monkeypatch.setattr(client_sequences, '_CACHE_BYTES', 2 * _CLIENT_BYTES)
  clients = ClientSequences(corpus, tokenizer, sequence_length=7)
  # a and b fit; a is used again, so c pushes b out.
  for client_id in (b'a', b'b', b'a', b'c', b'a', b'c', b'b'):
    clients.sequences(client_id)
  assert corpus.reads == [b'a', b'b', b'c', b'b']


def test_a_client_beyond_the_cache_is_not_kept(corpus, tokenizer, monkeypatch):
  monkeypatch.setattr(client_sequences, '_CACHE_BYTES', _CLIENT_BYTES - 1)
  clients = ClientSequences(corpus, tokenizer, sequence_length=7)
  clients.sequences(b'a')
  assert len(clients.sequences(b'a')) == 3
  assert corpus.reads == [b'a', b'a']


def test_cached_arrays_cannot_be_changed(corpus, tokenizer):
  found = ClientSequences(corpus, tokenizer, sequence_length=7).sequences(b'a')
  with pytest.raises(ValueError, match='read-only'):
    found.tokens[0, 0] = 1
  with pytest.raises(ValueError, match='read-only'):
    found.num_targets[0] = 1


def test_threads_agree(corpus, tokenizer, monkeypatch):
  monkeypatch.setattr(client_sequences, '_CACHE_BYTES', 3 * _CLIENT_BYTES)
  clients = ClientSequences(corpus, tokenizer, sequence_length=7)
  wrong = []

  def read(offset):
    for step in range(60):
      letter = (step * 7 + offset) % 10
      found = clients.sequences(b'abcdefghij'[letter : letter + 1])
      if found.tokens[0, 0] != letter + 3 or len(found) != 3:
        wrong.append((offset, step))

  threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


class _Alphabet:
  """One client whose ten sequences of two tokens all differ."""

  def examples(self, client_id):
    del client_id  # All clients are alike.
    return [{'text': letter.encode()} for letter in 'abcdefghij']


def _order(clients, **kwargs):
  arguments = {'shuffle_seed': 1, 'round_num': 1, 'client_id': b'x'} | kwargs
  return list(clients.training_sequences(**arguments).tokens[:, 0])


def test_the_order_is_a_function_of_seed_round_and_client(tokenizer):
  clients = ClientSequences(_Alphabet(), tokenizer, sequence_length=1)
  order = _order(clients)
  assert order == _order(clients)
  assert sorted(order) == list(range(3, 13))
  others = [
    list(range(3, 13)),
    _order(clients, shuffle_seed=2),
    _order(clients, round_num=2),
    _order(clients, client_id=b'y'),
  ]
  assert order not in others
  generator = randomness.generator('client_shuffle', 1, 1, b'x')
  assert order == list(generator.permutation(10) + 3)


def test_the_cap_applies_after_the_shuffle(tokenizer):
  clients = ClientSequences(_Alphabet(), tokenizer, sequence_length=1)
  capped = clients.training_sequences(
    b'x', shuffle_seed=1, round_num=1, max_sequences=4
  )
  assert list(capped.tokens[:, 0]) == _order(clients)[:4]
  # Six sequences of a letter and the end token.
  assert capped.num_dropped_sequences == 6
  assert capped.num_dropped_tokens == 12


def test_batches_say_what_is_repeated(tokenizer):
  clients = ClientSequences(_Alphabet(), tokenizer, sequence_length=1)
  rows = clients.training_sequences(
    b'x', shuffle_seed=1, round_num=1, stream_length=12
  )
  x = rows.batch_features()['x']
  assert list(x) == ['tokens', 'is_repeated']
  assert list(x['is_repeated']) == [False] * 10 + [True] * 2
  assert x['is_repeated'].dtype == bool
  x = rows.select([0, 11]).batch_features()['x']
  assert list(x['is_repeated']) == [False, True]
