"""The Fisher-weighted mean, against numbers worked out by hand."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tff_fedfish.methods.fed_fish import fisher

# Two clients, n = (10, 30).
#   client  delta                    fisher
#     1     ( 0.2, -0.4, 0,   0.1)   (4, 1, 0, 0  )
#     2     (-0.1,  0.2, 0.5, 0.3)   (1, 3, 0, 0.5)
_N = (10.0, 30.0)
_DELTAS = ([0.2, -0.4, 0.0, 0.1], [-0.1, 0.2, 0.5, 0.3])
_FISHERS = ([4.0, 1.0, 0.0, 0.0], [1.0, 3.0, 0.0, 0.5])


def _aggregate(fishers=_FISHERS, relative_floor=0.0):
  terms = [
    fisher.fisher_weighted_terms(
      (tf.constant(delta, tf.float64),),
      (tf.constant(f, tf.float64),),
      tf.constant(n, tf.float64),
      relative_floor=relative_floor,
    )
    for n, delta, f in zip(_N, _DELTAS, fishers, strict=True)
  ]
  sums = tf.nest.map_structure(tf.add, *terms)
  (mean,) = fisher.fisher_weighted_mean(*sums)
  return mean.numpy()


def _fed_avg():
  # (10 * 0.2 - 30 * 0.1) / 40 = -0.025; (-4 + 6) / 40; 15 / 40; (1 + 9) / 40
  return np.array([-0.025, 0.05, 0.375, 0.25])


class TestFisherWeightedMean:
  def test_by_hand(self):
    # numerator (10*4*0.2 - 30*1*0.1, -10*0.4 + 30*3*0.2, 0, 30*0.5*0.3)
    #         = (5, 14, 0, 4.5); mass (70, 100, 0, 15)
    np.testing.assert_allclose(
      _aggregate(), [5 / 70, 0.14, 0.0, 0.3], atol=1e-12
    )

  def test_where_nobody_is_informed_clients_weigh_as_the_mean_of_their_f(self):
    # Entry 2: floors 1e-8 * (5/4, 4.5/4): 30*1.125*0.5 / (12.5 + 33.75)
    #        = 16.875 / 46.25 = 0.36486486..., while FedAvg has 0.375.
    np.testing.assert_allclose(
      _aggregate(relative_floor=1e-8),
      [0.0714285714, 0.14, 0.3648648649, 0.3],
      atol=1e-7,
    )

  def test_where_nobody_is_informed_equal_means_of_f_are_the_plain_mean(self):
    fishers = [fisher / np.mean(fisher) for fisher in _FISHERS]
    found = _aggregate(fishers, relative_floor=1e-8)
    np.testing.assert_allclose(found[2], 0.375, atol=1e-12)

  def test_equal_fishers_reduce_to_fed_avg(self):
    same = [7.0, 0.5, 3.0, 1e-9]
    np.testing.assert_allclose(
      _aggregate(fishers=(same, same)), _fed_avg(), atol=1e-12
    )

  @pytest.mark.parametrize('scale', [1e-12, 3.0, 1e6])
  def test_common_scale_changes_nothing(self, scale):
    scaled = [[scale * f for f in client] for client in _FISHERS]
    np.testing.assert_allclose(
      _aggregate(fishers=scaled, relative_floor=1e-8),
      _aggregate(relative_floor=1e-8),
      rtol=1e-12,
    )

  def test_equals_equation_4_on_weights(self):
    theta = np.array([1.0, -2.0, 0.5, 3.0])
    weights = np.array(_N)[:, None] * np.array(_FISHERS)
    theta_i = theta - np.array(_DELTAS)
    informed = weights.sum(0) > 0
    closed_form = (weights * theta_i).sum(0)[informed] / weights.sum(0)[
      informed
    ]
    np.testing.assert_allclose(
      (theta - _aggregate())[informed], closed_form, atol=1e-12
    )

  def test_all_zero_mass_is_zero_not_nan(self):
    nothing = [0.0] * 4
    np.testing.assert_array_equal(
      _aggregate(fishers=(nothing, nothing), relative_floor=1e-8), nothing
    )


class TestEffectiveClients:
  def _effective(self, masses):
    masses = np.stack(masses).astype(np.float64)
    return fisher.effective_clients(masses.sum(0), (masses**2).sum(0)).tolist()

  def test_by_hand(self):
    # w F: (40, 10, 0, 0) and (30, 90, 0, 15).
    # 70^2 / 2,500 = 1.96; 100^2 / 8,200; none; 15^2 / 225 = 1.
    masses = [n * np.array(f) for f, n in zip(_FISHERS, _N, strict=True)]
    assert self._effective(masses) == pytest.approx(
      [1.96, 10_000 / 8_200, 0.0, 1.0]
    )

  @pytest.mark.parametrize('count', [1, 3, 8])
  def test_equal_masses_are_all_clients_and_one_alone_is_one(self, count):
    equal = self._effective([[0.3, 5.0]] * count)
    assert equal == pytest.approx([count, count])
    alone = self._effective([[0.3, 5.0]] + [[0.0, 0.0]] * (count - 1))
    assert alone == pytest.approx([1.0, 1.0])


class TestDisjointSupports:
  """Two clients that know different bins of one function."""

  # A: bins 0 (3 points), 1 (1 point), optimum (1, 2, 0, 0)
  # B: bins 2, 3 (2 points each), optimum (0, 0, -1, 3); n = 4 each
  _OPTIMA = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, -1.0, 3.0]])

  def _mean(self, fishers):
    terms = [
      fisher.fisher_weighted_terms(
        (tf.constant(-optimum, tf.float32),),
        (tf.constant(f, tf.float32),),
        tf.constant(4.0),
        relative_floor=0.0,
      )
      for optimum, f in zip(self._OPTIMA, fishers, strict=True)
    ]
    sums = tf.nest.map_structure(tf.add, *terms)
    return -fisher.fisher_weighted_mean(*sums)[0].numpy()

  def _barrier(self, theta):
    # Mean squared error on each client's points; 0 at its own optimum.
    of_a = (3 * (theta[0] - 1) ** 2 + (theta[1] - 2) ** 2) / 4
    of_b = (2 * (theta[2] + 1) ** 2 + 2 * (theta[3] - 3) ** 2) / 4
    return (of_a + of_b) / 2

  def test_fisher_of_a_gaussian_keeps_what_each_client_knows(self):
    theta = self._mean([[3, 1, 0, 0], [0, 0, 2, 2]])
    np.testing.assert_allclose(theta, [1, 2, -1, 3])
    assert self._barrier(theta) == 0

  def test_plain_mean_forgets_half(self):
    # (0.5, 1, -0.5, 1.5): gaps (3*0.25 + 1)/4 = 0.4375 and
    # (2*0.25 + 2*2.25)/4 = 1.25, mean 0.84375
    assert self._barrier(self._OPTIMA.mean(0)) == 0.84375

  def test_vanished_gradients_leave_the_server(self):
    # At the exact optima every squared gradient of the loss is 0.
    zeros = np.zeros((2, 4))
    np.testing.assert_array_equal(self._mean(zeros), [0, 0, 0, 0])


class TestMixedMean:
  def test_by_hand(self):
    # A quarter of (-0.025, 0.05, 0.375, 0.25), three of (1/14, 0.14, 0, 0.3).
    weighted = (tf.constant([1 / 14, 0.14, 0.0, 0.3], tf.float64),)
    (mixed,) = fisher.mixed_mean(weighted, (tf.constant(_fed_avg()),), 0.25)
    np.testing.assert_allclose(
      mixed, [0.75 / 14 - 0.00625, 0.1175, 0.09375, 0.2875], atol=1e-12
    )

  @hypothesis.given(
    st.lists(
      st.tuples(st.integers(1, 1000), st.floats(0, 1e30)),
      min_size=2,
      max_size=6,
    ),
    st.sampled_from([0.0, 0.25, 0.5, 0.75]),
  )
  @hypothesis.settings(deadline=None, max_examples=100)
  def test_influence_of_a_client_is_bounded_whatever_its_diagonal(
    self, clients, fraction
  ):
    weights = np.array([float(w) for w, _ in clients])
    # Only the first client moves: the mean is its part in the round.
    terms = [
      fisher.fisher_weighted_terms(
        (tf.constant([float(i == 0)], tf.float64),),
        (tf.constant([diagonal], tf.float64),),
        tf.constant(weights[i], tf.float64),
        relative_floor=0.0,
      )
      for i, (_, diagonal) in enumerate(clients)
    ]
    sums = tf.nest.map_structure(lambda *t: tf.add_n(t), *terms)
    plain_part = weights[0] / weights.sum()
    (mixed,) = fisher.mixed_mean(
      fisher.fisher_weighted_mean(*sums),
      (tf.constant([plain_part], tf.float64),),
      fraction,
    )
    least = fraction * plain_part
    assert least - 1e-12 <= mixed.numpy()[0] <= least + 1 - fraction + 1e-12
