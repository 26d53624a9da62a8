"""FedFish's weights of units: means along axes, the power, the mix."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.fed_fish import FedFish
from tff_fedfish.rounds.weighted_mean import Weighted, WeightedMean

# F of client 1; clients 2 and 3 have 2 and 1 in every element. The deltas are
# 1, -1 and 2, the weights 1, 2 and 1, so that a mean m of F of client 1 gives
#   g = (1 m 1 - 2 2 1 + 1 1 2) / (1 m + 2 2 + 1 1) = (m - 2) / (m + 5),
# and where each client divides by its own mean,
#   g = (1 m 1 - 2 1 1 + 1 1 2) / (1 m + 2 1 + 1 1) = m / (m + 3).
_TENSORS = {
  'tied': [[1, 2, 3], [3, 4, 5]],
  'stacked': [[[1, 2, 6], [5, 4, 6]], [[0, 0, 3], [2, 4, 9]]],
  'convolution': [[[[1, 2, 3], [4, 5, 6]], [[3, 4, 5], [6, 9, 6]]]],
  'bias': [2, 4],
}
# (input_axis, is_stacked).
_AXES = (1, False), (1, True), (2, False), (None, False)
_GRANULAR = {
  'element': list(_TENSORS.values()),
  # Means over tokens, over the outputs of each layer, and over six elements of
  # a channel: (1 + 2 + 3 + 3 + 4 + 5) / 6, (4 + 5 + 6 + 6 + 9 + 6) / 6.
  'input': [[[2, 3, 4]], [[[3], [5]], [[1], [5]]], [[[[3], [6]]]], [2, 4]],
  # Over hidden units, over the inputs of each layer, and over four elements:
  # (1 + 4 + 3 + 6) / 4, (2 + 5 + 4 + 9) / 4, (3 + 6 + 5 + 6) / 4.
  'output': [
    [[2], [4]],
    [[[3, 3, 6]], [[1, 2, 6]]],
    [[[[3.5, 5, 5]]]],
    [2, 4],
  ],
  # 18 / 6; 24 / 6 and 18 / 6; 54 / 12; 6 / 2.
  'tensor': [[[3]], [[[4]], [[3]]], [[[[4.5]]]], [3]],
  # 'input' over those means, at most 5/4, and half of each with 1/2:
  # (2, 3, 4) / 3; (3, 5) / 4 and (1, 5) / 3; (3, 6) / 4.5; (2, 4) / 3.
  'mixed': [
    [[5 / 6, 1, 9 / 8]],
    [[[7 / 8], [9 / 8]], [[2 / 3], [9 / 8]]],
    [[[[5 / 6], [9 / 8]]]],
    [5 / 6, 9 / 8],
  ],
}


@pytest.mark.parametrize('granularity', _GRANULAR)
def test_weights_of_units_by_hand(granularity):
  is_mixed = granularity == 'mixed'
  options = dict(fisher_granularity=granularity)
  if is_mixed:
    options = dict(fisher_granularity='input', fisher_mix=0.5, fisher_cap=1.25)
  method = FedFish(**options)
  fishers = [tf.constant(f, tf.float32) for f in _TENSORS.values()]
  sums = None
  for weight, delta, squares in (
    (1.0, 1.0, fishers),
    (2.0, -1.0, [tf.fill(f.shape, 2.0) for f in fishers]),
    (1.0, 2.0, [tf.fill(f.shape, 1.0) for f in fishers]),
  ):
    a = [
      method._weights(f, 1, *axes)
      for f, axes in zip(squares, _AXES, strict=True)
    ]
    deltas = tuple(tf.fill(f.shape, delta) for f in fishers)
    terms, _ = WeightedMean().terms(Weighted(deltas, a), tf.constant(weight))
    sums = tf.nest.map_structure(tf.add, sums, terms) if sums else terms
  means = WeightedMean().mean(sums)
  for g, expected, f, total in zip(
    means, _GRANULAR[granularity], fishers, sums[0], strict=True
  ):
    m = np.array(expected)
    assert total.mass.shape == m.shape
    wanted = m / (m + 3) if is_mixed else (m - 2) / (m + 5)
    wanted = np.broadcast_to(wanted, f.shape)
    np.testing.assert_allclose(g, wanted, atol=1e-6)


def test_the_power_comes_before_the_mean_of_a_unit():
  # (1 + 3) / 2 and (2 + 4) / 2, not the roots of (1 + 9) / 2 and (4 + 16) / 2;
  # with q = 1/2: 1/2 + m / 5, their mean being 5/2.
  squares = tf.constant([[1.0, 9], [4, 16]])
  for mix, expected in ((None, [[2], [3]]), (0.5, [[0.9], [1.1]])):
    method = FedFish(
      fisher_granularity='input', fisher_power=0.5, fisher_mix=mix
    )
    found = method._weights(squares, 1, 0, False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_scale_of_a_clients_fisher_changes_a_mean_only_without_the_mix():
  random = np.random.RandomState(7)
  deltas = random.normal(size=(8, 4, 3)).astype(np.float32)
  squares = random.gamma(0.5, size=(8, 4, 3)).astype(np.float32)

  def mean(factor, **options):
    method = FedFish(**options)
    scaled = squares.copy()
    scaled[3] *= factor
    terms = []
    for delta, sums in zip(deltas, scaled, strict=True):
      a = method._weights(tf.constant(sums), 1, 0, False)
      update = Weighted((tf.constant(delta),), (a,))
      terms.append(WeightedMean().terms(update, tf.constant(1.0))[0])
    sums = tf.nest.map_structure(lambda *t: tf.add_n(t), *terms)
    return WeightedMean().mean(sums)[0].numpy()

  for granularity in ('element', 'input'):
    plain, mixed = (
      dict(fisher_granularity=granularity, fisher_mix=mix)
      for mix in (None, 0.75)
    )
    for factor in (3, 10, 100, 1e4):
      np.testing.assert_allclose(
        mean(factor, **mixed), mean(1, **mixed), atol=1e-5
      )
      assert np.abs(mean(factor, **plain) - mean(1, **plain)).max() > 0.1
    # Without gradients a client still has 1 - q of its weight; one that is not
    # finite is left out.
    assert np.isfinite(mean(0, **mixed)).all()
    assert np.abs(mean(0, **mixed) - mean(np.inf, **mixed)).max() > 1e-3
