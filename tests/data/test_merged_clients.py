"""Merged clients: unions of groups, found row by row in a token store."""

import numpy as np
import pytest
import token_stores

from tff_fedfish.data import merged_clients, randomness
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.merged_clients import Merge, MergedClients
from tff_fedfish.data.stored_sequences import StoredSequences


@pytest.fixture(name='stored', scope='module')
def _stored(tmp_path_factory):
  """Groups a to j; group i repeats its letter 2 i times, before the end token.

  With blocks of two tokens it has i full ones, and the end token, which is
  dropped, in a last one.
  """
  documents = {g: [g * 2 * i] for i, g in enumerate('abcdefghij')}
  return token_stores.tokenize(tmp_path_factory.mktemp('merged'), documents)


def _merged(stored, num_clients=3, partition_seed=5, held_out=0.0, length=1):
  merge = Merge(
    num_clients=num_clients,
    partition_seed=partition_seed,
    split_seed=0,
    held_out_fraction=held_out,
  )
  _, store, tokenizer = stored
  groups = StoredSequences(store, tokenizer, sequence_length=length)
  return MergedClients(store, groups, merge)


def test_ids_are_numbered():
  assert merged_clients.client_ids(2) == [b'merged-00000', b'merged-00001']


def test_owners_are_fixed(stored):
  merged = _merged(stored)
  members = [merged.group_ids(i) for i in merged_clients.client_ids(3)]
  # A change would make other clients of every run.
  assert members == [
    [b'd', b'g'],
    [b'b', b'c', b'e', b'h', b'i'],
    [b'a', b'f', b'j'],
  ]
  other = _merged(stored, partition_seed=6)
  assert members != [other.group_ids(i) for i in merged_clients.client_ids(3)]


@pytest.mark.parametrize('length', [1, 5])
@pytest.mark.parametrize('held_out', [0.0, 0.5])
def test_rows_are_those_of_the_groups(stored, held_out, length):
  merged = _merged(stored, held_out=held_out, length=length)
  # Tokenized on demand.
  groups = ClientSequences(
    stored.corpus, stored.tokenizer, sequence_length=length
  )
  num_groups = 0
  for client_id in merged_clients.client_ids(3):
    parts = [groups.sequences(i) for i in merged.group_ids(client_id)]
    num_groups += len(parts)
    rows = merged.sequences(client_id)
    np.testing.assert_array_equal(
      rows.tokens, np.concatenate([part.tokens for part in parts])
    )
    np.testing.assert_array_equal(
      rows.num_targets, np.concatenate([part.num_targets for part in parts])
    )
    lost = sum(part.num_short_block_tokens for part in parts)
    assert rows.num_short_block_tokens == lost
    unread = merged._selectable(client_id)
    assert len(unread) == merged.num_training_rows(client_id) == len(rows)
    assert unread.num_tokens == rows.num_tokens
    for index in (np.array([2, 0, 1]), np.array([], int)):
      expected = rows.select(index).num_tokens
      assert unread.num_tokens_at(index) == expected
  assert (num_groups == 10) == (held_out == 0)


def test_rows_of_a_stream(stored):
  merged = _merged(stored, num_clients=1)
  (client_id,) = merged_clients.client_ids(1)
  everything = merged.sequences(client_id)
  for round_num in (1, 2):
    # Of 0 + 1 + ... + 9 = 45 rows: the second round begins in the second pass.
    order, is_repeated = randomness.stream_rows(
      45, 50, round_num=round_num, shuffle_seed=4, client_id=client_id
    )
    rows = merged.training_sequences(
      client_id, shuffle_seed=4, round_num=round_num, stream_length=50
    )
    np.testing.assert_array_equal(rows.tokens, everything.tokens[order])
    np.testing.assert_array_equal(rows.is_repeated, is_repeated)


def test_a_client_without_groups_has_no_rows(stored):
  merged = _merged(stored, num_clients=100)
  empty = [i for i in merged_clients.client_ids(100) if not merged.group_ids(i)]
  assert len(empty) >= 90
  for stream_length in (None, 4):
    rows = merged.training_sequences(
      empty[0], shuffle_seed=4, round_num=1, stream_length=stream_length
    )
    assert rows.tokens.shape == (0, 2)
