"""FedFish: the paper's vectors, rounds against NumPy, settings at odds."""

import collections

import linear_models
import linear_rounds
import numpy as np
import planned_configs
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from linear_rounds import gradient

from models.functional_model import ModelSpec, build_language_model
from models.model_shapes import weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish import build_fed_avg, build_fed_fish
from tff_fedfish.fields import ConfigError
from tff_fedfish.methods import fed_fish
from tff_fedfish.optimizers import build_adamw


def _linear_spec():
  """Returns a linear model whose kernel stands for what makes logits."""
  return ModelSpec(
    linear_models.linear_model(2),
    lambda: ((tf.zeros([2]), tf.zeros([])), ()),
    makes_logits=(True, False),
  )


def _process(build=build_fed_fish, model=_linear_spec, **options):
  return linear_rounds.process(
    build, model, **dict(num_local_epochs=2) | options
  )


def _clients():
  return [(x, 0.5 * y) for x, y in linear_models.three_clients()]


def _trained(process, clients=None, num_rounds=2):
  """Returns the weights, and the metrics of the last round."""
  found, output = linear_rounds.trained(
    process, linear_rounds.datasets(clients or _clients()), num_rounds
  )
  return found, output.metrics


def _by_numpy(
  fisher_estimator='extra_pass',
  fisher_reduction='sum',
  fisher_normalization='none',
  fisher_power=1.0,
  fisher_mix=None,
  fisher_cap=np.inf,
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
          squares.append(gradient(local, *part) ** 2)
          local -= 0.1 * gradient(local, *part)
      if fisher_estimator != 'last_epoch':
        parts = rows if fisher_estimator == 'example_sq' else parts
        squares = [gradient(local, *part) ** 2 for part in parts]
      fisher = np.sum(squares, 0)
      if fisher_reduction == 'mean':
        fisher /= len(squares)
      fisher **= fisher_power
      # The kernel and the bias are tensors of their own.
      means = np.append(np.repeat(fisher[:2].mean(), 2), fisher[2])
      if fisher_normalization == 'tensor_mean':
        fisher, means = fisher / means, np.ones(3)
      if fisher_mix is not None:
        fisher = np.minimum(fisher / means, fisher_cap)
        fisher = 1 - fisher_mix + fisher_mix * fisher
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
    dict(
      fisher_estimator='last_epoch',
      fisher_reduction='mean',
      plain_mean_tensors='logits',
      client_weighting=tff.learning.ClientWeighting.UNIFORM,
    ),
    dict(
      fisher_estimator='example_sq',
      fisher_reduction='mean',
      fisher_power=0.25,
    ),
    dict(
      fisher_normalization='tensor_mean',
      fisher_power=0.5,
      plain_mean_fraction=0.75,
    ),
    dict(fisher_mix=0.75, fisher_cap=1.25),
  ],
  ids=lambda options: '-'.join(map(str, options.values())) or 'default',
)
def test_rounds_equal_those_computed_by_numpy(options):
  found, metrics = _trained(_process(**options))
  expected = _by_numpy(**options)
  np.testing.assert_allclose(found, expected, rtol=2e-5)
  is_uniform = 'client_weighting' in options
  weight_sum = metrics['aggregator']['client_weight_sum']
  assert weight_sum == (3 if is_uniform else 14)
  # Each setting makes a difference that the tolerance does not hide.
  for name in options:
    others = {key: value for key, value in options.items() if key != name}
    assert np.abs(expected / _by_numpy(**others) - 1).max() > 1e-3


def test_one_round_by_hand():
  # Client 1: data (1,2), (2,2), (3,3) in batches of 2, E = 2:
  # delta -0.99975, F 0.500625^2 + 0.00225^2 = 0.250630453125, n 3.
  # Client 2: data (1, -1), E = 2: theta -0.1, -0.19; delta 0.19;
  # gradient at -0.19 is 0.81, F 0.6561, n 1.
  # g = (3 * 0.250630453125 * -0.99975 + 0.6561 * 0.19)
  #     / (3 * 0.250630453125 + 0.6561)
  #   = (-0.751703386 + 0.124659) / 1.407991359 = -0.445346...
  process = _process(model=linear_models.scalar_model)
  datasets = [
    linear_models.batches([1.0, 2.0, 3.0], [2.0, 2.0, 3.0], 2),
    linear_models.batches([1.0], [-1.0], 2),
  ]
  state = process.next(process.initialize(), datasets).state
  (theta,) = process.get_model_weights(state).trainable
  np.testing.assert_allclose(theta, 0.445346, atol=1e-6)


