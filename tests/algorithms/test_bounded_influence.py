"""Bounds on one client's influence: its delta's norm and its Fisher mass."""

import collections
import functools
import warnings

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import fisher_diagonal
from tff_fedfish.algorithms.fed_avg import build_fed_avg
from tff_fedfish.algorithms.fed_fish import build_fed_fish
from tff_fedfish.algorithms.slots.bounds import clip_to_norm
from tff_fedfish.algorithms.slots.fisher_weighted_mean import (
  DeltaAndFisher,
  FisherWeightedMeanFactory,
)
from tff_fedfish.run import learning_setup
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()
  yield
  _process.cache_clear()
  _aggregate.cache_clear()


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


@functools.cache
def _aggregate(max_mass_ratio, *shapes):
  """Returns (initial state, next) of the aggregator for tensors of shapes."""
  tensors = tff.to_type([(np.float32, list(shape)) for shape in shapes])
  value_type = tff.StructWithPythonType(
    [('model_delta', tensors), ('fisher_diagonal', tensors)], DeltaAndFisher
  )
  factory = FisherWeightedMeanFactory(0.0, max_mass_ratio)
  process = factory.create(value_type, tff.to_type(np.float32))
  client_type = tff.to_type(
    collections.OrderedDict(update=value_type, weight=np.float32)
  )

  # The in-process context takes a state and clients' data.
  @tff.federated_computation(
    process.initialize.type_signature.result,
    tff.FederatedType(client_type, tff.CLIENTS),
  )
  def next_fn(state, clients):
    output = process.next(state, clients.update, clients.weight)
    return output.state, (output.result, output.measurements)

  return process.initialize(), next_fn


def _client(weight, delta, diagonal):
  update = DeltaAndFisher(
    [np.float32(t) for t in delta], [np.float32(t) for t in diagonal]
  )
  return collections.OrderedDict(update=update, weight=np.float32(weight))


