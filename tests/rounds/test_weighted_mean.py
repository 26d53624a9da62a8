"""The weighted mean of deltas, by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.rounds.weighted_mean import Weighted, WeightedMean

# Two clients, n = (10, 30).
#   client  delta                    fisher
#     1     ( 0.2, -0.4, 0,   0.1)   (4, 1, 0, 0  )
#     2     (-0.1,  0.2, 0.5, 0.3)   (1, 3, 0, 0.5)
_N = (10.0, 30.0)
_DELTAS = ([0.2, -0.4, 0.0, 0.1], [-0.1, 0.2, 0.5, 0.3])
_FISHERS = ([4.0, 1.0, 0.0, 0.0], [1.0, 3.0, 0.0, 0.5])
# (10 * 0.2 - 30 * 0.1) / 40, (-4 + 6) / 40, 15 / 40, (1 + 9) / 40.
_FED_AVG = [-0.025, 0.05, 0.375, 0.25]


def _mean(
  *options, weights=_N, deltas=_DELTAS, fishers=_FISHERS, dtype=tf.float64
):
  """Returns g of single tensors."""
  aggregator = WeightedMean(*options)
  terms = [
    aggregator.terms(
      Weighted((tf.constant(d, dtype),), (tf.constant(f, dtype),)),
      tf.constant(w, dtype),
    )[0]
    for w, d, f in zip(weights, deltas, fishers, strict=True)
  ]
  sums = tf.nest.map_structure(lambda *t: tf.add_n(t), *terms)
  return aggregator.mean(sums)[0].numpy()


def test_by_hand():
  # numerator (10*4*0.2 - 30*1*0.1, -10*0.4 + 30*3*0.2, 0, 30*0.5*0.3)
  #         = (5, 14, 0, 4.5); mass (70, 100, 0, 15)
  expected = np.array([5 / 70, 0.14, 0.0, 0.3])
  np.testing.assert_allclose(_mean(), expected, atol=1e-12)
  mixed = 0.25 * np.array(_FED_AVG) + 0.75 * expected
  np.testing.assert_allclose(_mean(0.0, 0.25), mixed, atol=1e-12)


def test_floor_lets_clients_weigh_as_the_mean_of_their_f():
  # Entry 2: floors 1e-8 * (5/4, 4.5/4): 30*1.125*0.5 / (12.5 + 33.75)
  #        = 16.875 / 46.25 = 0.36486486..., while FedAvg has 0.375.
  expected = [0.0714285714, 0.14, 0.3648648649, 0.3]
  np.testing.assert_allclose(_mean(1e-8), expected, atol=1e-7)
  fishers = [f / np.mean(f) for f in _FISHERS]
  found = _mean(1e-8, fishers=fishers)
  np.testing.assert_allclose(found[2], 0.375, atol=1e-12)


@pytest.mark.parametrize('same', [[7.0, 0.5, 3.0, 1e-9], [1.0]])
def test_equal_fishers_are_fed_avg(same):
  found = _mean(fishers=(same, same))
  np.testing.assert_allclose(found, _FED_AVG, atol=1e-12)


@pytest.mark.parametrize('scale', [1e-12, 3.0, 1e6])
def test_common_scale_changes_nothing(scale):
  found = _mean(1e-8, fishers=scale * np.array(_FISHERS))
  np.testing.assert_allclose(found, _mean(1e-8), rtol=1e-12)


def test_an_overflowing_client_is_in_neither_mean():
  # w F delta of client 1 is beyond float32; w delta is not.
  found = _mean(0.0, 0.5, fishers=([3e38] * 4, _FISHERS[1]), dtype=tf.float32)
  # Entry 0 would otherwise be (-0.025 - 0.1) / 2.
  np.testing.assert_allclose(found, [-0.1, 0.2, 0.25, 0.3], rtol=1e-6)


def test_disjoint_supports_keep_what_each_client_knows():
  # Two clients know different bins of one function. A: bins 0 (3 points) and
  # 1 (1 point), B: bins 2 and 3 (2 points each); n = 4 each.
  optima = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, -1.0, 3.0]])
  options = dict(weights=(4.0, 4.0), deltas=-optima, dtype=tf.float32)
  found = _mean(fishers=[[3, 1, 0, 0], [0, 0, 2, 2]], **options)
  np.testing.assert_array_equal(-found, [1, 2, -1, 3])
  # At the exact optima every squared gradient is 0, and the server stays.
  found = _mean(1e-8, fishers=np.zeros((2, 4)), **options)
  np.testing.assert_array_equal(found, np.zeros(4))


def test_a_tensor_without_weights_takes_the_plain_mean():
  update = Weighted((tf.constant(_DELTAS[0]), tf.constant([3.0])), ((), ()))
  other = Weighted((tf.constant(_DELTAS[1]), tf.constant([-1.0])), ((), ()))
  aggregator = WeightedMean(1e-8, 0.25)
  sums = tf.nest.map_structure(
    lambda *t: tf.add_n(t),
    aggregator.terms(update, tf.constant(10.0))[0],
    aggregator.terms(other, tf.constant(30.0))[0],
  )
  first, second = aggregator.mean(sums)
  np.testing.assert_allclose(first, _FED_AVG, rtol=1e-6)
  # (10 * 3 - 30) / 40.
  np.testing.assert_array_equal(second, [0])
