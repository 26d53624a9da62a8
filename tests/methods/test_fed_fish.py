"""FedFish: the paper's vectors, rounds against NumPy, settings at odds."""

import collections
import functools

import hypothesis
import linear_models
import numpy as np
import planned_configs
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

from models.functional_model import ModelSpec, build_language_model
from models.model_shapes import weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish import build_fed_avg, build_fed_fish
from tff_fedfish.fields import ConfigError
from tff_fedfish.methods.fed_fish.process import (
  DeltaAndFisher,
  FisherMean,
  add_squares,
  no_squares,
)
from tff_fedfish.optimizers import build_adamw
from tff_fedfish.runtime.in_process_context import set_in_process_context

_SGD, _SERVER = linear_models.sgd(0.1), linear_models.sgd(1.0)
_LANGUAGE_MODEL = TransformerConfig(
  num_layers=2, width=4, num_heads=1, vocabulary_size=8, sequence_length=4
)


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()
  yield
  _process.cache_clear()


@functools.cache
def _linear_spec():
  """Returns a linear model whose kernel stands for what makes logits."""
  return ModelSpec(
    linear_models.linear_model(2),
    lambda: ((tf.zeros([2]), tf.zeros([])), ()),
    makes_logits=(True, False),
  )


@functools.cache
def _process(build=build_fed_fish, model=None, client=_SGD, **options):
  return build(
    model or _linear_spec(),
    client_optimizer=client,
    server_optimizer=_SERVER,
    **options,
  )


def _clients():
  random = np.random.RandomState(4)
  clients = []
  for size in (3, 7, 4):
    x = random.normal(size=(size, 2)).astype(np.float32)
    y = (x @ [1, 2] + random.normal(size=size)) * 0.5
    clients.append((x, y.astype(np.float32)))
  return clients


def _trained(process, clients=None, num_rounds=2):
  """Returns all weights in one array, and the metrics of the last round."""
  state = process.initialize()
  datasets = [linear_models.batches(*c, 2) for c in clients or _clients()]
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  weights = process.get_model_weights(state).trainable
  return np.append(*(np.asarray(w) for w in weights)), output.metrics


def _gradient(theta, x, y):
  residual = x @ theta[:2] + theta[2] - y
  return 2 * np.append(x.T @ residual, residual.sum()) / len(y)


