"""Tokens on the disk are those that were computed, within the bound."""

import fcntl
import importlib.metadata
import json
import os
import subprocess
import sys

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers as huggingface

from tff_fedfish.data import token_cache, tokenizers
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.token_cache import TokenCache

# 32 bytes of SHA-256, the number of documents and a length, 8 bytes each, and
# 100 tokens of 4 bytes.
_FILE_BYTES = 32 + 2 * 8 + 400


def _documents(value=0):
  return [np.full(100, value, np.int32)]


def _cache(directory, max_bytes=10**6, key='[1]', min_bytes=0):
  return TokenCache(directory, key, max_bytes, min_bytes=min_bytes)


def _sizes(directory):
  return [
    path.stat().st_size for path in directory.iterdir() if path.name != 'lock'
  ]


def _found(cache):
  """Returns the clients a to d that are kept."""
  return [i for i in (b'a', b'b', b'c', b'd') if cache.load(i) is not None]


@hypothesis.given(
  st.binary(max_size=6),
  st.lists(hnp.arrays(np.int32, st.integers(0, 5)), max_size=4),
)
def test_what_is_stored_is_loaded(tmp_path_factory, client_id, documents):
  directory = tmp_path_factory.mktemp('tokens')
  _cache(directory).store(client_id, documents)
  found = _cache(directory).load(client_id)
  assert len(found) == len(documents)
  for one, other in zip(found, documents, strict=True):
    assert one.dtype == np.int32
    assert one.flags.writeable
    np.testing.assert_array_equal(one, other)


def test_other_clients_and_keys_have_other_files(tmp_path):
  _cache(tmp_path).store(b'a', _documents())
  assert _cache(tmp_path).load(b'b') is None
  assert _cache(tmp_path, key='[2]').load(b'a') is None


def test_short_clients_are_not_kept(tmp_path):
  # 100 tokens take 400 bytes.
  _cache(tmp_path, min_bytes=401).store(b'a', _documents())
  assert not list(tmp_path.iterdir())
  _cache(tmp_path, min_bytes=400).store(b'a', _documents())
  assert _sizes(tmp_path) == [_FILE_BYTES]


def test_a_client_beyond_the_bound_is_not_kept(tmp_path):
  _cache(tmp_path, _FILE_BYTES - 1).store(b'a', _documents())
  assert not list(tmp_path.iterdir())


def test_the_least_recently_used_goes_first(tmp_path):
  cache = _cache(tmp_path, 3 * _FILE_BYTES)
  for time, client_id in enumerate((b'a', b'b', b'c')):
    cache.store(client_id, _documents())
    os.utime(cache._path(client_id), (time, time))
  # The first is used again, so that the second makes room.
  cache.load(b'a')
  cache.store(b'd', _documents())
  assert _found(cache) == [b'a', b'c', b'd']


def test_a_lower_bound_holds_from_the_next_one_on(tmp_path):
  cache = _cache(tmp_path, 3 * _FILE_BYTES)
  for client_id in (b'a', b'b', b'c'):
    cache.store(client_id, _documents())
  # Of another corpus, too.
  _cache(tmp_path, 2 * _FILE_BYTES, key='[2]').store(b'a', _documents())
  assert sum(_sizes(tmp_path)) == 2 * _FILE_BYTES


@hypothesis.given(
  st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 60)), max_size=12),
  st.integers(0, 600),
)
def test_the_bound_always_holds(tmp_path_factory, clients, max_bytes):
  directory = tmp_path_factory.mktemp('tokens')
  cache = _cache(directory, max_bytes)
  for client_id, length in clients:
    cache.store(client_id, [np.zeros(length, np.int32)])
    if directory.exists():
      assert sum(_sizes(directory)) <= max_bytes


@pytest.mark.parametrize(
  'damage',
  [
    lambda data: b'',
    lambda data: data[:-1],
    lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
  ],
)
def test_damage_is_not_read_and_repaired(tmp_path, damage):
  cache = _cache(tmp_path)
  cache.store(b'a', _documents())
  path = cache._path(b'a')
  whole = path.read_bytes()
  path.write_bytes(damage(whole))
  assert cache.load(b'a') is None
  cache.store(b'a', _documents())
  assert path.read_bytes() == whole


def test_what_a_killed_process_left_is_removed(tmp_path):
  cache = _cache(tmp_path, 2 * _FILE_BYTES)
  cache.store(b'a', _documents())
  leftover = tmp_path / f'.{cache._path(b"b").name}.x1y2'
  leftover.write_bytes(b'x' * 10**4)
  cache.store(b'b', _documents())
  assert not leftover.exists()
  assert _found(cache) == [b'a', b'b']


def test_nothing_waits_for_another_process(tmp_path):
  cache = _cache(tmp_path)
  cache.store(b'a', _documents())
  with open(tmp_path / 'lock', 'rb') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    cache.store(b'b', _documents())
    assert _found(cache) == [b'a']
  cache.store(b'b', _documents())
  assert _found(cache) == [b'a', b'b']


