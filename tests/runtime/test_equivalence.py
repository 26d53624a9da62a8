"""Learning processes of TFF give in process what they give in TFF's context."""

import collections
import functools
import warnings

import linear_models
import numpy as np
import personal_rounds
import pytest
import stateful_rounds
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.mapreduce import intrinsics

import tff_fedfish
from tff_fedfish.runtime import in_process_context, round_options

_ALGORITHMS = tff.learning.algorithms
_CLIENT_SIZES = (3, 4, 1, 6)
_OPTIMIZERS = dict(
  client_optimizer=linear_models.sgd(0.1),
  server_optimizer=linear_models.adam(0.1),
)


_TYPES = (
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(np.int32, tff.CLIENTS),
)


@pytest.fixture(autouse=True)
def context():
  return in_process_context.set_in_process_context()


@pytest.fixture(scope='module', autouse=True)
def _built():
  yield
  _process.cache_clear()


def _private(noise_multiplier):
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier, clients_per_round=len(_CLIENT_SIZES), clip=0.05
  )


@functools.cache
def _process(name):
  model = linear_models.linear_model(3)
  if name == 'k_means':
    return _ALGORITHMS.build_fed_kmeans(
      num_clusters=2, data_shape=(2,), random_seed=(1, 2)
    )
  if name == 'fed_fish':
    return tff_fedfish.build_fed_fish(model, num_local_epochs=2, **_OPTIMIZERS)
  if name == 'fed_eval':
    return _ALGORITHMS.build_fed_eval(model)
  optimizers = {f'{role}_fn': value for role, value in _OPTIMIZERS.items()}
  if name == 'weighted_fed_avg':
    return _ALGORITHMS.build_weighted_fed_avg(model, **optimizers)
  aggregator = {
    'private': _private(2.0),
    'private_without_noise': _private(0.0),
    'secure': tff.learning.secure_aggregator(weighted=False),
  }[name]
  return _ALGORITHMS.build_unweighted_fed_avg(
    model, model_aggregator=aggregator, **optimizers
  )


def _rows(size):
  random = np.random.RandomState(1)
  return [random.normal(size=(n, size)).astype('f') for n in _CLIENT_SIZES]


def _datasets():
  return [linear_models.batches(x, x @ [1.0, -2.0, 3.0], 2) for x in _rows(3)]


def _points():
  return [tf.data.Dataset.from_tensor_slices(x) for x in _rows(2)]


def _run(process, datasets, num_rounds=2):
  state, output = process.initialize(), None
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  return output


def _assert_equal(found, expected):
  # The same operations in the same order. But TFF's context lets Grappler
  # rewrite the graphs, and processors without AVX-512 were seen to round the
  # last bits of what it makes of them differently, by 7e-6 of a small weight.
  for one, other in zip(
    tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
  ):
    one, other = np.asarray(one), np.asarray(other)
    # Strings: NumPy's fixed length in one, objects in the other.
    assert one.dtype == other.dtype or one.dtype.kind in 'SO'
    if one.dtype.kind == 'f':
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-9)
    else:
      assert one.tolist() == other.tolist()


_SLOW = 'fed_fish weighted_fed_avg k_means private_without_noise secure'


@pytest.mark.parametrize(
  'name',
  [
    'fed_eval',
    *(pytest.param(n, marks=pytest.mark.slow) for n in _SLOW.split()),
  ],
)
def test_process(name, context, stock_context):
  process = _process(name)
  datasets = _points() if name == 'k_means' else _datasets()
  found = _run(process, datasets)
  # In this process.
  assert context._stock_context is None
  with tff.framework.get_context_stack().install(stock_context):
    expected = _run(process, datasets)
  assert type(found) is type(expected)
  _assert_equal(found.state, expected.state)
  _assert_equal(found.metrics, expected.metrics)


@pytest.mark.slow
def test_models_that_clients_begin_with(stock_context):
  process = tff_fedfish.build_fed_fomo(
    personal_rounds.with_loss(linear_models.linear_model(3)),
    num_clients=3,
    **_OPTIMIZERS,
  )
  datasets = _datasets()[:3]
  rounds = personal_rounds.Rounds(process)
  rounds.run(datasets)
  models = [(n, rounds.kept[n]['model']) for n in range(3)]
  clients = [
    personal_rounds.argument(
      process,
      datasets[n],
      datasets[n],
      [models[n], *models[:n], *models[n + 1 :]],
      rounds.kept[n],
    )
    for n in range(3)
  ]
  begun = process.personal_models(rounds.state, clients)
  with tff.framework.get_context_stack().install(stock_context):
    stock_begun = process.personal_models(process.initialize(), clients)
  _assert_equal(begun, stock_begun)
  rounds.run(datasets)
  # What clients begin with becomes their baseline.
  _assert_equal(begun, [rounds.kept[n]['baseline'] for n in range(3)])
  assert np.any(begun[0][0] != models[0][1][0])