@pytest.mark.parametrize(
  'options',
  [{'fisher_power': 0.0}, {'plain_mean_fraction': 1.0}, {'fisher_mix': 0.0}],
)
def test_one_end_is_fed_avg_to_the_bit_and_computes_no_fisher(options):
  found, metrics = _trained(_process(**options))
  expected, expected_metrics = _trained(_process(build_fed_avg))
  assert found.tobytes() == expected.tobytes()
  # The aggregator is FedAvg's, too.
  assert metrics == expected_metrics


def test_plain_tensors_are_fed_avgs_to_the_bit_whatever_the_floor():
  process = _process(plain_mean_tensors='logits', relative_floor=1e-3)
  found, _ = _trained(process, num_rounds=1)
  expected, _ = _trained(_process(build_fed_avg), num_rounds=1)
  assert found[:2].tobytes() == expected[:2].tobytes()
  assert found[2] != expected[2]


def test_quantized_updates_have_no_weights_of_plain_tensors():
  process = _process(plain_mean_tensors='logits', delta_bits=8)
  client = collections.OrderedDict(
    data=linear_models.batches(*_clients()[1], 2),
    rounding_seed=tf.data.Dataset.from_tensors(tf.constant([1, 2])),
  )
  (found,) = process.trained_models(process.initialize(), [client])
  kernel, bias = found['update'].a
  assert not kernel and bias > 0


def test_one_client_is_that_client():
  clients = _clients()[:1]
  fish, _ = _trained(_process(), clients, num_rounds=1)
  average, _ = _trained(_process(build_fed_avg), clients, num_rounds=1)
  np.testing.assert_allclose(fish, average, rtol=1e-6)


def test_client_whose_product_overflows_counts_as_absent():
  clients = _clients()
  # Finite delta and Fisher, but w F delta is beyond float32.
  huge = (clients[1][0] * 40, clients[1][1])
  found, metrics = _trained(_process(), [clients[0], huge, clients[2]], 1)
  expected, _ = _trained(_process(), [clients[0], clients[2]], 1)
  np.testing.assert_array_equal(found, expected)
  assert metrics['aggregator']['num_overflowing_clients'] == 1
  assert metrics['client_work']['clients']['num_non_finite_clients'] == 0


def test_second_moment():
  process = _process(
    client_optimizer=build_adamw(0.01, beta_2=0.75),
    fisher_estimator='second_moment',
    num_local_epochs=1,
  )
  x, y = _clients()[1]
  datasets = [
    linear_models.batches(x, y, 7),
    linear_models.batches(x, y, 4),
    linear_models.batches(x[:0], y[:0], 4),
  ]
  trained = process.trained_models(process.initialize(), datasets)
  one_step, two_steps, none = (
    linear_rounds.flat(found['update'].a) for found in trained
  )
  # The gradient at the start, not after the step: v_1 / (1 - beta_2).
  expected = gradient(np.zeros(3), x, y) ** 2
  np.testing.assert_allclose(one_step, expected, rtol=2e-5)
  # v = 3/4 (1/4 first) + 1/4 last; 1 - beta_2^2 = 7/16. Adam's first step is of
  # the length of the rate in every coordinate.
  first = gradient(np.zeros(3), x[:4], y[:4])
  last = gradient(-0.01 * np.sign(first), x[4:], y[4:])
  expected = (3 / 16 * first**2 + 4 / 16 * last**2) / (7 / 16)
  np.testing.assert_allclose(two_steps, expected, rtol=2e-5)
  assert not none.any()


def _column_spec():
  """Returns the model of a matrix [2, 1] and a bias [1]."""

  def outputs(x, weights):
    kernel, bias = weights
    return (x @ kernel + bias)[:, 0]

  return _spec(outputs, [2, 1], [1])


def _stacked_spec():
  """Returns a model of x (k_1 + 2 k_2 + v + u), k_1 and k_2 in one tensor."""

  def outputs(x, weights):
    k, v, u = weights
    return tf.linalg.matvec(x, k[0] + 2 * k[1] + v + u)

  return _spec(
    outputs,
    *([2, 2], [2], [2]),
    makes_logits=(False, False, True),
    is_stacked=(True, False, False),
  )


