"""Merged clients: unions of groups, found row by row; counts that are kept."""

import hashlib
import json
import os
import pathlib

import numpy as np
import pytest
import tokenizers as huggingface
from grouping_jobs import group_lines

from tff_fedfish.data import merged_clients, randomness, row_counts, tokenizers
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.grouped_corpus import GroupedCorpus

_PIECES = ['[PAD]', '[UNK]', '[END]', *'abcdefghij']
# Group i has 2 i letters and the end token: with blocks of two tokens
# i full ones, and the end token, which is dropped, in a last one.
_GROUPS = [letter.encode() for letter in 'abcdefghij']


class _Corpus:
  """Groups a to j; group i repeats its letter 2 i times."""

  def __init__(self):
    self.reads = []

  def examples(self, group_id):
    self.reads.append(group_id)
    number = _GROUPS.index(group_id)
    return [{'text': b' '.join([group_id] * 2 * number)}]


@pytest.fixture(name='cache', autouse=True)
def _cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  return tmp_path / 'cache' / 'fedfish' / 'row_counts'


@pytest.fixture(name='tokenizer', scope='module')
def _tokenizer():
  return tokenizers.wordpiece_tokenizer(
    '\n'.join(_PIECES).encode(), 'vocab.txt'
  )


@pytest.fixture(name='groups')
def _groups(tokenizer):
  return ClientSequences(_Corpus(), tokenizer, sequence_length=1)


def _counts(groups):
  return row_counts.load_or_count('corpus', _GROUPS, groups)


def _merged(groups, num_clients=3, partition_seed=5):
  return merged_clients.MergedClients(
    groups,
    _GROUPS,
    _counts(groups),
    num_clients=num_clients,
    partition_seed=partition_seed,
  )


