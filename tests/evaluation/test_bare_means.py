"""The means of a cohort's deltas without a server optimizer, by hand."""

import numpy as np
import planned_configs
import pytest
import tensorflow as tf

from tff_fedfish.algorithms.slots.fisher_weighted_mean import DeltaAndFisher
from tff_fedfish.evaluation.barrier import BareMeans

# Four bins with a weight each. A client holds the bins 0 and 1, 3 points of
# target 1 and one of target 2; another the bins 2 and 3, 2 points each of
# targets -1 and 3. Each fits its own and leaves the others at 0. The Fisher
# diagonal of a Gaussian is the number of points.
_LOCAL = np.array([[1, 2, 0, 0], [0, 0, -1, 3]], np.float32)
_POINTS = np.array([[3, 1, 0, 0], [0, 0, 2, 2]], np.float32)


def _means(name, **settings):
  """Returns the method's mean and the plain one; tensors are two bins each."""
  config = planned_configs.by_hand(
    algorithm__name=name,
    **{f'algorithm__{key}': value for key, value in settings.items()},
  )
  means = BareMeans(config, ())
  before = (np.zeros(2, np.float32), np.zeros(2, np.float32))
  for local, points in zip(_LOCAL, _POINTS, strict=True):
    update = deltas = tuple(map(tf.constant, np.split(-local, 2)))
    if settings:
      diagonal = tuple(map(tf.constant, np.split(points, 2)))
      update = DeltaAndFisher(deltas, diagonal)
    trained = {'trainable': tuple(np.split(local, 2)), 'update': update}
    means.add(before, trained | {'client_weight': 4.0})
  # A client without weight does not count.
  means.add(before, trained | {'client_weight': 0.0})
  return np.concatenate(means.own()), np.concatenate(means.plain())


def _barrier(model):
  """Returns the mean over clients of the mean squared gap to their own fit."""
  gaps = [
    (points * (model - local) ** 2).sum() / points.sum()
    for local, points in zip(_LOCAL, _POINTS, strict=True)
  ]
  return np.mean(gaps)


def test_disjoint_supports():
  own, plain = _means('fed_fish', relative_floor=0.0)
  np.testing.assert_allclose(-own, [1, 2, -1, 3])
  np.testing.assert_allclose(-plain, [0.5, 1, -0.5, 1.5])
  assert _barrier(-own) == 0
  # (3 x 0.25 + 1) / 4 and (2 x 0.25 + 2 x 2.25) / 4: 0.4375 and 1.25.
  assert _barrier(-plain) == 0.84375
  # No model before the round: (3 + 4) / 4 and (2 + 18) / 4.
  assert _barrier(np.zeros(4)) == pytest.approx((1.75 + 5) / 2)


def test_plain_mean_is_fed_avgs_own():
  own, plain = _means('fed_avg')
  np.testing.assert_array_equal(own, plain)
  np.testing.assert_allclose(-plain, [0.5, 1, -0.5, 1.5])


def test_mixed_mean():
  own, plain = _means('fed_fish', relative_floor=0.0, plain_mean_fraction=0.25)
  np.testing.assert_allclose(-own, [0.875, 1.75, -0.875, 2.625])
  np.testing.assert_allclose(-plain, [0.5, 1, -0.5, 1.5])


def test_nobody_counts():
  means = BareMeans(planned_configs.by_hand(), ())
  assert not means
  means.add((), {'update': None, 'client_weight': 0.0})
  assert not means
