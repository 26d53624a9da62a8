"""Learning processes of TFF give in process what they give in TFF's context."""

import collections
import warnings

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.backends.mapreduce import intrinsics

from tff_fedfish.algorithms.fed_prox import build_fed_prox
from tff_fedfish.algorithms.fed_sgd import build_fed_sgd
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.runtime import in_process_context, round_options

_ALGORITHMS = tff.learning.algorithms
_CLIENT_SIZES = (3, 4, 1, 6)
# The others take longer, and are of the same kinds.
_FAST = ('fed_fish', 'fed_prox', 'fed_eval')


@pytest.fixture(autouse=True)
def context():
  return in_process_context.set_in_process_context()


def _model():
  return linear_models.linear_model(3)


def _optimizers():
  return dict(
    client_optimizer_fn=linear_models.sgd(0.1),
    server_optimizer_fn=linear_models.adam(0.1),
  )


def _unweighted(aggregator):
  return _ALGORITHMS.build_unweighted_fed_avg(
    _model(), model_aggregator=aggregator, **_optimizers()
  )


def _dp_aggregator(noise_multiplier):
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier, clients_per_round=len(_CLIENT_SIZES), clip=0.05
  )


_PROCESSES = {
  'fed_fish': lambda: build_fed_fish(
    _model(),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.adam(0.1),
    num_local_epochs=2,
  ),
  'fed_fish_of_the_last_steps': lambda: build_fed_fish(
    _model(),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.adam(0.1),
    num_local_epochs=3,
    fisher_estimator='last_epoch',
    num_local_steps=3,
    micro_batch_size=1,
  ),
  'fed_prox': lambda: build_fed_prox(
    _model(),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.adam(0.1),
    adaptation='fl4health',
    patience=1,
  ),
  'our_fed_sgd': lambda: build_fed_sgd(
    _model(), server_optimizer=linear_models.adam(0.1)
  ),
  'weighted_fed_avg': lambda: _ALGORITHMS.build_weighted_fed_avg(
    _model(), **_optimizers()
  ),
  'unweighted_fed_avg': lambda: _ALGORITHMS.build_unweighted_fed_avg(
    _model(), **_optimizers()
  ),
  'fed_sgd': lambda: _ALGORITHMS.build_fed_sgd(
    _model(), server_optimizer_fn=linear_models.adam(0.1)
  ),
  'fed_eval': lambda: _ALGORITHMS.build_fed_eval(_model()),
  'mime_lite': lambda: _ALGORITHMS.build_weighted_mime_lite(
    _model(),
    base_optimizer=tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
    server_optimizer=linear_models.sgd(1.0),
  ),
  'dp_without_noise': lambda: _unweighted(_dp_aggregator(0.0)),
  'secure': lambda: _unweighted(tff.learning.secure_aggregator(weighted=False)),
}


def _datasets():
  random = np.random.RandomState(1)
  return [
    linear_models.batches(
      random.normal(size=(n, 3)).astype(np.float32), random.normal(size=n), 2
    )
    for n in _CLIENT_SIZES
  ]


def _points():
  random = np.random.RandomState(2)
  return [
    tf.data.Dataset.from_tensor_slices(
      random.normal(size=(n, 2)).astype(np.float32)
    )
    for n in _CLIENT_SIZES
  ]


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
    # Strings: NumPy's fixed length in one, objects in the other.
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind in 'SO':
      assert one.tolist() == other.tolist()
      continue
    assert one.dtype == other.dtype
    if one.dtype.kind == 'f':
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-9)
    else:
      np.testing.assert_array_equal(one, other)


def _check(process, datasets, stock_context):
  found = _run(process, datasets)
  assert in_process_context.set_in_process_context()._stock_context is None
  with tff.framework.get_context_stack().install(stock_context):
    expected = _run(process, datasets)
  assert type(found) is type(expected)
  _assert_equal(found.state, expected.state)
  _assert_equal(found.metrics, expected.metrics)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(
      name,
      marks=() if name in _FAST else pytest.mark.slow,
    )
    for name in _PROCESSES
  ],
)
def test_process_of_tff(name, stock_context):
  _check(_PROCESSES[name](), _datasets(), stock_context)