class TestMergedClients:
  def test_ids_are_numbered(self):
    assert merged_clients.client_ids(2) == [b'merged-00000', b'merged-00001']

  def test_every_group_has_one_owner(self, groups):
    merged = _merged(groups)
    members = [merged.group_ids(i) for i in merged_clients.client_ids(3)]
    assert sorted(sum(members, [])) == _GROUPS
    assert members == [
      [
        group
        for group in _GROUPS
        if merged_clients.owner(group, num_clients=3, partition_seed=5) == k
      ]
      for k in range(3)
    ]
    other = _merged(groups, partition_seed=6)
    assert members != [other.group_ids(i) for i in merged_clients.client_ids(3)]

  def test_owners_are_fixed(self):
    # A change would make other clients of every run.
    owners = [
      merged_clients.owner(group, num_clients=3, partition_seed=5)
      for group in _GROUPS
    ]
    assert owners == [2, 1, 1, 0, 1, 2, 0, 1, 1, 2]

  def test_rows_are_those_of_the_groups(self, groups):
    merged = _merged(groups)
    for client_id in merged_clients.client_ids(3):
      parts = [groups.sequences(i) for i in merged.group_ids(client_id)]
      found = merged.sequences(client_id)
      np.testing.assert_array_equal(
        found.tokens, np.concatenate([part.tokens for part in parts])
      )
      np.testing.assert_array_equal(
        found.num_targets, np.concatenate([part.num_targets for part in parts])
      )
      # The end token of each group is alone in its block.
      assert found.num_short_block_tokens == len(parts)

  def test_a_round_is_a_pass(self, groups):
    merged = _merged(groups, num_clients=1)
    (client_id,) = merged_clients.client_ids(1)
    everything = merged.sequences(client_id)
    # 0 + 1 + ... + 9.
    assert len(everything) == 45
    order = randomness.permutation(
      45, shuffle_seed=4, pass_num=2, client_id=client_id
    )
    found = merged.training_sequences(client_id, shuffle_seed=4, round_num=2)
    np.testing.assert_array_equal(found.tokens, everything.tokens[order])
    assert found.num_dropped_sequences == found.num_dropped_tokens == 0
    capped = merged.training_sequences(
      client_id, shuffle_seed=4, round_num=2, max_sequences=7
    )
    np.testing.assert_array_equal(capped.tokens, everything.tokens[order[:7]])
    # 38 rows of two tokens; 10 end tokens are lost as well.
    assert capped.num_dropped_sequences == 38
    assert capped.num_dropped_tokens == 76
    assert capped.num_lost_tokens == 86

  def test_a_stream_is_that_of_a_client_with_these_rows(self, groups):
    merged = _merged(groups)
    client_id = merged_clients.client_ids(3)[0]
    everything = merged.sequences(client_id)
    purposes = dict(shuffle_seed=4, round_num=3)
    found = merged.training_sequences(client_id, stream_length=20, **purposes)
    rows, is_repeated = randomness.stream_rows(
      len(everything), 20, client_id=client_id, **purposes
    )
    np.testing.assert_array_equal(found.tokens, everything.tokens[rows])
    np.testing.assert_array_equal(found.is_repeated, is_repeated)
    assert found.num_dropped_sequences == found.num_dropped_tokens == 0

  def test_a_round_reads_only_the_groups_of_its_rows(self, groups):
    merged = _merged(groups, num_clients=1)
    fresh = _Corpus()
    groups._corpus = fresh
    groups._cache.clear()
    found = merged.training_sequences(
      b'merged-00000', shuffle_seed=4, round_num=1, max_sequences=3
    )
    # Letter a is piece 3.
    wanted = {_GROUPS[token - 3] for token in found.tokens[:, 0]}
    assert sorted(fresh.reads) == sorted(wanted)

  def test_a_client_without_groups_has_no_rows(self, groups):
    merged = _merged(groups, num_clients=100)
    empty = [
      i for i in merged_clients.client_ids(100) if not merged.group_ids(i)
    ]
    assert len(empty) >= 90
    for stream_length in (None, 4):
      found = merged.training_sequences(
        empty[0], shuffle_seed=4, round_num=1, stream_length=stream_length
      )
      assert found.tokens.shape == (0, 2)

  def test_a_changed_group_is_named(self, groups):
    merged = _merged(groups, num_clients=1)
    groups._cache.clear()
    groups._corpus.examples = lambda group_id: [{'text': b'a a'}]
    with pytest.raises(
      ValueError,
      match="Group b'c' must have 2 sequences, as when they were counted, but "
      'has 1: the corpus was changed',
    ):
      merged.sequences(b'merged-00000')