def _by_numpy(
  fisher_estimator='extra_pass',
  fisher_reduction='sum',
  fisher_normalization='none',
  fisher_power=1.0,
  plain_mean_fraction=0.0,
  plain_mean_tensors='none',
  client_weighting=None,
):
  """Two rounds of two epochs in float64, batches of 2, rates 0.1 and 1."""
  theta = np.zeros(3)
  for _ in range(2):
    deltas, fishers, weights = [], [], []
    for x, y in _clients():
      parts = [(x[i : i + 2], y[i : i + 2]) for i in range(0, len(y), 2)]
      rows = [(x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
      local = theta.copy()
      for _ in range(2):
        squares = []
        for part in parts:
          squares.append(_gradient(local, *part) ** 2)
          local -= 0.1 * _gradient(local, *part)
      if fisher_estimator != 'last_epoch':
        parts = rows if fisher_estimator == 'example_sq' else parts
        squares = [_gradient(local, *part) ** 2 for part in parts]
      fisher = np.sum(squares, 0)
      if fisher_reduction == 'mean':
        fisher /= len(squares)
      fisher **= fisher_power
      # The kernel and the bias are tensors of their own.
      means = np.append(np.repeat(fisher[:2].mean(), 2), fisher[2])
      if fisher_normalization == 'tensor_mean':
        fisher, means = fisher / means, np.ones(3)
      deltas.append(theta - local)
      fishers.append(fisher + 1e-8 * means)
      weights.append(1 if client_weighting else len(y))
    weights, deltas = np.reshape(weights, (3, 1)), np.array(deltas)
    masses = weights * fishers
    plain = (weights * deltas).sum(0) / weights.sum()
    g = (masses * deltas).sum(0) / masses.sum(0)
    g = plain_mean_fraction * plain + (1 - plain_mean_fraction) * g
    if plain_mean_tensors == 'logits':
      g[:2] = plain[:2]
    theta = theta - g
  return theta


@pytest.mark.parametrize(
  'options',
  [
    {},
    dict(fisher_estimator='last_epoch'),
    dict(fisher_estimator='example_sq', fisher_reduction='mean'),
    dict(
      fisher_reduction='mean',
      client_weighting=tff.learning.ClientWeighting.UNIFORM,
    ),
    dict(fisher_normalization='tensor_mean', fisher_power=0.5),
    dict(fisher_power=0.25),
    dict(plain_mean_fraction=0.75),
    dict(plain_mean_tensors='logits'),
    dict(
      fisher_power=0.5, plain_mean_fraction=0.5, plain_mean_tensors='logits'
    ),
  ],
  ids=lambda options: '-'.join(map(str, options.values())) or 'default',
)
def test_rounds_equal_those_computed_by_numpy(options):
  found, metrics = _trained(_process(num_local_epochs=2, **options))
  expected = _by_numpy(**options)
  np.testing.assert_allclose(found, expected, rtol=2e-5)
  is_uniform = 'client_weighting' in options
  weight_sum = metrics['aggregator']['client_weight_sum']
  assert weight_sum == (3 if is_uniform else 14)
  # The setting makes a difference that the tolerance does not hide.
  if options:
    assert np.abs(expected / _by_numpy() - 1).max() > 1e-3


def test_one_round_by_hand():
  # Client 1: data (1,2), (2,2), (3,3) in batches of 2, E = 2:
  # delta -0.99975, F 0.500625^2 + 0.00225^2 = 0.250630453125, n 3.
  # Client 2: data (1, -1), E = 2: theta -0.1, -0.19; delta 0.19;
  # gradient at -0.19 is 0.81, F 0.6561, n 1.
  # g = (3 * 0.250630453125 * -0.99975 + 0.6561 * 0.19)
  #     / (3 * 0.250630453125 + 0.6561)
  #   = (-0.751703386 + 0.124659) / 1.407991359 = -0.445346...
  process = _process(model=linear_models.scalar_model(), num_local_epochs=2)
  datasets = [
    linear_models.batches([1.0, 2.0, 3.0], [2.0, 2.0, 3.0], 2),
    linear_models.batches([1.0], [-1.0], 2),
  ]
  state = process.next(process.initialize(), datasets).state
  (theta,) = process.get_model_weights(state).trainable
  np.testing.assert_allclose(theta, 0.445346, atol=1e-6)


@pytest.mark.parametrize(
  'options', [{'fisher_power': 0.0}, {'plain_mean_fraction': 1.0}]
)
def test_one_end_is_fed_avg_to_the_bit_and_computes_no_fisher(options):
  process, fed_avg = _process(**options), _process(build_fed_avg)
  found, metrics = _trained(process)
  expected, expected_metrics = _trained(fed_avg)
  assert found.tobytes() == expected.tobytes()
  assert metrics == expected_metrics
  # w F and w F delta are not among what a client sends.
  sent, plain = (
    p.trained_models.type_signature.result.member.update
    for p in (process, fed_avg)
  )
  assert sent == plain


def test_plain_tensors_are_fed_avgs_to_the_bit_whatever_the_floor():
  process = _process(plain_mean_tensors='logits', relative_floor=1e-3)
  found, _ = _trained(process, num_rounds=1)
  expected, _ = _trained(_process(build_fed_avg), num_rounds=1)
  assert found[:2].tobytes() == expected[:2].tobytes()
  assert found[2] != expected[2]


def test_a_client_sends_no_more_than_the_bound():
  state = _process().initialize()
  dataset = linear_models.batches(*_clients()[1], 2)
  deltas = []
  for options in ({}, {'max_delta_norm': 0.01}):
    (found,) = _process(**options).trained_models(state, [dataset])
    deltas.append(np.append(*found['update'].model_delta))
  plain, bounded = deltas
  np.testing.assert_allclose(
    bounded, 0.01 * plain / np.linalg.norm(plain), rtol=1e-5
  )


def test_a_limit_of_steps_observes_the_last_of_them():
  x, y = _clients()[1]
  x, y = x[:4], y[:4]
  process = _process(
    fisher_estimator='last_epoch', num_local_epochs=9, num_local_steps=5
  )
  dataset = linear_models.batches(x, y, 2)
  (found,) = process.trained_models(process.initialize(), [dataset])
  theta, squares = np.zeros(3), []
  for step in range(5):
    part = slice(step % 2 * 2, step % 2 * 2 + 2)
    squares.append(_gradient(theta, x[part], y[part]) ** 2)
    theta -= 0.1 * _gradient(theta, x[part], y[part])
  # ceil(4 / 2) steps are observed: the batches 1 and 0.
  expected = squares[3] + squares[4]
  np.testing.assert_allclose(
    np.append(*found['update'].fisher_diagonal), expected, rtol=2e-5
  )


def test_micro_batches_make_the_same_diagonal():
  dataset = linear_models.batches(*_clients()[1], 4)
  fishers = []
  for options in ({}, {'micro_batch_size': 3}):
    process = _process(**options)
    (found,) = process.trained_models(process.initialize(), [dataset])
    fishers.append(np.append(*found['update'].fisher_diagonal))
  np.testing.assert_allclose(*fishers, rtol=1e-5)


def test_one_client_is_that_client():
  clients = _clients()[:1]
  fish, _ = _trained(_process(), clients, num_rounds=1)
  average, _ = _trained(_process(build_fed_avg), clients, num_rounds=1)
  np.testing.assert_allclose(fish, average, rtol=1e-6)


def test_zero_mass_coordinate_keeps_the_servers_value():
  # Bin 2 is seen by nobody, bin 0 only by the first client.
  datasets = [
    linear_models.batches([0, 1, 0], [1.0, 2.0, 1.5], 2),
    linear_models.batches([1, 3], [4.0, 2.0], 2),
  ]
  theta = {}
  for build, options in (
    (build_fed_fish, {'relative_floor': 0.0}),
    (build_fed_avg, {}),
  ):
    process = _process(build, model=linear_models.table_model(4), **options)
    state = process.next(process.initialize(), datasets).state
    (theta[build],) = process.get_model_weights(state).trainable
  assert theta[build_fed_fish][2] == 0.0
  # Bin 0 is client 1's own result, undiluted: batch {0: 1, 1: 2} then
  # {0: 1.5}: 0.1 * 1/2 = 0.05, then 0.05 + 0.1 * 1.45 = 0.195.
  np.testing.assert_allclose(theta[build_fed_fish][0], 0.195, rtol=1e-5)
  # FedAvg dilutes it: (3 * 0.195 + 2 * 0) / 5.
  np.testing.assert_allclose(theta[build_fed_avg][0], 0.117, rtol=1e-5)


@pytest.mark.parametrize('fraction', [0.0, 0.5])
def test_client_whose_product_overflows_counts_as_absent(fraction):
  clients = _clients()
  # Finite delta and Fisher, but w F delta is beyond float32.
  huge = (clients[1][0] * 200, clients[1][1])
  process = _process(plain_mean_fraction=fraction)
  found, metrics = _trained(process, [clients[0], huge, clients[2]], 1)
  expected, _ = _trained(process, [clients[0], clients[2]], 1)
  np.testing.assert_array_equal(found, expected)
  assert metrics['aggregator']['num_overflowing_clients'] == 1
  assert metrics['client_work']['clients']['num_non_finite_clients'] == 0


class TestSecondMoment:
  def _fisher(self, client, batch_size, **options):
    """Returns the diagonal of the client of 7 rows."""
    process = _process(
      client=client, fisher_estimator='second_moment', **options
    )
    dataset = linear_models.batches(*_clients()[1], batch_size)
    (found,) = process.trained_models(process.initialize(), [dataset])
    return np.append(*found['update'].fisher_diagonal)

  @pytest.mark.parametrize('options', [{}, {'micro_batch_size': 3}])
  def test_single_batch_gives_the_square_of_its_gradient(self, options):
    found = self._fisher(build_adamw(0.01), 7, **options)
    # The gradient at the start, not after the step: v_1 / (1 - beta_2).
    expected = _gradient(np.zeros(3), *_clients()[1]) ** 2
    np.testing.assert_allclose(found, expected, rtol=2e-5)

  def test_steps_decay(self):
    found = self._fisher(build_adamw(1e-9, beta_2=0.75), 4)
    x, y = _clients()[1]
    first = _gradient(np.zeros(3), x[:4], y[:4]) ** 2
    last = _gradient(np.zeros(3), x[4:], y[4:]) ** 2
    # v = 3/4 (1/4 first) + 1/4 last; 1 - beta_2^2 = 7/16.
    expected = (3 / 16 * first + 4 / 16 * last) / (7 / 16)
    np.testing.assert_allclose(found, expected, rtol=2e-5)

  def test_client_without_a_step_has_none(self):
    process = _process(
      client=build_adamw(0.01), fisher_estimator='second_moment'
    )
    empty = linear_models.batches(np.zeros([0, 2]), [], 2)
    (found,) = process.trained_models(process.initialize(), [empty])
    assert not np.append(*found['update'].fisher_diagonal).any()


@pytest.mark.parametrize('plain_mean_tensors', ['none', 'logits'])
def test_each_layer_of_a_transformer_has_its_own_tensor_mean(
  plain_mean_tensors,
):
  process = _process(
    model=build_language_model(_LANGUAGE_MODEL, model_seed=1),
    fisher_normalization='tensor_mean',
    plain_mean_tensors=plain_mean_tensors,
  )
  tokens = np.random.RandomState(2).randint(8, size=(3, 5)).astype(np.int32)
  batch = collections.OrderedDict(x=tokens, y=np.full(3, 4, np.int32))
  dataset = tf.data.Dataset.from_tensor_slices(batch).batch(3)
  (found,) = process.trained_models(process.initialize(), [dataset])
  fisher = dict(
    zip(
      weight_shapes(_LANGUAGE_MODEL),
      found['update'].fisher_diagonal,
      strict=True,
    )
  )
  # The tied embedding makes the logits; its rows embed the input, too.
  is_plain = plain_mean_tensors == 'logits'
  assert fisher['token_embedding'].shape == ((1, 1) if is_plain else (8, 4))
  for name, tensor in fisher.items():
    means = [np.mean(layer) for layer in tensor]
    if not name.startswith('block/'):
      means = np.mean(means)
    np.testing.assert_allclose(means, 1, rtol=1e-5, err_msg=name)


def test_bfloat16_gradients_are_squared_in_float32():
  gradient = tf.constant([1.0078125], tf.bfloat16)
  squares = add_squares(no_squares((gradient,)), (gradient,))
  # 1.0078125^2 = 1.01568603515625, which bfloat16 would round to 1.015625.
  assert squares.sums[0].numpy()[0] == np.float32(1.01568603515625)


# Two clients, n = (10, 30).
#   client  delta                    fisher
#     1     ( 0.2, -0.4, 0,   0.1)   (4, 1, 0, 0  )
#     2     (-0.1,  0.2, 0.5, 0.3)   (1, 3, 0, 0.5)
_N = (10.0, 30.0)
_DELTAS = ([0.2, -0.4, 0.0, 0.1], [-0.1, 0.2, 0.5, 0.3])
_FISHERS = ([4.0, 1.0, 0.0, 0.0], [1.0, 3.0, 0.0, 0.5])
# (10 * 0.2 - 30 * 0.1) / 40, (-4 + 6) / 40, 15 / 40, (1 + 9) / 40.
_FED_AVG = [-0.025, 0.05, 0.375, 0.25]


def _mean(
  *options, weights=_N, deltas=_DELTAS, fishers=_FISHERS, dtype=tf.float64
):
  """Returns g of single tensors."""
  aggregator = FisherMean(*options)
  terms = [
    aggregator.terms(
      DeltaAndFisher((tf.constant(d, dtype),), (tf.constant(f, dtype),)),
      tf.constant(w, dtype),
    )[0]
    for w, d, f in zip(weights, deltas, fishers, strict=True)
  ]
  sums = tf.nest.map_structure(lambda *t: tf.add_n(t), *terms)
  return aggregator.mean(sums)[0].numpy()


class TestFisherMean:
  def test_by_hand(self):
    # numerator (10*4*0.2 - 30*1*0.1, -10*0.4 + 30*3*0.2, 0, 30*0.5*0.3)
    #         = (5, 14, 0, 4.5); mass (70, 100, 0, 15)
    expected = np.array([5 / 70, 0.14, 0.0, 0.3])
    np.testing.assert_allclose(_mean(), expected, atol=1e-12)
    mixed = 0.25 * np.array(_FED_AVG) + 0.75 * expected
    np.testing.assert_allclose(_mean(0.0, 0.25), mixed, atol=1e-12)

  def test_floor_lets_clients_weigh_as_the_mean_of_their_f(self):
    # Entry 2: floors 1e-8 * (5/4, 4.5/4): 30*1.125*0.5 / (12.5 + 33.75)
    #        = 16.875 / 46.25 = 0.36486486..., while FedAvg has 0.375.
    expected = [0.0714285714, 0.14, 0.3648648649, 0.3]
    np.testing.assert_allclose(_mean(1e-8), expected, atol=1e-7)
    fishers = [f / np.mean(f) for f in _FISHERS]
    found = _mean(1e-8, fishers=fishers)
    np.testing.assert_allclose(found[2], 0.375, atol=1e-12)

  @pytest.mark.parametrize('same', [[7.0, 0.5, 3.0, 1e-9], [1.0]])
  def test_equal_fishers_are_fed_avg(self, same):
    found = _mean(fishers=(same, same))
    np.testing.assert_allclose(found, _FED_AVG, atol=1e-12)

  @pytest.mark.parametrize('scale', [1e-12, 3.0, 1e6])
  def test_common_scale_changes_nothing(self, scale):
    found = _mean(1e-8, fishers=scale * np.array(_FISHERS))
    np.testing.assert_allclose(found, _mean(1e-8), rtol=1e-12)

  def test_equals_equation_4_on_weights(self):
    theta = np.array([1.0, -2.0, 0.5, 3.0])
    masses = np.reshape(_N, (2, 1)) * _FISHERS
    informed = masses.sum(0) > 0
    sums = (masses * (theta - _DELTAS)).sum(0)[informed]
    expected = sums / masses.sum(0)[informed]
    np.testing.assert_allclose((theta - _mean())[informed], expected)

  def test_disjoint_supports_keep_what_each_client_knows(self):
    # Two clients know different bins of one function. A: bins 0 (3 points) and
    # 1 (1 point), B: bins 2 and 3 (2 points each); n = 4 each.
    optima = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, -1.0, 3.0]])
    options = dict(weights=(4.0, 4.0), deltas=-optima, dtype=tf.float32)
    found = _mean(fishers=[[3, 1, 0, 0], [0, 0, 2, 2]], **options)
    np.testing.assert_array_equal(-found, [1, 2, -1, 3])
    # At the exact optima every squared gradient is 0, and the server stays.
    found = _mean(1e-8, fishers=np.zeros((2, 4)), **options)
    np.testing.assert_array_equal(found, np.zeros(4))

  @hypothesis.given(
    st.lists(
      st.tuples(st.integers(1, 1000), st.floats(0, 1e30)),
      min_size=2,
      max_size=6,
    ),
    st.sampled_from([0.25, 0.5, 0.75]),
  )
  @hypothesis.settings(deadline=None, max_examples=50)
  def test_influence_of_a_client_is_bounded_whatever_its_diagonal(
    self, clients, fraction
  ):
    weights, fishers = np.transpose(clients)
    # Only the first client moves: the mean is its part in the round.
    found = _mean(
      0.0,
      fraction,
      weights=weights,
      deltas=np.eye(len(weights))[:, :1],
      fishers=fishers[:, np.newaxis],
    )
    least = fraction * weights[0] / weights.sum()
    assert least - 1e-12 <= found[0] <= least + 1 - fraction + 1e-12