def _spec(outputs, *sizes, **flags):
  """Returns a model of two features and squared loss, its weights 0."""

  @tf.function
  def predict(weights, x, training):
    del training
    return outputs(x, weights[0])

  model = tff.learning.models.FunctionalModel(
    initial_weights=(
      tuple(np.zeros(size, np.float32) for size in sizes),
      (),
    ),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(
      tf.square(output - label)
    ),
    input_spec=linear_models.linear_model(2).input_spec,
  )
  return ModelSpec(model, lambda: (tuple(map(tf.zeros, sizes)), ()), **flags)


def test_each_layer_has_its_own_tensor_mean():
  process = _process(
    model=_stacked_spec,
    fisher_normalization='tensor_mean',
    plain_mean_tensors='logits',
  )
  dataset = linear_models.batches(*_clients()[1], 2)
  (found,) = process.trained_models(process.initialize(), [dataset])
  layers, vector, logits = found['update'].a
  # The gradient of k_2 is twice that of k_1.
  np.testing.assert_allclose(layers, [vector, vector], rtol=1e-5)
  np.testing.assert_allclose(np.mean(vector), 1, rtol=1e-5)
  # The tensor of logits has no weights of its own.
  assert not logits


def test_axes_of_a_language_model():
  shape = TransformerConfig(
    num_layers=2, width=4, num_heads=1, vocabulary_size=8, sequence_length=4
  )
  spec, names = build_language_model(shape, model_seed=1), weight_shapes(shape)
  for name, stacked in zip(names, spec.is_stacked, strict=True):
    assert stacked == name.startswith('block/')
  # The tied embedding makes the logits; its rows embed the input, too.
  logits = [n for n, f in zip(names, spec.makes_logits, strict=True) if f]
  assert logits == ['token_embedding']
  inputs = dict(zip(names, spec.input_axes, strict=True))
  # Hidden units are the inputs of the output matrix.
  assert inputs.pop('token_embedding') == 1
  assert inputs.pop('position_embedding') == 0
  kernels = {name for name in names if name.endswith('kernel')}
  assert inputs == {n: 1 if n in kernels else None for n in inputs}


def test_slices_of_a_batch_make_the_same_squares():
  dataset = linear_models.batches(*_clients()[1], 4)

  def weights(**options):
    process = _process(**options)
    (found,) = process.trained_models(process.initialize(), [dataset])
    return linear_rounds.flat(found['update'].a)

  found = weights(micro_batch_size=3)
  np.testing.assert_allclose(found, weights(), rtol=1e-5)


def test_bfloat16_gradients_are_squared_in_float32():
  gradient = tf.constant([1.0078125], tf.bfloat16)
  none = fed_fish.Squares((tf.zeros([1]),), tf.constant(0, tf.int64))
  squares = fed_fish._add(none, (gradient,))
  # 1.0078125^2 = 1.01568603515625, which bfloat16 would round to 1.015625.
  assert squares.sums[0].numpy()[0] == np.float32(1.01568603515625)


@pytest.mark.parametrize(
  'options',
  [
    dict(fisher_power=-0.5),
    dict(fisher_mix=1.5),
    dict(fisher_mix=0.5, fisher_cap=0.5),
    dict(fisher_granularity='tensor', fisher_mix=0.5),
    dict(fisher_granularity='tensor', fisher_normalization='tensor_mean'),
  ],
)
def test_numbers_that_are_no_weights_are_refused(options):
  name = f'`config.algorithm.{[*options][-1]}` must be'
  with pytest.raises(ConfigError, match=name):
    _process(**options)


def test_a_cap_without_a_mix_is_refused():
  with pytest.raises(ValueError, match='`fisher_cap` must be None without'):
    _process(fisher_cap=2.0)


def test_inputs_of_matrices_with_one_output_are_elements_to_the_bit():
  found, expected = (
    _trained(_process(model=_column_spec, fisher_granularity=granularity))[0]
    for granularity in ('input', 'element')
  )
  assert found.tobytes() == expected.tobytes()
  means, _ = _trained(_process(model=_column_spec, fisher_granularity='tensor'))
  assert np.abs(means - expected).max() > 1e-3


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
      {
        'algorithm__fisher_granularity': 'tensor',
        'algorithm__fisher_normalization': 'tensor_mean',
      },
      "algorithm.fisher_normalization` must be 'none' with fisher_granularity "
      "'tensor', or clients would weigh the same, found 'tensor_mean'",
    ),
    (
      {
        'algorithm__fisher_normalization': 'tensor_mean',
        'algorithm__fisher_mix': 0.5,
      },
      'algorithm.fisher_normalization` is read only with fisher_mix None, '
      "found 'tensor_mean'; leave it out",
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
