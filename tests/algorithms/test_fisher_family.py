"""F^p as the weight, FedAvg's mean mixed in, and tensors left to it."""

import collections
import functools

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec, build_language_model
from models.model_shapes import weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish import fisher_diagonal
from tff_fedfish.methods.fed_fish.fisher_weighted_mean import (
  DeltaAndFisher,
  FisherWeightedMeanFactory,
)
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.optimizers import build_adamw
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()
  yield
  _process.cache_clear()


# The kernel stands for the tensor that makes the logits.
_MODEL = ModelSpec(
  linear_models.linear_model(2),
  lambda: ((tf.zeros([2]), tf.zeros([])), ()),
  makes_logits=(True, False),
)
_SGD = linear_models.sgd(0.1)
_SERVER = linear_models.sgd(1.0)


@functools.cache
def _process(build=build_fed_fish, client=_SGD, **options):
  return build(
    _MODEL, client_optimizer=client, server_optimizer=_SERVER, **options
  )


def _clients():
  random = np.random.RandomState(4)
  clients = []
  for size in (3, 7, 4):
    x = random.normal(size=(size, 2)).astype(np.float32)
    y = (x @ [1, 2] + random.normal(size=size)) * 0.5
    clients.append((x, y.astype(np.float32)))
  return clients


def _datasets(clients, batch_size=2):
  return [linear_models.batches(x, y, batch_size) for x, y in clients]


def _trained(process, num_rounds=2):
  state, datasets = process.initialize(), _datasets(_clients())
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  weights = process.get_model_weights(state).trainable
  return np.append(*(np.asarray(w) for w in weights)), output.metrics


def _gradient(theta, x, y):
  residual = x @ theta[:2] + theta[2] - y
  return 2 * np.append(x.T @ residual, residual.sum()) / len(y)


def _by_numpy(power=1.0, fraction=0.0, logits=False, floor=1e-8):
  """Two rounds in float64; kernel and bias are tensors of their own."""
  theta = np.zeros(3)
  for _ in range(2):
    deltas, diagonals, weights = [], [], []
    for x, y in _clients():
      parts = [(x[i : i + 2], y[i : i + 2]) for i in range(0, len(y), 2)]
      local = theta.copy()
      for part in parts:
        local -= 0.1 * _gradient(local, *part)
      diagonal = sum(_gradient(local, *p) ** 2 for p in parts) ** power
      diagonal[:2] += floor * diagonal[:2].mean()
      diagonal[2] += floor * diagonal[2]
      deltas.append(theta - local)
      diagonals.append(diagonal)
      weights.append(len(y))
    weights, deltas = np.reshape(weights, (3, 1)), np.array(deltas)
    masses = weights * diagonals
    weighted = (masses * deltas).sum(0) / masses.sum(0)
    plain = (weights * deltas).sum(0) / weights.sum()
    mean = fraction * plain + (1 - fraction) * weighted
    if logits:
      mean[:2] = plain[:2]
    theta = theta - mean
  return theta


@pytest.mark.parametrize(
  ('power', 'fraction', 'logits'),
  [
    (0.5, 0.5, False),
    (0.25, 0.0, False),
    (1.0, 0.75, False),
    (1.0, 0.0, True),
    (0.5, 0.5, True),
  ],
)
def test_rounds_equal_those_computed_by_numpy(power, fraction, logits):
  process = _process(
    fisher_power=power,
    plain_mean_fraction=fraction,
    plain_mean_tensors='logits' if logits else 'none',
  )
  found, metrics = _trained(process)
  expected = _by_numpy(power, fraction, logits)
  np.testing.assert_allclose(found, expected, rtol=2e-5)
  assert metrics['aggregator']['client_weight_sum'] == 14
  # The setting makes a difference that the tolerance does not hide.
  assert np.abs(expected / _by_numpy() - 1).max() > 1e-3


