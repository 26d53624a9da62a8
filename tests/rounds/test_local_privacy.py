"""DP-SGD of clients: one step by hand, methods, and epsilon."""

import collections

import dp_accounting
import linear_models
import linear_rounds
import numpy as np
import pytest
import small_models
import stateful_rounds
import tensorflow as tf
from dp_accounting import rdp
from linear_rounds import process

import tff_fedfish
from models.transformer_config import TransformerConfig
from tff_fedfish.data import randomness
from tff_fedfish.rounds import privacy
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.gradients import batch_gradients
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.rounds.private_gradients import private_gradients


def _gradient_function(
  model,
  extra_loss=None,
  clip_norm=1.0,
  noise_multiplier=0.0,
  batch_size=2,
):
  """Returns (weights, batch, step, seed) -> gradients."""
  settings = LocalPrivacy(clip_norm, noise_multiplier, batch_size)

  @tf.function(reduce_retracing=True)
  def run(weights, batch, step, seed):
    return private_gradients(
      model,
      weights,
      (),
      batch,
      model.initialize_metrics_state(),
      step,
      privacy=settings,
      noise_seed=seed,
      extra_loss=extra_loss,
    )

  return lambda weights, batch, step=0, seed=(3, 4): run(
    weights, batch, tf.constant(step), tf.constant(seed)
  )


def _gradients(model, weights, batch, **options):
  return _gradient_function(model, **options)(weights, batch)


def _linear_batch(x, y):
  return dict(x=tf.constant(x, tf.float32), y=tf.constant(y, tf.float32))


def test_rows_are_clipped_by_hand():
  # Loss (x w + b - y)^2 at 0: gradient -2 y (x, 1). Row 1: y 0.1, x (0, 0):
  # (0, 0, -0.2), as it is. Row 2: y -5, x (2, -2): 10 (2, -2, 1), of norm 30:
  # (2, -2, 1) / 3. Sum (2/3, -2/3, 2/15); B = 4: (1/6, -1/6, 1/30).
  found = _gradients(
    linear_models.linear_model(2),
    (tf.zeros(2), tf.constant(0.0)),
    _linear_batch([[0.0, 0.0], [2.0, -2.0]], [0.1, -5.0]),
    batch_size=4,
  )
  np.testing.assert_allclose(found.total[0], [1 / 6, -1 / 6], rtol=1e-6)
  np.testing.assert_allclose(found.total[1], 1 / 30, rtol=1e-5)
  assert found.num_examples == 4
  # (0.01 + 25) / 2
  np.testing.assert_allclose(found.loss, 12.505, rtol=1e-6)


def test_an_extra_loss_is_clipped_with_the_data_loss():
  # Data loss 0; extra loss 30 theta: gradient 30, clipped to 1, over B = 2.
  found = _gradients(
    linear_models.scalar_model(),
    (tf.constant(0.0),),
    _linear_batch([1.0], [0.0]),
    extra_loss=lambda weights, batch, output: 30 * weights[0],
  )
  np.testing.assert_allclose(found.total[0], 0.5)


def test_one_huge_row_moves_a_step_by_its_clip_norm():
  gradients = _gradient_function(linear_models.linear_model(2), clip_norm=0.5)
  weights = tf.zeros(2), tf.constant(0.0)

  def total(x, y):
    return np.append(*gradients(weights, _linear_batch(x, y)).total)

  without = total([[1.0, 2.0]], [0.1])
  for huge in (1e18, np.inf):
    moved = total([[1.0, 2.0], [0.5, 0.1]], [0.1, huge]) - without
    # An infinite row is left out, another reaches the bound; B = 2.
    expected = 0 if np.isinf(huge) else 0.5 / 2
    np.testing.assert_allclose(np.linalg.norm(moved), expected, atol=1e-6)


