"""Parts of FedFomo: distances, weights, the choice of downloads."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.data import randomness
from tff_fedfish.mathematics import fomo


def test_distance():
  # (3, -4) and 12 apart: 5^2 + 12^2 = 169.
  model = [tf.constant([4.0, -4.0]), tf.constant(12.0)]
  baseline = [tf.constant([1.0, 0.0]), tf.constant(0.0)]
  np.testing.assert_allclose(fomo.distance(model, baseline), 13)
  assert fomo.distance(model, model) == 0


def test_raw_weights():
  # V6: gains 0.5, 1, 1.5, -0.5 by 1, 2, 5, 1; a distance of 0 and what is not
  # finite weigh 0.
  infinite = float('inf')
  losses = tf.constant([1.5, 1, 0.5, 2.5, 1, infinite, float('nan'), 1])
  distances = tf.constant([1.0, 2, 5, 1, 0, 1, 1, infinite])
  found = fomo.raw_weights(tf.constant(2.0), losses, distances)
  np.testing.assert_allclose(found, [0.5, 0.5, 0.3, -0.5, 0, 0, 0, 0])
  np.testing.assert_array_equal(
    fomo.raw_weights(tf.constant(infinite), losses, distances), np.zeros(8)
  )


def test_epsilon_of_round():
  found = [fomo.epsilon_of_round(0.3, 0.05, n) for n in range(1, 10)]
  np.testing.assert_allclose(
    found, [0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0, 0, 0], atol=1e-12
  )


def _choose(affinity, pool, num_downloads, epsilon=0.0, seed=1, round_num=1):
  return fomo.choose_downloads(
    np.array(affinity, np.float32),
    pool,
    num_downloads=num_downloads,
    epsilon=epsilon,
    generator=randomness.generator('downloads', seed, round_num, b'client'),
  )


class TestChooseDownloads:
  def test_the_highest_come_first(self):
    affinity = [9, -1, 0.5, 2, 0, 7]
    assert _choose(affinity, [1, 2, 3, 4], 3) == [3, 2, 4]

  def test_no_more_than_there_are(self):
    assert _choose([0, 1, 2], [1, 2], 5) == [2, 1]
    assert _choose([0, 1, 2], [2], 5, epsilon=1.0) == [2]
    assert _choose([0, 1, 2], [], 5) == []

  @pytest.mark.parametrize('epsilon', [0.0, 0.5, 1.0])
  def test_none_comes_twice(self, epsilon):
    for round_num in range(50):
      found = _choose([1, 1, 3, 0, 2], range(5), 4, epsilon, 1, round_num)
      assert len(set(found)) == 4

  def test_ties_are_drawn(self):
    first = [
      _choose([1, 1, 1, 5, 0], range(5), 2, round_num=n) for n in range(600)
    ]
    assert {pair[0] for pair in first} == {3}
    counts = np.bincount([pair[1] for pair in first], minlength=5)
    # 200 of each of three, with a standard deviation of 11.5.
    assert counts[3] == counts[4] == 0
    assert all(150 < count < 250 for count in counts[:3])

  def test_exploration(self):
    affinity = [4, 3, 2, 1]
    for epsilon in (0.4, 1.0):
      first = [
        _choose(affinity, range(4), 1, epsilon, round_num=n)[0]
        for n in range(1000)
      ]
      # Of the draws a quarter is of the best one anyway.
      share = np.mean(np.array(first) == 0)
      assert abs(share - (1 - 0.75 * epsilon)) < 0.05
      counts = np.bincount(first)[1:] / 1000
      np.testing.assert_allclose(counts, epsilon / 4, atol=0.05)

  def test_is_a_function_of_the_generator(self):
    affinity = np.zeros(30)
    pool = range(30)
    found = _choose(affinity, pool, 5, 0.5)
    assert found == _choose(affinity, pool, 5, 0.5)
    assert found != _choose(affinity, pool, 5, 0.5, seed=2)
    assert found != _choose(affinity, pool, 5, 0.5, round_num=2)
