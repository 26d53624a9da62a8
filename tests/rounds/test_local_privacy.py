"""DP-SGD of clients: one step by hand, methods, and epsilon."""

import collections
import functools

import dp_accounting
import linear_models
import numpy as np
import pytest
import small_models
import stateful_rounds
import tensorflow as tf
from dp_accounting import rdp

import tff_fedfish
from models.functional_model import build_language_model
from tff_fedfish.data import randomness
from tff_fedfish.rounds import privacy
from tff_fedfish.rounds.gradients import batch_gradients
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.rounds.private_gradients import private_gradients
from tff_fedfish.runtime.in_process_context import set_in_process_context

_SEED = (3, 4)


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()


def _gradients(model, weights, batch, *, step=0, seed=_SEED, **options):
  settings = dict(clip_norm=1.0, noise_multiplier=0.0, batch_size=2)
  extra_loss = options.pop('extra_loss', None)

  @tf.function
  def run(weights, batch):
    return private_gradients(
      model,
      weights,
      (),
      batch,
      model.initialize_metrics_state(),
      tf.constant(step),
      privacy=LocalPrivacy(**settings | options),
      noise_seed=tf.constant(seed),
      extra_loss=extra_loss,
    )

  return run(weights, batch)


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


@pytest.mark.parametrize('huge', [1e4, 1e18, np.inf])
def test_one_huge_row_moves_a_step_by_its_clip_norm(huge):
  model, weights = (
    linear_models.linear_model(2),
    (tf.zeros(2), tf.constant(0.0)),
  )

  def total(x, y):
    found = _gradients(model, weights, _linear_batch(x, y), clip_norm=0.5)
    return np.append(*found.total)

  without = total([[1.0, 2.0]], [0.1])
  moved = total([[1.0, 2.0], [0.5, 0.1]], [0.1, huge]) - without
  # An infinite row is left out, another reaches the bound; B = 2.
  expected = 0 if np.isinf(huge) else 0.5 / 2
  np.testing.assert_allclose(np.linalg.norm(moved), expected, atol=1e-6)


def test_rows_of_text_count_alike():
  # Rows with 5, 3, 0 and 1 targets: each by the mean over its own, the third
  # not at all.
  shape = small_models.SHAPES['learned']
  spec = small_models.build(shape)
  weights, _ = small_models.random_weights(spec)
  batch, model = small_models.rows(shape, 4), spec.functional_model
  found = _gradients(
    model,
    weights,
    tf.nest.map_structure(tf.constant, batch),
    clip_norm=1e9,
    batch_size=4,
  )
  total = [np.zeros(w.shape) for w in weights]
  for row in (0, 1, 3):
    part = tf.nest.map_structure(lambda t, r=row: t[r : r + 1], batch)
    gradients = batch_gradients(model, weights, (), part, training=True).total
    total = [t + g for t, g in zip(total, gradients, strict=True)]
  for a, b in zip(found.total, total, strict=True):
    np.testing.assert_allclose(a, b / 4, atol=1e-6)
  assert found.metrics['num_tokens'][0] == 9
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
  model, rows = _SummedLosses(linear_models.linear_model(1)), {}
  weights = (tf.zeros(1), tf.constant(0.0))
  for num_rows in (1, 2):
    batch = _linear_batch([[0.0]] * num_rows, [1.5e19] * num_rows)
    rows[num_rows] = _gradients(model, weights, batch, batch_size=1)
  np.testing.assert_allclose(rows[1].total[1], -1.0, rtol=1e-6)
  np.testing.assert_allclose(rows[2].total[1], -2.0, rtol=1e-6)
  # Of one of them: otherwise the client would be rejected for its metrics.
  np.testing.assert_allclose(rows[2].metrics, 2.25e38, rtol=1e-6)


class TestNoise:
  def _noise(self, step=0, seed=_SEED, size=8):
    """Returns the gradient of a batch without rows."""
    found = _gradients(
      linear_models.table_model(size),
      (tf.zeros(size),),
      dict(x=tf.zeros([0], tf.int32), y=tf.zeros([0])),
      step=step,
      seed=seed,
      clip_norm=0.5,
      noise_multiplier=3.0,
      batch_size=4,
    )
    assert found.loss == 0
    return found.total[0].numpy()

  def test_deviation(self):
    # sigma C / B = 3 * 0.5 / 4
    noise = self._noise(size=100_000)
    assert np.std(noise) == pytest.approx(0.375, rel=0.02)
    assert abs(np.mean(noise)) < 5 * 0.375 / np.sqrt(len(noise))

  def test_it_is_a_function_of_seed_and_step(self):
    first = self._noise()
    np.testing.assert_array_equal(first, self._noise())
    for other in (self._noise(step=1), self._noise(seed=(3, 5))):
      assert not np.any(first == other)

  def test_steps_share_no_noise(self):
    # With int32 steps one word of a seed is kept: these two agreed in it.
    noise = []
    for round_num, client, step in ((1, 6, 60), (18, 76, 74)):
      draw = randomness.generator(
        'private_noise', 6, round_num, b'client-%04d' % client
      )
      seed = draw.randint(2**31, size=2, dtype=np.int64).astype(np.int32)
      noise.append(self._noise(step=step, seed=seed))
    assert not np.array_equal(*noise)

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