class TestKeptCounts:
  def test_by_hand(self, groups):
    counts = _counts(groups)
    assert list(counts.num_rows) == list(range(10))
    assert list(counts.num_tokens) == list(range(0, 20, 2))
    assert list(counts.num_short_block_tokens) == [1] * 10

  def _num_read(self, tokenizer, **settings):
    """Counts with nothing in memory; returns how many groups are read."""
    corpus = _Corpus()
    groups = ClientSequences(
      corpus, tokenizer, **{'sequence_length': 1} | settings
    )
    found = row_counts.load_or_count('corpus', _GROUPS, groups)
    if not settings:
      assert list(found.num_rows) == list(range(10))
    return len(corpus.reads)

  def test_second_time_nothing_is_read(self, tokenizer, cache):
    assert self._num_read(tokenizer) == 10
    assert self._num_read(tokenizer) == 0
    (path,) = cache.iterdir()
    assert path.stat().st_size == row_counts.file_bytes(10) == 32 + 3 * 8 * 10

  @pytest.mark.parametrize(
    'settings', [dict(sequence_length=2), dict(drop_short_block=True)]
  )
  def test_other_blocks_are_counted(self, tokenizer, settings):
    self._num_read(tokenizer)
    assert self._num_read(tokenizer, **settings) == 10

  def _name(self, cache, tokenizer):
    self._num_read(tokenizer)
    (path,) = cache.iterdir()
    return path.name

  def test_key(self, tokenizer, cache):
    # That of earlier versions; [END] has the id 2.
    vocabulary = ['wordpiece', tokenizer.sha256, True]
    key = json.dumps([1, 'corpus', vocabulary, 2, 1, False])
    name = hashlib.sha256(key.encode()).hexdigest()
    assert self._name(cache, tokenizer) == name

  def test_key_names_the_library_of_the_vocabulary(self, cache, tmp_path):
    ids = {piece: i for i, piece in enumerate([*'abcdefghij', '</s>'])}
    made = huggingface.Tokenizer(
      huggingface.models.WordLevel(ids, unk_token='a')
    )
    made.pre_tokenizer = huggingface.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / 'tokenizer.json'))
    tokenizer = tokenizers.load_tokenizer(tmp_path)
    version = huggingface.__version__
    vocabulary = ['tokenizer_json', tokenizer.sha256, False, version]
    key = json.dumps([1, 'corpus', vocabulary, 10, 1, False])
    name = hashlib.sha256(key.encode()).hexdigest()
    assert self._name(cache, tokenizer) == name

  def test_another_corpus_is_counted(self, groups):
    _counts(groups)
    groups._cache.clear()
    groups._corpus.reads.clear()
    row_counts.load_or_count('another', _GROUPS, groups)
    assert len(groups._corpus.reads) == 10

  def test_a_corpus_grouped_again_with_other_words(self, tmp_path):
    # With the end token 'a' is two tokens and 'bbb' four: one row of two tokens
    # and two rows.
    tokenizer = tokenizers.wordpiece_tokenizer(
      b'[PAD]\n[UNK]\n[END]\na\nb\n##b', 'vocab.txt'
    )
    found = []
    for text in ('a', 'bbb'):
      directory = tmp_path / text
      directory.mkdir()
      line = {'text': text, 'url': 'http://host/', 'timestamp': '1'}
      corpus = GroupedCorpus(group_lines(directory, [line]))
      (group_id,) = corpus.client_ids
      merged = merged_clients.open_merged_clients(
        corpus,
        ClientSequences(corpus, tokenizer, sequence_length=1),
        merged_clients.Merge(
          num_clients=1,
          partition_seed=0,
          split_seed=0,
          held_out_fraction=0.0,
        ),
      )
      rows = merged.sequences(b'merged-00000')
      found.append((corpus.fingerprint, len(rows.tokens)))
    (first, first_rows), (again, again_rows) = found
    assert first == again
    assert (first_rows, again_rows) == (1, 2)

  @pytest.mark.parametrize(
    'damage',
    [
      lambda data: b'',
      lambda data: data[:-1],
      lambda data: data + b'\0',
      lambda data: data[:40] + b'\7' + data[41:],
      lambda data: b'\1' * len(data),
    ],
  )
  def test_damage_is_repaired(self, tokenizer, cache, damage):
    self._num_read(tokenizer)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert self._num_read(tokenizer) == 10
    assert path.read_bytes() == whole

  def test_a_cache_that_cannot_be_written(self, groups, tmp_path, monkeypatch):
    (tmp_path / 'file').write_bytes(b'')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert list(_counts(groups).num_rows) == list(range(10))

  def test_no_home(self, groups, monkeypatch):
    monkeypatch.delenv('XDG_CACHE_HOME')

    def no_home():
      raise RuntimeError('Could not determine home directory.')

    monkeypatch.setattr(pathlib.Path, 'home', no_home)
    assert list(_counts(groups).num_rows) == list(range(10))

  def test_a_relative_cache_home_is_ignored(
    self, groups, tmp_path, monkeypatch
  ):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('XDG_CACHE_HOME', 'relative')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    _counts(groups)
    assert not os.path.exists('relative')
    assert list((tmp_path / 'home/.cache/fedfish/row_counts').iterdir())

  def test_progress_is_called_where_rows_are_counted_only(self, groups):
    for expected in (['start', *['group'] * 10], []):
      calls = []
      row_counts.load_or_count(
        'corpus',
        _GROUPS,
        groups,
        on_start=lambda calls=calls: calls.append('start'),
        on_group=lambda calls=calls: calls.append('group'),
      )
      assert calls == expected