class TestMaxMassRatio:
  # Client A, w = 1, and B, w = 3, with two tensors.
  _DELTA_A, _DELTA_B = ([1, -1], [-2]), ([-1, 3], [1])
  _FISHER_B = ([1, 1], [4])

  def _round(self, state, *clients):
    _, next_fn = _aggregate(1.5, (2,), (1,))
    state, (mean, measured) = next_fn(state, list(clients))
    return state, [np.asarray(t) for t in mean], measured

  def _first_round(self):
    state, _ = _aggregate(1.5, (2,), (1,))
    return self._round(
      state,
      _client(1, self._DELTA_A, ([1, 3], [2])),
      _client(3, self._DELTA_B, self._FISHER_B),
    )

  def test_first_round_by_hand_is_not_bounded(self):
    state, mean, measured = self._first_round()
    # w F: A (1, 3), 2; B (3, 3), 12.
    # (1 - 3) / 4, (-3 + 9) / 6; (-4 + 12) / 14.
    np.testing.assert_allclose(mean[0], [-0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(mean[1], [8 / 14], rtol=1e-6)
    assert measured['num_bounded_clients'] == 0
    # Masses: A 2 and 2; B 3 and 12.
    np.testing.assert_allclose(state['mean_masses'], [2.5, 7.0], rtol=1e-6)

  def test_second_round_by_hand(self):
    state, _, _ = self._first_round()
    state, mean, measured = self._round(
      state,
      _client(1, self._DELTA_A, ([2, 6], [2])),
      _client(3, self._DELTA_B, self._FISHER_B),
    )
    # Bounds 1.5 * (2.5, 7) = (3.75, 10.5). Masses: A 4 and 2, B 3 and 12.
    # A's first tensor is scaled by 3.75 / 4: w F = (1.875, 5.625).
    # B's second tensor is scaled by 10.5 / 12: w F = 10.5.
    # (1.875 - 3) / 4.875, (-5.625 + 9) / 8.625; (-4 + 10.5) / 12.5.
    np.testing.assert_allclose(
      mean[0], [-1.125 / 4.875, 3.375 / 8.625], rtol=1e-6
    )
    np.testing.assert_allclose(mean[1], [0.52], rtol=1e-6)
    assert measured['num_bounded_clients'] == 2
    # Of the bounded masses: (3.75 + 3) / 2 and (2 + 10.5) / 2.
    np.testing.assert_allclose(state['mean_masses'], [3.375, 6.25], rtol=1e-6)

  def test_clients_without_data_do_not_count_in_the_mean(self):
    state, _, _ = self._first_round()
    nobody = _client(0, ([0, 0], [0]), ([0, 0], [0]))
    after, mean, _ = self._round(state, nobody, nobody)
    np.testing.assert_array_equal(after['mean_masses'], state['mean_masses'])
    np.testing.assert_array_equal(np.append(*mean), [0, 0, 0])
    after, _, _ = self._round(
      state, _client(1, self._DELTA_A, ([1, 3], [0])), nobody
    )
    # The one client's mass is 2; in the other tensor nobody has any, and the
    # mean stays: a mean of 0 would keep the tensor at 0 for ever.
    np.testing.assert_allclose(after['mean_masses'], [2.0, 7.0], rtol=1e-6)

  @pytest.mark.parametrize(
    'delta, diagonal',
    [
      # w F delta is beyond float32; the mass; its sum over a tensor.
      (([0, 0], [1e38]), ([0, 0], [1e30])),
      (([0, 0], [0]), ([1, 1], [3e38])),
      (([0, 0], [0]), ([3e38, 3e38], [1])),
    ],
  )
  def test_overflowing_client_counts_as_absent(self, delta, diagonal):
    start, _ = _aggregate(1.5, (2,), (1,))
    bad = _client(3, delta, diagonal)
    good = _client(1, self._DELTA_A, ([1, 3], [2]))
    state, mean, measured = self._round(start, bad, good)
    expected_state, expected_mean, _ = self._round(start, good)
    np.testing.assert_array_equal(
      state['mean_masses'], expected_state['mean_masses']
    )
    np.testing.assert_array_equal(np.append(*mean), np.append(*expected_mean))
    assert measured['num_overflowing_clients'] == 1
    assert measured['num_bounded_clients'] == 0

  @pytest.mark.parametrize('value', [0.99, -1.0, float('nan')])
  def test_wrong_values(self, value):
    with pytest.raises(
      ValueError, match=f'`max_mass_ratio` must be at least 1 or None.*{value}'
    ):
      _process(build_fed_fish, max_mass_ratio=value)


class TestBothBounds:
  _LARGE = dict(max_mass_ratio=1e9, max_delta_norm=1e9)
  _TIGHT = dict(max_mass_ratio=1.0, max_delta_norm=0.3)

  def _run(self, build, num_rounds, num_partial_sums=1, **bounds):
    process = _process(build, 2, **bounds)
    state, all_metrics = process.initialize(), []
    options = round_options.RoundOptions(num_partial_sums=num_partial_sums)
    with round_options.use_round_options(options):
      for _ in range(num_rounds):
        output = process.next(state, _clients())
        state = output.state
        all_metrics.append(output.metrics)
    return process, state, all_metrics

  @pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
  def test_without_them_types_are_as_they_were(self, build):
    process = _process(build, 2)
    aggregator, measured = {
      build_fed_avg: (
        '<value_sum_process=<>,weight_sum_process=<>>',
        '<mean_value=<>,mean_weight=<>>',
      ),
      build_fed_fish: (
        '<>',
        '<client_weight_sum=float32,num_overflowing_clients=int32,'
        'zero_mass_fraction=float32>',
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
  def test_large_bounds_change_nothing(self, build):
    bounds = dict(self._LARGE)
    if build is build_fed_avg:
      del bounds['max_mass_ratio']
    process, state, metrics = self._run(build, 3, **bounds)
    unbounded, expected, _ = self._run(build, 3)
    found = process.get_model_weights(state).trainable
    for one, other in zip(
      found, unbounded.get_model_weights(expected).trainable, strict=True
    ):
      np.testing.assert_array_equal(one, other)
    assert metrics[-1]['client_work']['clients']['num_clipped_clients'] == 0
    if build is build_fed_fish:
      assert metrics[-1]['aggregator']['num_bounded_clients'] == 0
      assert (_tensors(process, state)['aggregator/mean_masses'] > 0).all()

  def test_tight_bounds_take_hold_after_round_1(self):
    process, state, metrics = self._run(build_fed_fish, 3, **self._TIGHT)
    counts = [m['aggregator']['num_bounded_clients'] for m in metrics]
    assert counts[0] == 0 and counts[1] > 0 and counts[2] > 0
    clipped = [m['client_work']['clients'] for m in metrics]
    assert clipped[0]['num_clipped_clients'] > 0
    unbounded, other, _ = self._run(build_fed_fish, 3)
    assert not np.allclose(
      process.get_model_weights(state).trainable[0],
      unbounded.get_model_weights(other).trainable[0],
      rtol=1e-2,
    )

  def test_resumed_state_gives_the_same_rounds(self):
    process, expected, _ = self._run(build_fed_fish, 3, **self._TIGHT)
    _, state, _ = self._run(build_fed_fish, 1, **self._TIGHT)
    # Through the names and arrays of a checkpoint.
    state_type = process.initialize.type_signature.result
    tensors = learning_setup.to_tensors(state, state_type)
    state = learning_setup.from_tensors(tensors, state_type, 'checkpoint')
    for _ in range(2):
      state = process.next(state, _clients()).state
    _states_equal(process, state, expected)

  def test_partial_sums(self):
    process, expected, metrics = self._run(build_fed_fish, 3, **self._TIGHT)
    _, found, in_parts = self._run(build_fed_fish, 3, 2, **self._TIGHT)
    for name, tensor in _tensors(process, expected).items():
      np.testing.assert_allclose(
        _tensors(process, found)[name], tensor, rtol=1e-5
      )
    assert [m['aggregator']['num_bounded_clients'] for m in in_parts] == [
      m['aggregator']['num_bounded_clients'] for m in metrics
    ]


class TestPoison:
  """One client of 8 multiplies its gradients, and so its squares, by g and g^2.

  The diagonals are squares of normal numbers. The client's delta is 1 and those
  of the others are 0: the mean delta is the client's share of the mass, here
  that over all coordinates.
  """

  _SIZE = 20_000

  def _client(self, number, gradient_factor, round_num, normalization):
    random = np.random.RandomState(100 * round_num + number)
    squares = gradient_factor**2 * random.normal(size=self._SIZE) ** 2
    diagonal = fisher_diagonal.fisher_diagonal_from_sums(
      fisher_diagonal.FisherSums([squares], tf.constant(1)),
      'sum',
      normalization,
    )
    is_bad = number == 0
    return _client(1, [np.full(self._SIZE, float(is_bad))], diagonal)

  def _shares(self, max_mass_ratio, factors, normalization='none'):
    """Returns the client's share in each of some rounds, in per cent.

    And the state after the last.
    """
    state, next_fn = _aggregate(max_mass_ratio, (self._SIZE,))
    shares = []
    for round_num, factor in enumerate(factors):
      clients = [
        self._client(i, factor if i == 0 else 1, round_num, normalization)
        for i in range(8)
      ]
      state, ((mean,), _) = next_fn(state, clients)
      shares.append(100 * float(np.mean(mean)))
    return shares, state

  # The table of docs/design.md.
  @pytest.mark.parametrize(
    'factor, unbounded, with_2, with_4',
    [
      (1, 12.5, 12.5, 12.5),
      (3, 41, 20, 28.5),
      (10, 74, 20, 28.5),
      (100, 97, 20, 28.5),
      (1e4, 99.97, 20, 28.5),
    ],
  )
  def test_share_after_an_honest_round(self, factor, unbounded, with_2, with_4):
    for ratio, share in ((None, unbounded), (2.0, with_2), (4.0, with_4)):
      found, _ = self._shares(ratio, [1, factor])
      assert found[0] == pytest.approx(12.5, abs=0.3)
      assert found[1] == pytest.approx(share, abs=0.5), ratio
    found, _ = self._shares(None, [1, factor], 'tensor_mean')
    assert found[1] == pytest.approx(12.5, abs=0.3)

  def test_poison_in_every_round(self):
    # The mean M of round 1, which nothing bounds, is 1e8 / 8. From then on
    # M <- (c M + 7) / 8, down to 7 / (8 - c) = 7 / 6: the poison has c / 8 of
    # the mass, somewhat less on average over the coordinates.
    found, state = self._shares(2.0, [1e4] * 20)
    assert found[0] > 99
    assert found[-1] == pytest.approx(21.5, abs=0.5)
    np.testing.assert_allclose(state['mean_masses'], [7 / 6], rtol=0.02)