@pytest.mark.parametrize(
  'options', [{'fisher_power': 0.0}, {'plain_mean_fraction': 1.0}]
)
def test_one_end_is_fed_avg_to_the_bit_and_computes_no_fisher(options):
  process = _process(**options)
  found, metrics = _trained(process)
  expected, average_metrics = _trained(_process(build_fed_avg))
  assert found.tobytes() == expected.tobytes()
  assert metrics == average_metrics
  # w F and w F delta are not among what a client sends.
  update = process.trained_models.type_signature.result.member.update
  assert (
    update
    == _process(
      build_fed_avg
    ).trained_models.type_signature.result.member.update
  )


def test_other_end_is_the_papers_to_the_bit():
  options = dict(
    fisher_power=1.0, plain_mean_fraction=0.0, plain_mean_tensors='none'
  )
  found, _ = _trained(_process(**options))
  assert found.tobytes() == _trained(_process())[0].tobytes()


class TestPlainMeanTensors:
  def test_of_the_transformer_are_its_tied_embedding(self):
    config = TransformerConfig(
      num_layers=1, width=4, num_heads=1, vocabulary_size=8, sequence_length=4
    )
    spec = build_language_model(config, model_seed=1)
    # The first tensor: also the rows that embed the input.
    assert spec.makes_logits == (True,) + (False,) * 15

  def test_model_that_does_not_say_is_refused(self):
    with pytest.raises(ValueError, match='`plain_mean_tensors` .* requires a'):
      build_fed_fish(
        linear_models.linear_model(2),
        client_optimizer=_SGD,
        server_optimizer=_SERVER,
        plain_mean_tensors='logits',
      )

  def test_mass_in_them_is_the_client_weight(self):
    factory = FisherWeightedMeanFactory(0.0, takes_plain_mean=(True, False))
    update = DeltaAndFisher((tf.ones([2]), tf.ones([])), (tf.constant(0.25),))
    mass = factory.client_mass(update, tf.constant(3.0), ())
    # 3 x 0.25 in the tensor that is weighed by F.
    np.testing.assert_array_equal(mass[0], [3, 3])
    np.testing.assert_array_equal(mass[1], 0.75)

  def test_no_tensor_for_the_fisher_weights_is_refused(self):
    with pytest.raises(ValueError, match='`takes_plain_mean` must be false of'):
      FisherWeightedMeanFactory(0.0, takes_plain_mean=(True, True))


@pytest.mark.parametrize(
  ('name', 'value'),
  [('fisher_power', -0.5), ('fisher_power', 2), ('plain_mean_fraction', 1.5)],
)
def test_what_is_no_fraction_is_refused(name, value):
  with pytest.raises(ValueError, match=f'`{name}` must be at least 0 and at'):
    _process(**{name: value})


class TestSecondMoment:
  def _diagonal(self, client, batch_size, **options):
    """Returns the diagonal of the client of 7 rows, and its gradients."""
    process = _process(
      client=client, fisher_estimator='second_moment', **options
    )
    x, y = _clients()[1]
    dataset = linear_models.batches(x, y, batch_size)
    (found,) = process.trained_models(process.initialize(), [dataset])
    kernel, bias = found['update'].fisher_diagonal
    return np.append(kernel, bias)

  @pytest.mark.parametrize('micro_batch_size', [None, 3])
  def test_single_batch_gives_the_square_of_its_gradient(
    self, micro_batch_size
  ):
    options = {}
    if micro_batch_size:
      options['micro_batch_size'] = micro_batch_size
    found = self._diagonal(build_adamw(0.01), 7, **options)
    # The gradient at the start, not after the step: v_1 / (1 - beta_2).
    expected = _gradient(np.zeros(3), *_clients()[1]) ** 2
    np.testing.assert_allclose(found, expected, rtol=2e-5)

  def test_steps_decay(self):
    found = self._diagonal(build_adamw(1e-9, beta_2=0.75), 4)
    x, y = _clients()[1]
    first = _gradient(np.zeros(3), x[:4], y[:4]) ** 2
    last = _gradient(np.zeros(3), x[4:], y[4:]) ** 2
    # v = 3/4 (1/4 first) + 1/4 last; 1 - beta_2^2 = 7/16.
    expected = (3 / 16 * first + 4 / 16 * last) / (7 / 16)
    np.testing.assert_allclose(found, expected, rtol=2e-5)

  def test_client_without_a_step_has_none(self):
    state = build_adamw(0.1).initialize([tf.TensorSpec([2])])
    sums = fisher_diagonal.second_moment_sums(state)
    (diagonal,) = fisher_diagonal.fisher_diagonal_from_sums(sums, 'sum')
    np.testing.assert_array_equal(diagonal, [0, 0])

  def test_optimizer_without_one_is_refused(self):
    with pytest.raises(
      ValueError, match="'second_moment' requires a client optimizer with a"
    ):
      _process(fisher_estimator='second_moment')