_SECOND_MOMENT = {
  'algorithm__fisher_estimator': 'second_moment',
  'client_work__optimizer': 'adamw',
}
_WITH_SECOND_MOMENT = " with fisher_estimator 'second_moment', found "


@pytest.mark.parametrize(
  ('settings', 'problem'),
  [
    (
      {'algorithm__fisher_estimator': 'second_moment'},
      f"client_work.optimizer` must be 'adamw'{_WITH_SECOND_MOMENT}'sgd'",
    ),
    (
      _SECOND_MOMENT | {'client_work__max_gradient_norm': 1.0},
      f'client_work.max_gradient_norm` must be None{_WITH_SECOND_MOMENT}1.0',
    ),
    (
      _SECOND_MOMENT | {'client_work__keeps_optimizer_state': True},
      'client_work.keeps_optimizer_state` must be False'
      f'{_WITH_SECOND_MOMENT}True',
    ),
    (
      _SECOND_MOMENT | {'algorithm__fisher_reduction': 'mean'},
      f"algorithm.fisher_reduction` must be 'sum'{_WITH_SECOND_MOMENT}'mean'",
    ),
  ],
)
def test_settings_at_odds(settings, problem):
  with pytest.raises(ConfigError) as caught:
    planned_configs.by_hand(**settings)
  assert f'`config.{problem}' in str(caught.value)


def test_images_have_no_logits_of_a_language_model():
  with pytest.raises(ConfigError) as caught:
    planned_configs.shipped(
      'mnist_by_writer',
      algorithm__name='fed_fish',
      algorithm__plain_mean_tensors='logits',
    )
  assert (
    "`config.algorithm.plain_mean_tensors` must be 'none' with corpus "
    "'mnist_by_writer', which is no text, found 'logits'"
  ) in str(caught.value)