def test_a_directory_that_cannot_be_written(tmp_path):
  (tmp_path / 'tokens').write_text('a file')
  cache = _cache(tmp_path / 'tokens')
  cache.store(b'a', _documents())
  assert cache.load(b'a') is None


_PROGRAM = """
import sys
import numpy as np
from tff_fedfish.data.token_cache import TokenCache
cache = TokenCache(sys.argv[1], '[1]', int(sys.argv[2]), min_bytes=0)
for step in range(200):
  number = step * 7 % 10
  found = cache.load(b'%d' % number)
  assert found is None or (found[0] == number).all() and len(found[0]) == 100
  cache.store(b'%d' % number, [np.full(100, number, np.int32)])
"""


def test_processes_share_it(tmp_path):
  max_bytes = 4 * _FILE_BYTES
  command = [sys.executable, '-c', _PROGRAM, str(tmp_path), str(max_bytes)]
  processes = [subprocess.Popen(command) for _ in range(3)]
  assert [process.wait() for process in processes] == [0, 0, 0]
  assert 0 < sum(_sizes(tmp_path)) <= max_bytes


class _Corpus:
  """Clients whose texts are a letter each, which may be read once."""

  content_digest = 'digest'

  def __init__(self):
    self.reads = []

  def examples(self, client_id):
    self.reads.append(client_id)
    return [{'text': b' '.join([client_id] * n)} for n in (20, 0, 3)]


@pytest.fixture(name='tokenizer', scope='module')
def _tokenizer():
  return tokenizers.wordpiece_tokenizer(b'[PAD]\n[UNK]\n[END]\na\nb', 'a.txt')


class TestClientSequences:
  @pytest.fixture(autouse=True)
  def _all_are_long(self, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(token_cache, 'MIN_BYTES', 0)

  def _clients(self, corpus, tokenizer, max_bytes=10**6, **options):
    return ClientSequences(
      corpus,
      tokenizer,
      cache_bytes=0,
      token_cache=token_cache.open_cache(max_bytes, corpus, tokenizer),
      **options,
    )

  def test_a_client_is_tokenized_once_whatever_the_length(self, tokenizer):
    corpus = _Corpus()
    for length in (7, 7, 4):
      clients = self._clients(corpus, tokenizer, sequence_length=length)
      plain = ClientSequences(_Corpus(), tokenizer, sequence_length=length)
      found, expected = (c.sequences(b'b') for c in (clients, plain))
      np.testing.assert_array_equal(found.tokens, expected.tokens)
      np.testing.assert_array_equal(found.num_targets, expected.num_targets)
      documents = zip(
        clients.documents(b'b'), plain.documents(b'b'), strict=True
      )
      for one, other in documents:
        np.testing.assert_array_equal(one, other)
    assert corpus.reads == [b'b']

  def test_0_bytes_is_off(self, tokenizer, tmp_path):
    corpus = _Corpus()
    clients = self._clients(corpus, tokenizer, 0, sequence_length=7)
    clients.sequences(b'b')
    clients.sequences(b'b')
    assert corpus.reads == [b'b', b'b']
    assert not list(tmp_path.iterdir())

  def test_other_texts_and_vocabularies_are_other_keys(self, tokenizer):
    corpus, other_corpus = _Corpus(), _Corpus()
    other_corpus.content_digest = 'other'
    other = tokenizers.wordpiece_tokenizer(
      b'[PAD]\n[UNK]\n[END]\nb\na', 'a.txt'
    )
    for one, vocabulary in (
      (corpus, tokenizer),
      (other_corpus, tokenizer),
      (corpus, other),
    ):
      clients = self._clients(one, vocabulary, sequence_length=7)
      # Pieces are numbered by their lines.
      expected = 4 if vocabulary is tokenizer else 3
      assert clients.sequences(b'b').tokens[0, 0] == expected
    assert corpus.reads == [b'b', b'b']
    assert other_corpus.reads == [b'b']

  def test_key_is_json(self, tokenizer):
    cache = token_cache.open_cache(1, _Corpus(), tokenizer)
    # That of earlier versions, to the last byte.
    text_version = importlib.metadata.version('tensorflow-text')
    assert cache._key.decode() == json.dumps(
      [1, 'digest', ['wordpiece', tokenizer.sha256, True], text_version]
    )

  def test_key_names_the_library_of_the_vocabulary(self, tmp_path):
    model = huggingface.models.WordLevel({'a': 0, '</s>': 1}, unk_token='a')
    huggingface.Tokenizer(model).save(str(tmp_path / 'tokenizer.json'))
    tokenizer = tokenizers.load_tokenizer(tmp_path)
    cache = token_cache.open_cache(1, _Corpus(), tokenizer)
    assert json.loads(cache._key)[2:] == [
      ['tokenizer_json', tokenizer.sha256, False, huggingface.__version__],
      importlib.metadata.version('tensorflow-text'),
    ]
