"""`max_delta_norm` bounds the norm of a client's model delta."""

import functools
import warnings

import linear_models
import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.optimizers import clip_to_norm
from tff_fedfish.run import learning_setup
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()
  yield
  _process.cache_clear()


@pytest.fixture(autouse=True)
def _no_fallback():
  """Fails where a computation is handed over to TFF's own context."""
  with warnings.catch_warnings():
    warnings.filterwarnings('error', message='.*cannot run in process')
    yield


@functools.cache
def _process(build, num_features=None, **options):
  model = linear_models.scalar_model()
  if num_features:
    model = linear_models.linear_model(num_features)
  return build(
    model,
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    num_local_epochs=2,
    **options,
  )


def _clients():
  """Returns 3, 7 and 4 rows of two features, of targets ever larger."""
  random = np.random.RandomState(4)
  datasets = []
  for size, scale in ((3, 0.3), (7, 1.0), (4, 2.0)):
    x = random.normal(size=(size, 2))
    y = scale * (x @ [1.0, 2.0] + random.normal(size=size))
    datasets.append(linear_models.batches(x, y, 2))
  return datasets


def _tensors(process, state):
  return learning_setup.to_tensors(
    state, process.initialize.type_signature.result
  )


def _states_equal(process, one, other):
  found, expected = _tensors(process, one), _tensors(process, other)
  assert found.keys() == expected.keys()
  for name, tensor in expected.items():
    np.testing.assert_array_equal(found[name], tensor, err_msg=name)


class TestClipToNorm:
  def _clip(self, delta, max_norm):
    delta = tuple(tf.constant(t, tf.float32) for t in delta)
    clipped, is_clipped = tf.function(clip_to_norm)(delta, max_norm)
    return [t.numpy().tolist() for t in clipped], bool(is_clipped)

  def test_by_hand(self):
    # sqrt(9 + 16 + 144) = 13, over both tensors; half of it is 6.5.
    delta = [[3.0, -4.0], [[12.0]]]
    assert self._clip(delta, 6.5) == ([[1.5, -2.0], [[6.0]]], True)

  @pytest.mark.parametrize('max_norm', [13.0, 13.1, 1e30])
  def test_within_the_bound_nothing_changes(self, max_norm):
    delta = [[3.0, -4.0], [[12.0]]]
    assert self._clip(delta, max_norm) == (delta, False)
    assert self._clip([[0.0, 0.0]], max_norm) == ([[0.0, 0.0]], False)

  def test_entries_whose_squares_and_norm_overflow(self):
    (found,), is_clipped = self._clip([[3e38, 3e38, -3e38, 3e38]], 1.0)
    # 6e38 is beyond float32, and so are the squares.
    assert found == pytest.approx([0.5, 0.5, -0.5, 0.5])
    assert is_clipped

  @pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
  def test_what_is_not_finite_does_not_become_finite(self, bad):
    found, _ = self._clip([[1.0, bad], [2.0]], 0.5)
    assert np.isnan(found[0]).all() and np.isnan(found[1]).all()