def test_models_of_clients(stock_context):
  process = _PROCESSES['fed_fish']()
  found = process.trained_models(process.initialize(), _datasets())
  with tff.framework.get_context_stack().install(stock_context):
    expected = process.trained_models(process.initialize(), _datasets())
  assert len(found) == len(_CLIENT_SIZES)
  for one, other in zip(found, expected, strict=True):
    assert list(one) == list(other) == ['trainable', 'client_weight', 'update']
    assert type(one['update']) is type(other['update'])
  _assert_equal(found, expected)


@pytest.mark.slow
def test_k_means(stock_context):
  process = _ALGORITHMS.build_fed_kmeans(
    num_clusters=2, data_shape=(2,), random_seed=(1, 2)
  )
  _check(process, _points(), stock_context)


@pytest.mark.slow
def test_noise_has_the_mean_and_variance_of_the_mechanism():
  # Every client's update is clipped to the norm 0.05; the mean over 4 clients
  # then has noise of standard deviation 0.05 * 2 / 4 = 0.025 per coordinate.
  num_features = 99
  random = np.random.RandomState(1)
  datasets = [
    linear_models.batches(
      random.normal(size=(n, num_features)), random.normal(size=n), 2
    )
    for n in _CLIENT_SIZES
  ]

  def next_weights(noise_multiplier, num_draws):
    process = _ALGORITHMS.build_unweighted_fed_avg(
      linear_models.linear_model(num_features),
      client_optimizer_fn=linear_models.sgd(0.1),
      server_optimizer_fn=linear_models.sgd(1.0),
      model_aggregator=_dp_aggregator(noise_multiplier),
    )
    state = process.initialize()
    for _ in range(num_draws):
      output = process.next(state, datasets)
      kernel, bias = output.state.global_model_weights.trainable
      yield np.append(kernel, bias)

  (center,) = next_weights(0.0, 1)
  noise = np.stack([*next_weights(2.0, 12)]) - center
  # 1,200 draws: the standard error of the mean is 0.025 / sqrt(1200) = 7.2e-4,
  # of the deviation 0.025 / sqrt(2400) = 5.1e-4; five of each.
  assert abs(noise.mean()) < 3.6e-3
  assert noise.std() == pytest.approx(0.025, abs=2.6e-3)


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
      lambda total, scaled, factor: (
        total,
        collections.OrderedDict(b=[scaled, total], a=factor),
      ),
      (7, collections.OrderedDict(b=[3.5, 7], a=0.5)),
    ),
  ],
)
def test_evaluation_by_hand(arrange, expected):
  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(np.int32, tff.CLIENTS),
  )
  def evaluation(factor, numbers):
    total = tff.federated_sum(numbers)
    return arrange(total, tff.federated_map(_scale, (factor, total)), factor)

  with warnings.catch_warnings():
    warnings.filterwarnings('error', message='.*cannot run in process')
    found = evaluation(0.5, [1, 2, 4])
  # Compares tuples with lists and the order of dicts, too.
  assert found == expected


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(np.int32, tff.CLIENTS),
)
def _sums(state, numbers):
  return state, (
    tff.federated_secure_sum_bitwidth(numbers, 8),
    tff.federated_secure_sum(numbers, 100),
    intrinsics.federated_secure_modular_sum(numbers, 7),
    tff.federated_sum(numbers),
  )


@pytest.mark.parametrize('num_partial_sums', [1, 2, 3, 9])
def test_sums_by_hand(num_partial_sums):
  # Whole numbers, so that the order of summation does not show.
  options = round_options.RoundOptions(num_partial_sums=num_partial_sums)
  with round_options.use_round_options(options):
    # 5 + 6 + 7 = 18 = 2 * 7 + 4.
    assert tuple(_sums(1.0, [5, 6, 7])[1]) == (18, 18, 4, 18)
    assert tuple(_sums(1.0, [])[1]) == (0, 0, 0, 0)
    # Beyond its bound, as in TFF's own context.
    with pytest.raises(
      tf.errors.InvalidArgumentError, match='larger than maximum'
    ):
      _sums(1.0, [5, 101])