@pytest.mark.slow
def test_rows_of_text_count_alike():
  # Rows with 3, 2, 0 and 1 targets: each by the mean over its own, the third
  # not at all.
  shape = TransformerConfig(
    num_layers=1, width=4, num_heads=1, vocabulary_size=5, sequence_length=3
  )
  spec = small_models.build(shape)
  weights, _ = small_models.random_weights(spec)
  model, random = spec.functional_model, np.random.RandomState(0)
  tokens = random.randint(5, size=(4, 4)).astype(np.int32)
  batch = dict(x=tf.constant(tokens), y=tf.constant([3, 2, 0, 1]))
  found = _gradients(model, weights, batch, clip_norm=1e9, batch_size=4)
  gradient_of_row = tf.function(
    lambda x, y: (
      batch_gradients(model, weights, (), dict(x=x, y=y), training=True).total
    )
  )
  rows = [
    gradient_of_row(batch['x'][row : row + 1], batch['y'][row : row + 1])
    for row in (0, 1, 3)
  ]
  for total, *expected in zip(found.total, *rows, strict=True):
    np.testing.assert_allclose(total, sum(expected) / 4, atol=1e-6)
  assert found.metrics['num_tokens'][0] == 6
  assert found.metrics['num_sequences'][0] == 4


class _SummedLosses:
  """A model whose only metric is the sum of its rows' losses."""

  def __init__(self, model):
    self.predict_on_batch, self.loss = model.predict_on_batch, model.loss

  def initialize_metrics_state(self):
    return tf.constant(0.0)

  def update_metrics_state(self, state, labels, batch_output):
    del labels
    return state + batch_output.loss


def test_a_row_is_accepted_by_itself():
  # The loss (0 - y)^2 is 2.25e38, and that of two rows beyond float32. Each
  # gradient, -2 y (0, 1), is clipped to (0, -1).
  gradients = _gradient_function(
    _SummedLosses(linear_models.linear_model(1)), batch_size=1
  )
  weights = (tf.zeros(1), tf.constant(0.0))
  one, two = (
    gradients(weights, _linear_batch([[0.0]] * count, [1.5e19] * count))
    for count in (1, 2)
  )
  np.testing.assert_allclose(one.total[1], -1.0, rtol=1e-6)
  np.testing.assert_allclose(two.total[1], -2.0, rtol=1e-6)
  # Of one of them: otherwise the client would be rejected for its metrics.
  np.testing.assert_allclose(two.metrics, 2.25e38, rtol=1e-6)


_NUM_BINS = 100_000


class TestNoise:
  @pytest.fixture(scope='class')
  def noise(self):
    """Returns a function to the gradient of a batch without rows."""
    gradients = _gradient_function(
      linear_models.table_model(_NUM_BINS),
      clip_norm=0.5,
      noise_multiplier=3.0,
      batch_size=4,
    )
    batch = dict(x=tf.zeros([0], tf.int32), y=tf.zeros([0]))

    def noise(step=0, seed=(3, 4)):
      found = gradients((tf.zeros(_NUM_BINS),), batch, step, seed)
      assert found.loss == 0
      return found.total[0].numpy()

    return noise

  def test_deviation(self, noise):
    # sigma C / B = 3 * 0.5 / 4
    found = noise()
    assert np.std(found) == pytest.approx(0.375, rel=0.02)
    assert abs(np.mean(found)) < 5 * 0.375 / np.sqrt(_NUM_BINS)

  def test_it_is_a_function_of_seed_and_step(self, noise):
    first = noise()
    np.testing.assert_array_equal(first, noise())
    for other in (noise(step=1), noise(seed=(3, 5))):
      assert np.mean(first == other) < 1e-3

  def test_steps_share_no_noise(self, noise):
    # With int32 steps one word of a seed is kept: these two agreed in it.
    found = []
    for round_num, client, step in ((1, 6, 60), (18, 76, 74)):
      draw = randomness.generator(
        'private_noise', 6, round_num, b'client-%04d' % client
      )
      seed = draw.randint(2**31, size=2, dtype=np.int64).astype(np.int32)
      found.append(noise(step, seed))
    assert not np.array_equal(*found)

  def test_tensors_have_other_noise(self):
    found = _gradients(
      linear_models.linear_model(1),
      (tf.zeros(1), tf.constant(0.0)),
      _linear_batch(np.zeros([0, 1]), []),
      noise_multiplier=1.0,
    )
    assert found.total[0][0] != found.total[1]