# Building takes seconds; equal arguments share a process, which has no state.
@functools.cache
def _process(build, model=None, rate=0.1, **options):
  return build(
    model or linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(rate),
    server_optimizer=linear_models.sgd(1.0),
    **options,
  )


def _after_round(build, client, **options):
  """Returns the server's weights and the metrics after a round."""
  process = _process(build, **options)
  output = process.next(process.initialize(), [client])
  weights = process.get_model_weights(output.state).trainable
  return np.concatenate([np.ravel(w) for w in weights]), output.metrics


def _batches(batch_size=2):
  return linear_models.batches(_X, _Y, batch_size)


class TestMethods:
  @pytest.mark.parametrize(
    ('build', 'options'),
    [
      (tff_fedfish.build_fed_prox, {'num_local_epochs': 2, 'mu': 0.3}),
      (tff_fedfish.build_fed_fish, {'fisher_estimator': 'last_epoch'}),
      (tff_fedfish.build_fed_sgd, {}),
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
    process = _process(
      tff_fedfish.build_fed_fish,
      fisher_estimator='last_epoch',
      local_privacy=LocalPrivacy(0.1, 0.0, 1),
    )
    client = _private(_batches(1))
    (trained,) = process.trained_models(process.initialize(), [client])
    total = sum(np.sum(f) for f in trained['update'].fisher_diagonal)
    np.testing.assert_allclose(total, 4 * 0.1**2, rtol=1e-5)

  def test_scaffold_variates_are_means_of_clipped_steps(self):
    # c_i+ = (x - y) / (M eta) in the first round: at most C times the rows of a
    # batch over B. delta = M eta c_i+.
    process = _process(
      tff_fedfish.build_scaffold, local_privacy=LocalPrivacy(0.1, 0.0, 2)
    )
    client = stateful_rounds.argument(process, _batches())
    client['local_privacy'] = _private(None)['local_privacy']
    with tff_fedfish.collect_client_outputs() as outputs:
      after = process.next(process.initialize(), [client]).state
    variate = np.concatenate(
      [np.ravel(t) for t in outputs[0]['control_variate'][:-1]]
    )
    assert 0 < np.linalg.norm(variate) <= 0.1 + 1e-6
    weights = process.get_model_weights(after).trainable
    found = np.concatenate([np.ravel(w) for w in weights])
    np.testing.assert_allclose(found, -0.2 * variate, rtol=1e-5)

  def test_moon_clips_its_extra_loss_too(self):
    shape = small_models.SHAPES['learned']
    spec = build_language_model(shape, model_seed=1)
    rows = small_models.rows(shape, 2)
    process = _process(
      tff_fedfish.build_moon,
      spec,
      rate=1.0,
      mu=1e4,
      local_privacy=LocalPrivacy(0.1, 0.0, 2),
    )
    # Far from the server's: the contrastive loss has a large gradient.
    weights, _ = small_models.random_weights(spec)
    client = stateful_rounds.argument(
      process,
      tf.data.Dataset.from_tensor_slices(rows).batch(2),
      {'previous_model': tuple(weights)},
    )
    client['local_privacy'] = _private(None)['local_privacy']
    state = process.initialize()
    before, after = (
      process.get_model_weights(each).trainable
      for each in (state, process.next(state, [client]).state)
    )
    moved = [np.sum((a - b) ** 2) for a, b in zip(after, before, strict=True)]
    assert 0.01 < np.sqrt(sum(moved)) <= 0.1 + 1e-5

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
      _process(
        tff_fedfish.build_fed_avg,
        local_privacy=LocalPrivacy(1.0, 1.0, 2),
        micro_batch_size=2,
      )


class TestEpsilon:
  @pytest.mark.parametrize(
    'inputs',
    [
      (50 / 2666, 1.0, 5300, 1e-5),
      (1.0, 1.0, 10, 1e-5),
      (0.3, 0.7, 1, 1e-3),
    ],
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