def test_power_comes_before_the_tensor_mean():
  sums = fisher_diagonal.FisherSums(
    (tf.constant([1.0, 9.0]),), tf.constant(1, tf.int64)
  )
  raised = functools.partial(fisher_diagonal.fisher_diagonal_from_sums, sums)
  # Roots 1 and 3, whose mean is 2.
  np.testing.assert_array_equal(
    raised('sum', 'tensor_mean', 0.5)[0], [0.5, 1.5]
  )
  # 'mean' of one batch is the sum; 9^0.25 = sqrt(3).
  np.testing.assert_allclose(raised('mean', 'none', 0.25)[0], [1, 3**0.5])


@pytest.mark.parametrize('plain_mean_tensors', ['none', 'logits'])
def test_tensor_mean_is_that_of_a_layer(plain_mean_tensors):
  config = TransformerConfig(
    num_layers=2, width=4, num_heads=1, vocabulary_size=8, sequence_length=4
  )
  process = build_fed_fish(
    build_language_model(config, model_seed=1),
    client_optimizer=_SGD,
    server_optimizer=_SERVER,
    fisher_normalization='tensor_mean',
    plain_mean_tensors=plain_mean_tensors,
  )
  tokens = np.random.RandomState(2).randint(8, size=(3, 5)).astype(np.int32)
  batch = collections.OrderedDict(x=tokens, y=np.full(3, 4, np.int32))
  dataset = tf.data.Dataset.from_tensor_slices(batch).batch(3)
  (found,) = process.trained_models(process.initialize(), [dataset])
  names = list(weight_shapes(config))
  if plain_mean_tensors == 'logits':
    names.remove('token_embedding')
  diagonal = dict(zip(names, found['update'].fisher_diagonal, strict=True))
  for name, tensor in diagonal.items():
    means = [np.mean(layer) for layer in tensor]
    if not name.startswith('block/'):
      means = np.mean(means)
    np.testing.assert_allclose(means, 1, rtol=1e-5, err_msg=name)


def test_client_that_overflows_counts_in_neither_mean():
  # 1 x 100 x 3e38 is beyond float32.
  updates = [
    DeltaAndFisher((np.float32([d]),), (np.float32([f]),))
    for d, f in ((2, 1), (4, 3), (100, 3e38))
  ]
  tensors = (tff.TensorType(np.float32, [1]),)
  value_type = tff.to_type(DeltaAndFisher(tensors, tensors))
  process = FisherWeightedMeanFactory(0.0, plain_mean_fraction=0.5).create(
    value_type, tff.to_type(np.float32)
  )

  @tff.federated_computation(
    process.initialize.type_signature.result,
    tff.FederatedType(value_type, tff.CLIENTS),
  )
  def next_fn(state, updates):
    weights = tff.federated_value(1.0, tff.CLIENTS)
    return process.next(state, updates, weights).result

  mean = next_fn(process.initialize(), updates)
  # Plain (2 + 4) / 2 = 3; weighted (2 + 12) / 4 = 3.5; half of each.
  np.testing.assert_array_equal(mean, [[3.25]])
