"""Steps and drawn batches of clients that train by DP-SGD."""

import dataclasses

import numpy as np
import pytest

from tff_fedfish.data.sequences import Sequences
from tff_fedfish.run.cohorts import TrainingClient
from tff_fedfish.run.private import PrivateRounds

_ROUNDS = PrivateRounds(
  seed=6,
  batch_size=4,
  num_epochs=3,
  num_local_steps=None,
  max_rows=None,
  draws_batches=True,
)


@pytest.mark.parametrize(
  ('changes', 'num_rows', 'num_steps'),
  [
    # 3 floor(11 / 4), 3 floor(3 / 4), 3 floor(9 / 4) with a cap.
    ({}, 11, 6),
    ({}, 3, 0),
    ({'max_rows': 9}, 100, 6),
    ({'num_local_steps': 5, 'num_epochs': 1}, 11, 5),
    ({'num_local_steps': 5, 'num_epochs': 1}, 3, 5),
    ({'num_local_steps': 5, 'num_epochs': 1}, 0, 0),
  ],
)
def test_number_of_steps(changes, num_rows, num_steps):
  rounds = dataclasses.replace(_ROUNDS, **changes)
  assert rounds.num_steps(num_rows) == num_steps
  assert len(rounds.batches(num_rows, 1, b'a')) == num_steps


def test_every_row_is_drawn_with_the_rate_by_itself():
  # q = 4 / 16. 9,000 steps: a row is drawn 2250 times, give or take 41.
  rounds = dataclasses.replace(_ROUNDS, num_epochs=1, num_local_steps=9000)
  batches = rounds.batches(16, 1, b'a')
  counts = np.bincount(np.concatenate(batches), minlength=16)
  assert np.all(np.abs(counts - 2250) < 5 * 41)
  # Sizes are binomial: variance 16 * 0.25 * 0.75 = 3, at times no row.
  sizes = np.array([len(batch) for batch in batches])
  assert np.var(sizes) == pytest.approx(3, rel=0.1)
  # 0.75^16 = 0.01 of all.
  assert 40 < np.sum(sizes == 0) < 150
  assert all(len(set(batch)) == len(batch) for batch in batches)


def test_a_row_is_in_all_batches_of_a_client_with_too_few():
  rounds = dataclasses.replace(_ROUNDS, num_epochs=1, num_local_steps=2)
  for batch in rounds.batches(3, 1, b'a'):
    assert list(batch) == [0, 1, 2]


def test_draws_are_a_function_of_seed_round_and_client():
  first = np.concatenate(_ROUNDS.batches(100, 1, b'a'))
  again = np.concatenate(_ROUNDS.batches(100, 1, b'a'))
  np.testing.assert_array_equal(first, again)
  other_seed = dataclasses.replace(_ROUNDS, seed=7)
  for other in (
    _ROUNDS.batches(100, 2, b'a'),
    _ROUNDS.batches(100, 1, b'b'),
    other_seed.batches(100, 1, b'a'),
  ):
    assert list(np.concatenate(other)) != list(first)


class _Rows:
  """Clients with some rows of two tokens."""

  def __init__(self, num_rows):
    self.num_rows = num_rows

  def training_sequences(self, client_id, *, max_sequences, **unused):
    assert max_sequences is None
    tokens = np.arange(2 * self.num_rows, dtype=np.int32).reshape(-1, 2)
    return Sequences(tokens, np.ones(self.num_rows, np.int32))


def _loaded(num_rows):
  return TrainingClient(
    client_id=b'a',
    client_rows=_Rows(num_rows),
    round_num=2,
    shuffle_seed=4,
    max_sequences=None,
    batch_size=4,
    private=_ROUNDS,
  ).load()


def test_a_client_is_loaded_with_its_drawn_batches():
  loaded = _loaded(11)
  expected = _ROUNDS.batches(11, 2, b'a')
  found = list(loaded.data['data'])
  assert len(found) == len(expected) == 6
  for batch, rows in zip(found, expected, strict=True):
    np.testing.assert_array_equal(batch['x'][:, 0], 2 * rows)
    assert batch['y'].shape == rows.shape
  assert loaded.data['data'].element_spec['x'].shape.as_list() == [None, 2]
  (private,) = loaded.data['local_privacy']
  assert private['num_examples'] == 11
  # Of three passes of two steps.
  assert private['num_unobserved'] == 4
  assert loaded.counts['num_dropped_sequences'] == 0
  (other,) = _loaded(12).data['local_privacy']
  # A function of seed, round and client only.
  np.testing.assert_array_equal(private['noise_seed'], other['noise_seed'])


def test_a_client_without_a_step_is_empty_and_its_rows_are_dropped():
  loaded = _loaded(3)
  assert not list(loaded.data['data'])
  (private,) = loaded.data['local_privacy']
  assert private['num_examples'] == 0
  assert loaded.counts['num_dropped_sequences'] == 3
  assert loaded.counts['num_dropped_tokens'] == 6


def test_noise_has_another_seed_in_every_round_and_client():
  seeds = {
    tuple(next(iter(_ROUNDS.client_input(5, *key)))['noise_seed'].numpy())
    for key in ((1, b'a'), (2, b'a'), (1, b'b'))
  }
  assert len(seeds) == 3