def test_models_of_clients(stock_context):
  process = _process('fed_fish')
  found = process.trained_models(process.initialize(), _datasets())
  with tff.framework.get_context_stack().install(stock_context):
    with pytest.raises(RuntimeError, match='require the context of `set_in_pr'):
      tff_fedfish.collect_client_outputs().__enter__()
    expected = process.trained_models(process.initialize(), _datasets())
  assert len(found) == len(_CLIENT_SIZES)
  for one, other in zip(found, expected, strict=True):
    assert list(one) == list(other) == ['trainable', 'client_weight', 'update']
    assert type(one['update']) is type(other['update'])
  _assert_equal(found, expected)


@pytest.mark.slow
def test_noise_is_drawn_in_every_round():
  process = _process('private')
  state, datasets = process.initialize(), _datasets()
  one, other = (
    process.next(state, datasets).state.global_model_weights.trainable[0]
    for _ in range(2)
  )
  assert np.all(one != other)


@pytest.mark.slow
def test_clients_that_keep_tensors(stock_context):
  process = tff_fedfish.build_scaffold(
    linear_models.linear_model(3), num_clients=5, **_OPTIMIZERS
  )
  datasets = _datasets()
  rounds = stateful_rounds.Rounds(process)
  state = None
  for _ in range(2):
    clients = [
      stateful_rounds.argument(process, data, rounds.kept.get(i))
      for i, data in enumerate(datasets)
    ]
    weights = rounds.run(datasets)
    with tff.framework.get_context_stack().install(stock_context):
      state = process.initialize() if state is None else state
      state = process.next(state, clients).state
    _assert_equal(weights, process.get_model_weights(state).trainable)


@tff.tensorflow.computation(np.float32, np.int32)
def _scale(factor, total):
  return factor * tf.cast(total, tf.float32)


# Evaluations may return any struct of server values. Where total = 1 + 2 + 4 =
# 7, scaled = 0.5 * 7 = 3.5, factor = 0.5.
@pytest.mark.parametrize(
  'arrange, expected',
  [
    (lambda total, *_: total, 7),
    # Not a state: it is an int32.
    (lambda total, scaled, _: (total, scaled), (7, 3.5)),
    # It could be one.
    (lambda total, scaled, _: (scaled, total), (3.5, 7)),
    (lambda *values: values, (7, 3.5, 0.5)),
    (
      lambda n, x, y: (n, collections.OrderedDict(b=[x, n], a=y)),
      (7, collections.OrderedDict(b=[3.5, 7], a=0.5)),
    ),
  ],
)
def test_evaluation_by_hand(arrange, expected):
  @tff.federated_computation(*_TYPES)
  def evaluation(factor, numbers):
    total = tff.federated_sum(numbers)
    return arrange(total, tff.federated_map(_scale, (factor, total)), factor)

  with warnings.catch_warnings():
    warnings.filterwarnings('error', message='.*cannot run in process')
    found = evaluation(0.5, [1, 2, 4])
  # Compares tuples with lists and the order of dicts, too.
  assert found == expected


@tff.federated_computation(*_TYPES)
def _sums(state, numbers):
  return state, (
    tff.federated_secure_sum_bitwidth(numbers, 8),
    tff.federated_secure_sum(numbers, 100),
    intrinsics.federated_secure_modular_sum(numbers, 7),
    tff.federated_sum(numbers),
  )


@pytest.mark.parametrize('num_partial_sums', [1, 2, 9])
def test_sums_by_hand(num_partial_sums):
  # Whole numbers, so that the order of summation does not show.
  options = round_options.RoundOptions(num_partial_sums=num_partial_sums)
  with round_options.use_round_options(options):
    # 5 + 6 + 7 = 18 = 2 * 7 + 4.
    assert tuple(_sums(1.0, [5, 6, 7])[1]) == (18, 18, 4, 18)
    assert tuple(_sums(1.0, [])[1]) == (0, 0, 0, 0)
    # Beyond its bound. From TFF's own context only a text would come back.
    error = tf.errors.InvalidArgumentError
    with pytest.raises(error, match='larger than maximum'):
      _sums(1.0, [5, 101])
