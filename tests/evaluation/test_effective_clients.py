"""How many clients a mean is worth, of masses by hand and of methods."""

import planned_configs
import pytest
import tensorflow as tf

from tff_fedfish.evaluation.effective_clients import EffectiveClients
from tff_fedfish.training import learning_setup


def _dataset(*values):
  return tf.data.Dataset.from_tensor_slices(list(values)).batch(1)


def _sum_of_squares(trainable, dataset, client_weight):
  total = dataset.reduce(tf.zeros(2), lambda s, x: s + tf.square(x[0]))
  return [client_weight * total, client_weight * trainable[0]]


@pytest.fixture
def effective():
  return EffectiveClients(_sum_of_squares, {'a': (2,), 'b': ()})


def test_by_hand(effective):
  # a: 2 (1, 4) and 1 (1, 0) + (1, 0) = (2, 8) and (2, 0): 16 / 8 = 2 and 1.
  # b: 2 x 1 and 1 x 4: 36 / 20 = 1.8.
  effective.add((tf.constant(1.0),), _dataset([1.0, 2.0]), 2)
  effective.add((tf.constant(4.0),), _dataset([1.0, 0.0], [1.0, 0.0]), 1)
  found = effective.summary()
  assert found['tensors'] == pytest.approx({'a': 1.5, 'b': 1.8})
  # Three coordinates.
  assert found['mean'] == pytest.approx((2 + 1 + 1.8) / 3)


@pytest.mark.parametrize('scale', [1e-16, 1e-12, 1e8])
def test_masses_of_any_size(effective, scale):
  for _ in range(4):
    effective.add((tf.constant(scale),), _dataset([scale**0.5, 0.0]), 1)
  # The second coordinate of a has no mass and does not count in a's mean.
  assert effective.summary()['tensors'] == pytest.approx({'a': 4.0, 'b': 4.0})


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_client_that_is_not_finite_has_no_mass(effective, bad):
  effective.add((tf.constant(1.0),), _dataset([1.0, 2.0]), 2)
  effective.add((tf.constant(bad),), _dataset([1.0, 2.0]), 2)
  assert effective.summary() == {'mean': 1.0, 'tensors': {'a': 1.0, 'b': 1.0}}


def test_no_clients(effective):
  assert effective.summary() == {'mean': None, 'tensors': {'a': 0.0, 'b': 0.0}}


def test_fed_avg_has_its_weights_alone():
  config = planned_configs.shipped('mnist_by_writer', algorithm__name='fed_avg')
  effective = learning_setup.build_effective_clients(config)
  for weight in (10, 30):
    effective.add((), _dataset([0.0]), weight)
  # 40^2 / (100 + 900)
  assert effective.summary() == {
    'mean': pytest.approx(1.6),
    'tensors': {'weight': pytest.approx(1.6)},
  }


def test_last_epoch_is_not_replayed():
  config = planned_configs.shipped(
    'mnist_by_writer', algorithm__fisher_estimator='last_epoch'
  )
  assert learning_setup.build_effective_clients(config) is None