_X = np.random.RandomState(0).normal(size=(4, 2)).astype(np.float32)
_Y = np.array([1.0, -2.0, 0.5, 3.0])


def _private(data, seed=(1, 2), num_examples=4):
  element = collections.OrderedDict(
    noise_seed=tf.constant(seed),
    num_examples=tf.constant(num_examples, tf.int64),
    num_unobserved=tf.constant(0, tf.int64),
  )
  private = tf.data.Dataset.from_tensors(element)
  return collections.OrderedDict(data=data, local_privacy=private)


def _after_round(build, client, **options):
  """Returns the server's weights and the metrics after a round."""
  found, output = linear_rounds.trained(process(build, **options), [client])
  return found, output.metrics


def _build_with_extra_loss(model, **options):
  return compose(
    model,
    make_update=lambda client: client.model_delta(),
    extra_loss=lambda start, weights, *_: 3 * weights[1],
    **options,
  )


def _batches(batch_size=2):
  return linear_models.batches(_X, _Y, batch_size)


class TestMethods:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    ('build', 'options'),
    [
      (tff_fedfish.build_fed_prox, {'num_local_epochs': 2, 'mu': 0.3}),
      (tff_fedfish.build_fed_fish, {'fisher_estimator': 'last_epoch'}),
    ],
  )
  def test_without_noise_and_clipping_it_is_the_plain_method(
    self, build, options
  ):
    plain, _ = _after_round(build, _batches(), **options)
    found, _ = _after_round(
      build,
      _private(_batches()),
      local_privacy=LocalPrivacy(1e9, 0.0, 2),
      **options,
    )
    np.testing.assert_allclose(found, plain, atol=1e-6)
    assert np.any(plain)

  @pytest.mark.slow
  def test_an_extra_loss_is_trained_on(self):
    # It adds 3 to the gradient of the bias, in every row.
    found, _ = _after_round(
      _build_with_extra_loss,
      _private(_batches()),
      local_privacy=LocalPrivacy(1e9, 0.0, 2),
    )
    expected = np.zeros(3)
    for step in ([0, 1], [2, 3]):
      gradient = linear_rounds.gradient(expected, _X[step], _Y[step])
      expected = expected - 0.1 * (gradient + [0, 0, 3])
    np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_noise_of_a_round_is_a_function_of_its_seed(self):
    first, second, other = (
      _after_round(
        tff_fedfish.build_fed_avg,
        _private(_batches(), seed=seed),
        local_privacy=LocalPrivacy(0.5, 1.0, 2),
      )[0]
      for seed in ((1, 2), (1, 2), (1, 3))
    )
    np.testing.assert_array_equal(first, second)
    assert not np.any(first == other)

  @pytest.mark.slow
  def test_fed_sgd_sends_the_mean_of_clipped_gradients(self):
    # Gradients of rows -2 y (x, 1), clipped to 0.5; 4 rows, the server's rate
    # 1.
    rows = -2 * _Y[:, np.newaxis] * np.concatenate([_X, np.ones((4, 1))], 1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    expected = -np.mean(rows * np.minimum(1, 0.5 / norms), axis=0)
    found, _ = _after_round(
      tff_fedfish.build_fed_sgd,
      _private(_batches()),
      local_privacy=LocalPrivacy(0.5, 0.0, 2),
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)

  def test_fisher_is_of_clipped_gradients(self):
    # One row per step, each clipped to norm 0.1 and squared.
    fed_fish = process(
      tff_fedfish.build_fed_fish,
      fisher_estimator='last_epoch',
      local_privacy=LocalPrivacy(0.1, 0.0, 1),
    )
    client = _private(_batches(1))
    (trained,) = fed_fish.trained_models(fed_fish.initialize(), [client])
    total = sum(np.sum(f) for f in trained['update'].a)
    np.testing.assert_allclose(total, 4 * 0.1**2, rtol=1e-5)

  @pytest.mark.slow
  def test_scaffold_variates_are_means_of_clipped_steps(self):
    # c_i+ = (x - y) / (M eta) in the first round: at most C times the rows of a
    # batch over B. delta = M eta c_i+.
    scaffold = process(
      tff_fedfish.build_scaffold, local_privacy=LocalPrivacy(0.1, 0.0, 2)
    )
    client = stateful_rounds.argument(scaffold, _batches())
    client['local_privacy'] = _private(None)['local_privacy']
    with tff_fedfish.collect_client_outputs() as outputs:
      found, _ = linear_rounds.trained(scaffold, [client])
    variate = linear_rounds.flat(outputs[0]['control_variate'][:-1])
    assert 0 < np.linalg.norm(variate) <= 0.1 + 1e-6
    np.testing.assert_allclose(found, -0.2 * variate, rtol=1e-5)

  @pytest.mark.slow
  def test_drawn_batches_are_all_steps_and_rows_count_once(self):
    # Row 1, none, rows 1 and 0; all by plain SGD over B = 2.
    rows = [[1], [], [1, 0]]
    index = tf.constant([i for r in rows for i in r], tf.int64)
    limits = np.cumsum([0, *map(len, rows)])
    data = tf.data.Dataset.from_tensor_slices((limits[:-1], limits[1:])).map(
      lambda a, b: collections.OrderedDict(
        x=tf.gather(_X, index[a:b]),
        y=tf.gather(_Y.astype(np.float32), index[a:b]),
      )
    )
    found, metrics = _after_round(
      tff_fedfish.build_fed_avg,
      _private(data, num_examples=7),
      local_privacy=LocalPrivacy(1e9, 0.0, 2, draws_batches=True),
      # Not read.
      num_local_epochs=3,
    )
    expected = np.zeros(3)
    for step in rows:
      features = np.concatenate([_X[step], np.ones((len(step), 1))], 1)
      errors = features @ expected - _Y[step]
      expected = expected - 0.1 * 2 * errors @ features / 2
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert metrics['client_work']['clients']['num_empty_clients'] == 0

  def test_not_with_slices(self):
    with pytest.raises(
      ValueError,
      match='`micro_batch_size` must be None with local_privacy, found 2',
    ):
      process(
        tff_fedfish.build_fed_avg,
        local_privacy=LocalPrivacy(1.0, 1.0, 2),
        micro_batch_size=2,
      )


class TestEpsilon:
  @pytest.mark.parametrize(
    'inputs',
    [(50 / 2666, 1.0, 5300, 1e-5), (0.3, 0.7, 1, 1e-3)],
  )
  def test_it_is_that_of_dp_accounting(self, inputs):
    rate, noise_multiplier, num_steps, delta = inputs
    accountant = rdp.RdpAccountant()
    step = dp_accounting.GaussianDpEvent(noise_multiplier)
    accountant.compose(
      dp_accounting.PoissonSampledDpEvent(rate, step), num_steps
    )
    assert privacy.epsilon(*inputs) == pytest.approx(
      accountant.get_epsilon(delta), rel=1e-9
    )

  def test_published_setting(self):
    # n = 2,666, B = 50, 100 epochs of 53 steps.
    assert privacy.epsilon(50 / 2666, 2.0, 5300, 1e-5) == pytest.approx(
      3.3467, abs=1e-4
    )

  def test_limits(self):
    assert privacy.epsilon(0.1, 1.0, 0, 1e-5) == 0
    # So much noise that the divergence is rounded.
    found = privacy.epsilon(1e-6, 1e4, 10**6, 1e-5)
    assert found == pytest.approx(0, abs=0.1)

  def test_rate_of_a_client_with_fewer_rows_than_a_batch(self):
    assert privacy.sampling_rate(8, 5) == 1
    assert privacy.sampling_rate(8, 32) == 0.25
