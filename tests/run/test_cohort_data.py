"""Data of a cohort's clients: what is loaded, counted and in which order."""

import numpy as np

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.run import cohort_data


class _Rows:
  """Every client has three sequences of two tokens."""

  def training_sequences(self, client_id, **options):
    tokens = np.full([3, 3], options['round_num'], np.int32)
    return sequences_lib.Sequences(tokens, np.full(3, 2, np.int32))


def _batches(**settings):
  """Returns a client's batches: of two rows and of one."""
  values = dict(
    client_id=b'a',
    client_rows=_Rows(),
    round_num=1,
    shuffle_seed=4,
    max_sequences=3,
    batch_size=2,
    samples_labels=True,
  )
  client = cohort_data.TrainingClient(**values | settings)
  return list(client.load().data)


def _loaded_seeds(**settings):
  batches = _batches(**settings)
  return np.concatenate([batch['x']['noise_seed'] for batch in batches])


def test_seeds_are_a_function_of_seed_round_and_client():
  seeds = _loaded_seeds()
  assert seeds.shape == (3, 2)
  assert len(np.unique(seeds)) == 6
  np.testing.assert_array_equal(seeds, _loaded_seeds())
  for settings in (
    {'client_id': b'b'},
    {'round_num': 2},
    {'shuffle_seed': 5},
  ):
    assert not np.any(seeds == _loaded_seeds(**settings))


def test_batches_have_seeds_where_labels_are_drawn_alone():
  first, _ = _batches()
  assert list(first['x']) == ['tokens', 'noise_seed']
  np.testing.assert_array_equal(first['x']['tokens'], np.ones([2, 3]))
  first, _ = _batches(samples_labels=False)
  np.testing.assert_array_equal(first['x'], np.ones([2, 3]))