class TestMaxDeltaNorm:
  def test_fed_avg_by_hand(self):
    # Two steps of rate 0.1 towards y from 0: theta_i = 0.19 y.
    # y = 1, n = 1: delta -0.19. y = -2, n = 3: delta 0.38, clipped to 0.25.
    # theta = -(1 * -0.19 + 3 * 0.25) / 4 = -0.14; unclipped it is -0.2375.
    datasets = [
      linear_models.batches([1.0], [1.0], 4),
      linear_models.batches([1.0] * 3, [-2.0] * 3, 4),
    ]
    process = _process(build_fed_avg, max_delta_norm=0.25)
    output = process.next(process.initialize(), datasets)
    (theta,) = process.get_model_weights(output.state).trainable
    np.testing.assert_allclose(theta, -0.14, rtol=1e-6)
    assert output.metrics['client_work']['clients']['num_clipped_clients'] == 1

  def test_fed_fish_by_hand_leaves_the_fisher_diagonal(self):
    # As in test_fed_fish_and_fed_avg: delta -0.99975 and F 0.250630453125 with
    # n 3, delta 0.19 and F 0.6561 with n 1. The first is clipped to -0.5:
    # g = (3 * 0.250630453125 * -0.5 + 0.6561 * 0.19) / 1.407991359
    #   = (-0.375945680 + 0.124659) / 1.407991359 = -0.178472...
    datasets = [
      linear_models.batches([1.0, 2.0, 3.0], [2.0, 2.0, 3.0], 2),
      linear_models.batches([1.0], [-1.0], 2),
    ]
    process = _process(build_fed_fish, max_delta_norm=0.5)
    output = process.next(process.initialize(), datasets)
    (theta,) = process.get_model_weights(output.state).trainable
    np.testing.assert_allclose(theta, 0.178472, atol=1e-6)
    assert output.metrics['client_work']['clients']['num_clipped_clients'] == 1

  @pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
  @pytest.mark.parametrize('bad', [np.nan, np.inf])
  def test_client_that_is_not_finite_counts_as_absent(self, build, bad):
    process = _process(build, 2, max_delta_norm=0.01)
    first, _, third = _clients()
    bad_client = linear_models.batches([[bad, 1.0]] * 3, [1.0] * 3, 2)
    state = process.initialize()
    found = process.next(state, [first, bad_client, third])
    expected = process.next(state, [first, third])
    _states_equal(process, found.state, expected.state)
    counts = found.metrics['client_work']['clients']
    assert counts['num_non_finite_clients'] == 1
    # The others.
    assert counts['num_clipped_clients'] == 2

  @pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
  @pytest.mark.parametrize('value', [0.0, -1.0, float('nan')])
  def test_wrong_values(self, build, value):
    with pytest.raises(
      ValueError, match=f'`max_delta_norm` must be above 0 or None, .*{value}'
    ):
      _process(build, max_delta_norm=value)

  def _run(self, build, num_rounds, **bound):
    process = _process(build, 2, **bound)
    state, all_metrics = process.initialize(), []
    for _ in range(num_rounds):
      output = process.next(state, _clients())
      state = output.state
      all_metrics.append(output.metrics)
    return process, state, all_metrics

  @pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
  def test_types_without_a_bound(self, build):
    process = _process(build, 2)
    aggregator, measured = {
      build_fed_avg: (
        '<value_sum_process=<>,weight_sum_process=<>>',
        '<mean_value=<>,mean_weight=<>>',
      ),
      build_fed_fish: (
        '<>',
        '<client_weight_sum=float32,num_overflowing_clients=int32>',
      ),
    }[build]
    signature = process.next.type_signature
    assert signature.result.state.compact_representation() == (
      '<global_model_weights=<trainable=<float32[2],float32>,non_trainable=<>>,'
      'distributor=<>,client_work=<learning_rate=float32>,'
      f'aggregator={aggregator},finalizer=<learning_rate=float32>>@SERVER'
    )
    assert signature.result.metrics.compact_representation() == (
      '<distributor=<>,client_work=<train=<>,clients=<num_empty_clients=int32,'
      f'num_non_finite_clients=int32>>,aggregator={measured},finalizer='
      '<update_is_non_finite=int32,update_is_all_zero=int32>>@SERVER'
    )

  @pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
  def test_a_large_bound_changes_nothing(self, build):
    process, state, metrics = self._run(build, 3, max_delta_norm=1e9)
    _, expected, _ = self._run(build, 3)
    _states_equal(process, state, expected)
    assert metrics[-1]['client_work']['clients']['num_clipped_clients'] == 0

  @pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
  def test_a_tight_bound_takes_hold(self, build):
    process, state, metrics = self._run(build, 1, max_delta_norm=0.3)
    assert metrics[0]['client_work']['clients']['num_clipped_clients'] > 0
    weights = process.get_model_weights(state).trainable
    assert 0 < np.abs(np.append(*weights)).max() <= 0.3 * (1 + 1e-6)
