"""TCT's rounds on features: sums, the regression, and what clients keep."""

import collections

import gram_reference
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from stateful_rounds import Rounds

from models import linearized
from models.functional_model import build_image_model
from models.image_model_config import ImageModelConfig
from tff_fedfish.methods.tct import (
  feature_process as tct_features,
)
from tff_fedfish.methods.tct import gram_regression
from tff_fedfish.methods.tct import (
  process as tct,
)
from tff_fedfish.runtime.in_process_context import set_in_process_context

_SHAPE = ImageModelConfig(name='linear', num_classes=4, image_shape=(16, 16, 1))
_OPTIMIZERS = dict(
  client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
  server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
)
_NUM_STEPS, _STEP_SIZE = 40, 0.05


@pytest.fixture(scope='module', autouse=True)
def context():
  set_in_process_context()


def _network():
  return build_image_model(_SHAPE, model_seed=1)


def _batches(features, labels, basis=None, rows=2, num_steps=_NUM_STEPS):
  x = collections.OrderedDict(features=np.asarray(features, np.float16))
  if basis is not None:
    x['vectors'] = basis.vectors
  dataset = tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(x=x, y=np.asarray(labels, np.int32))
  ).batch(rows)
  if basis is None:
    return dataset
  rates = _STEP_SIZE / max(len(basis.values), 1) * basis.values
  sums = np.stack(gram_regression.power_sums(rates, num_steps))

  def with_sums(batch):
    x = collections.OrderedDict(batch['x'], power_sums=tf.constant(sums))
    return collections.OrderedDict(x=x, y=batch['y'])

  return dataset.map(with_sums)


def _convex(num_features, solver, **settings):
  model = linearized.build_feature_classifier(
    _network(),
    # Rows are not asked for: clients are fed with features.
    lambda weights, batch: tf.zeros([1, num_features]),
    num_features=num_features,
    num_classes=4,
  )
  return tct.build_convex(
    model,
    **_OPTIMIZERS,
    solver=solver,
    **dict(num_steps=_NUM_STEPS, step_size=_STEP_SIZE) | settings,
  )


def _basis(features):
  p = np.shape(features)[1]
  return gram_regression.gram_basis(
    np.asarray(features, np.float16), np.zeros(p), np.ones(p)
  )


def test_sums_of_features():
  """V14: sums (9, 6), squares (35, 12), n 3; the second feature is constant."""
  process = tct_features.build_feature_sums(
    _network(), **_OPTIMIZERS, num_features=2
  )
  data = [_batches([(1, 2), (3, 2)], [0, 1], rows=1), _batches([(5, 2)], [2])]
  empty = data[0].take(0)
  before = process.initialize()
  output = process.next(before, [*data, empty])
  found = output.state.client_work['method']
  np.testing.assert_array_equal(found['sums'], [9, 6])
  np.testing.assert_array_equal(found['square_sums'], [35, 12])
  assert found['num_rows'] == 3
  assert output.metrics['client_work']['num_dead'] == 1
  for weights, wanted in zip(
    process.get_model_weights(output.state).trainable,
    process.get_model_weights(before).trainable,
    strict=True,
  ):
    np.testing.assert_array_equal(weights, wanted)


def _problem(seed=0):
  random = np.random.RandomState(seed)
  # A client with fewer rows than features, and one with more, of low rank.
  wide = random.normal(size=(3, 5))
  long = random.normal(size=(7, 2)) @ random.normal(size=(2, 5))
  return [
    (rows.astype(np.float16), random.randint(4, size=len(rows)))
    for rows in (wide, long)
  ]


def test_gram_and_steps_agree():
  problem = _problem()
  rounds = {solver: Rounds(_convex(5, solver)) for solver in tct.SOLVERS}
  for _ in range(3):
    found = rounds['gram'].run([_batches(z, y, _basis(z)) for z, y in problem])
    wanted = rounds['steps'].run([_batches(z, y) for z, y in problem])
    for one, other in zip(found, wanted, strict=True):
      np.testing.assert_allclose(one, other, atol=1e-5)
    imbalance = rounds['gram'].metrics['client_work']['imbalance']
    assert imbalance < 1e-6
  kept = [rounds['gram'].kept[c]['correction'] for c in (0, 1)]
  assert np.abs(kept[0][0]).max() > 1e-3
  # q = (3, 7) / 10.
  np.testing.assert_allclose(3 * kept[0][0], -7 * kept[1][0], atol=1e-5)


def test_a_client_without_a_basis_takes_steps():
  (z, y), *_ = _problem()
  no_basis = gram_regression.GramBasis(np.zeros(0), np.zeros((3, 0)))
  found = Rounds(_convex(5, 'gram')).run([_batches(z, y, no_basis)])
  wanted = Rounds(_convex(5, 'gram')).run([_batches(z, y, _basis(z))])
  for one, other in zip(found, wanted, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_one_client_solves_its_regression():
  (z, y), *_ = _problem()
  rounds = Rounds(_convex(5, 'gram', num_steps=8000))
  data = [_batches(z, y, _basis(z), num_steps=8000)]
  for _ in range(2):
    kernel, bias = rounds.run(data)
  # Three rows in six unknowns: the targets are met by the smallest V.
  ones = np.concatenate([z.astype(float), np.ones((3, 1))], axis=1)
  wanted = np.linalg.pinv(ones) @ gram_reference.targets_of(y, 4)
  np.testing.assert_allclose(np.vstack([kernel, bias]), wanted, atol=1e-3)
  assert rounds.metrics['client_work']['train']['accuracy'] == 1


def test_a_client_without_rows_changes_nothing():
  (z, y), *_ = _problem()
  data = _batches(z, y, _basis(z))
  alone = Rounds(_convex(5, 'gram')).run([data])
  beside = Rounds(_convex(5, 'gram')).run([data, data.take(0)])
  for one, other in zip(alone, beside, strict=True):
    np.testing.assert_array_equal(one, other)


def test_uniform_weights():
  problem = _problem()
  uniform = tff.learning.ClientWeighting.UNIFORM
  rounds = Rounds(_convex(5, 'gram', client_weighting=uniform))
  found = rounds.run([_batches(z, y, _basis(z)) for z, y in problem])
  kept = [rounds.kept[c]['last_local'] for c in (0, 1)]
  for weights, first, second in zip(found, *kept, strict=True):
    np.testing.assert_allclose(weights, (first + second) / 2, atol=1e-7)


def test_unknown_solver():
  message = "`solver` must be one of gram, steps, found 'newton'"
  with pytest.raises(ValueError, match=message):
    _convex(5, 'newton')
