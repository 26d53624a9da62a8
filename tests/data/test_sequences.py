"""Blocks of tokens by hand, and nothing lost on the way."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Sequences

_END, _PADDING = 9, 0


def _build(documents, sequence_length=3, drop_short_block=False):
  return sequences_lib.build_sequences(
    [np.array(document, np.int32) for document in documents],
    sequence_length=sequence_length,
    end_of_text_id=_END,
    padding_id=_PADDING,
    drop_short_block=drop_short_block,
  )


def _numbered(count, sequence_length=3):
  """Sequences whose row i holds i everywhere and has i % 3 + 1 targets."""
  rows = np.arange(count, dtype=np.int32)
  return Sequences(
    tokens=np.repeat(rows[:, None], sequence_length + 1, axis=1),
    num_targets=rows % 3 + 1,
  )


def _assert_equal(found, tokens, num_targets):
  np.testing.assert_array_equal(found.tokens, tokens)
  np.testing.assert_array_equal(found.num_targets, num_targets)
  assert found.tokens.dtype == found.num_targets.dtype == np.int32


def test_documents_are_joined_and_cut():
  # 1 2 3 9 | 9 4 5 9: the empty document is one end token.
  found = _build([[1, 2, 3], [], [4, 5]])
  _assert_equal(found, [[1, 2, 3, 9], [9, 4, 5, 9]], [3, 3])
  assert found.num_short_block_tokens == 0
  assert len(found) == 2


def test_the_last_block_is_padded():
  # 1 2 3 4 | 5 9 0 0: two tokens have one target.
  found = _build([[1, 2, 3, 4, 5]])
  _assert_equal(found, [[1, 2, 3, 4], [5, 9, 0, 0]], [3, 1])
  assert found.num_short_block_tokens == 0


def test_the_last_block_is_dropped_on_request():
  found = _build([[1, 2, 3, 4, 5]], drop_short_block=True)
  _assert_equal(found, [[1, 2, 3, 4]], [3])
  assert found.num_short_block_tokens == 2


def test_a_last_block_of_one_token_has_no_target():
  # 1 2 3 4 | 9
  for drop_short_block in (False, True):
    found = _build([[1, 2, 3, 4]], drop_short_block=drop_short_block)
    _assert_equal(found, [[1, 2, 3, 4]], [3])
    assert found.num_short_block_tokens == 1


def test_a_client_with_less_than_one_block():
  _assert_equal(_build([[7]]), [[7, 9, 0, 0]], [1])
  found = _build([[7]], drop_short_block=True)
  assert found.tokens.shape == (0, 4)
  assert found.num_short_block_tokens == 2


@given(
  st.lists(st.lists(st.integers(1, 8), max_size=12), max_size=8),
  st.integers(1, 9),
  st.booleans(),
)
def test_every_token_is_kept_or_counted(documents, sequence_length, drop):
  found = _build(documents, sequence_length, drop)
  stream = [token for document in documents for token in (*document, _END)]
  real = [
    int(token)
    for row, n in zip(found.tokens, found.num_targets, strict=True)
    for token in row[: n + 1]
  ]
  assert real == stream[: len(real)]
  assert len(real) + found.num_short_block_tokens == len(stream)
  assert found.num_short_block_tokens <= (sequence_length if drop else 1)
  for row, n in zip(found.tokens, found.num_targets, strict=True):
    assert 1 <= n <= sequence_length
    assert set(row[n + 1 :]) <= {_PADDING}
  assert (found.num_targets[:-1] == sequence_length).all()


def test_take_counts_what_it_cuts():
  # Rows 0 to 4 have targets 1 2 3 1 2. Cut: rows 3 and 4, which hold
  # (1 + 1) + (2 + 1) = 5 real tokens.
  found = sequences_lib.take(_numbered(5), 3)
  _assert_equal(found, _numbered(3).tokens, [1, 2, 3])
  assert (found.num_dropped_sequences, found.num_dropped_tokens) == (2, 5)
  # Cut again: row 2 with 3 + 1 tokens comes on top.
  found = sequences_lib.take(found, 2)
  assert (found.num_dropped_sequences, found.num_dropped_tokens) == (3, 9)


def test_dataset_keeps_order_and_the_last_partial_batch():
  batches = list(sequences_lib.to_dataset(_numbered(5), batch_size=2))
  assert [list(batch['x'][:, 0].numpy()) for batch in batches] == [
    [0, 1],
    [2, 3],
    [4],
  ]
  assert [list(batch['y'].numpy()) for batch in batches] == [
    [1, 2],
    [3, 1],
    [2],
  ]


@pytest.mark.parametrize('count', [0, 1, 5])
def test_batches_have_one_type_whatever_the_client(count):
  dataset = sequences_lib.to_dataset(_numbered(count), batch_size=2)
  expected = collections.OrderedDict(
    x=tf.TensorSpec([None, 4], tf.int32), y=tf.TensorSpec([None], tf.int32)
  )
  assert dataset.element_spec == expected
  assert isinstance(dataset.element_spec, collections.OrderedDict)
  assert len(list(dataset)) == (count + 1) // 2
