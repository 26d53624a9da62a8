"""Every method with clients that train by DP-SGD."""

import collections
import functools

import linear_models
import numpy as np
import pytest
import small_models
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import build_language_model
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.methods.fed_prox import build_fed_prox
from tff_fedfish.methods.fed_sgd import build_fed_sgd
from tff_fedfish.methods.moon import build_moon
from tff_fedfish.methods.scaffold import build_scaffold
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.runtime.in_process_context import (
  collect_client_outputs,
  set_in_process_context,
)

_X = np.random.RandomState(0).normal(size=(4, 2)).astype(np.float32)
_Y = np.array([1.0, -2.0, 0.5, 3.0])


@pytest.fixture(autouse=True)
def in_process():
  set_in_process_context()


@pytest.fixture(autouse=True, scope='module')
def _processes():
  yield
  _process.cache_clear()


def _private(data, seed=(1, 2), num_examples=4, num_unobserved=0):
  element = collections.OrderedDict(
    noise_seed=tf.constant(seed),
    num_examples=tf.constant(num_examples, tf.int64),
    num_unobserved=tf.constant(num_unobserved, tf.int64),
  )
  private = tf.data.Dataset.from_tensors(element)
  return collections.OrderedDict(data=data, local_privacy=private)


# Building takes seconds; equal arguments share a process, which has no state.
@functools.cache
def _process(build, model, **options):
  return build(
    model or linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    **options,
  )


def _weights_after_round(build, client, model=None, num_rounds=1, **options):
  process = _process(build, model, **options)
  state = process.initialize()
  for _ in range(num_rounds):
    output = process.next(state, [client])
    state = output.state
  weights = process.get_model_weights(state).trainable
  return np.concatenate([np.ravel(w) for w in weights]), output.metrics


def _batches(batch_size=2):
  return linear_models.batches(_X, _Y, batch_size)


@pytest.mark.parametrize(
  ('build', 'options'),
  [
    (build_fed_avg, {'num_local_epochs': 2}),
    (build_fed_prox, {'num_local_epochs': 2, 'mu': 0.3}),
    (build_fed_fish, {'fisher_estimator': 'last_epoch'}),
    (build_fed_sgd, {}),
  ],
)
def test_without_noise_and_clipping_it_is_the_plain_method(build, options):
  plain, _ = _weights_after_round(build, _batches(), **options)
  privacy = LocalPrivacy(1e9, 0.0, 2)
  found, _ = _weights_after_round(
    build, _private(_batches()), local_privacy=privacy, **options
  )
  np.testing.assert_allclose(found, plain, atol=1e-6)
  assert np.any(plain)


def test_noise_of_a_round_is_a_function_of_its_seed():
  options = dict(local_privacy=LocalPrivacy(0.5, 1.0, 2))
  first, second, other = (
    _weights_after_round(
      build_fed_avg, _private(_batches(), seed=seed), **options
    )[0]
    for seed in ((1, 2), (1, 2), (1, 3))
  )
  np.testing.assert_array_equal(first, second)
  assert not np.any(first == other)


def test_fed_sgd_sends_the_mean_of_noised_gradients():
  # Gradients of rows -2 y (x, 1), clipped to 0.5; 4 rows, the server's rate 1.
  rows = -2 * _Y[:, np.newaxis] * np.concatenate([_X, np.ones((4, 1))], 1)
  norms = np.linalg.norm(rows, axis=1, keepdims=True)
  expected = -np.mean(rows * np.minimum(1, 0.5 / norms), axis=0)
  found, _ = _weights_after_round(
    build_fed_sgd,
    _private(_batches()),
    local_privacy=LocalPrivacy(0.5, 0.0, 2),
  )
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_fisher_is_of_clipped_gradients():
  # One row per step, each clipped to norm 0.1 and squared: the Fisher-weighted
  # mean of one client is its delta.
  privacy = LocalPrivacy(0.1, 0.0, 1)
  process = build_fed_fish(
    linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    fisher_estimator='last_epoch',
    local_privacy=privacy,
  )
  client = _private(_batches(1))
  (trained,) = process.trained_models(process.initialize(), [client])
  fisher = trained['update'].fisher_diagonal
  total = sum(np.sum(f) for f in fisher)
  np.testing.assert_allclose(total, 4 * 0.1**2, rtol=1e-5)


def test_scaffold_variates_are_means_of_noised_steps():
  # c_i+ = (x - y) / (M eta) in the first round: of clipped gradients, at most C
  # times the rows of a batch over B.
  privacy = LocalPrivacy(0.1, 0.0, 2)
  process = build_scaffold(
    linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    local_privacy=privacy,
  )
  state = process.initialize()
  empty = tuple(
    tf.data.Dataset.from_tensors(
      tuple(tf.zeros(s.shape, s.dtype) for s in process.kept_specs[name])
    ).take(0)
    for name in ('control_variate',)
  )
  client = _private(_batches())
  client['state'] = collections.OrderedDict(control_variate=empty[0])
  client = collections.OrderedDict(
    (name, client[name]) for name in ('data', 'state', 'local_privacy')
  )
  with collect_client_outputs() as outputs:
    after = process.next(state, [client]).state
  variate = np.concatenate(
    [np.ravel(t) for t in outputs[0]['control_variate'][:-1]]
  )
  assert 0 < np.linalg.norm(variate) <= 0.1 + 1e-6
  # delta = M eta c_i+
  weights = process.get_model_weights(after).trainable
  found = np.concatenate([np.ravel(w) for w in weights])
  np.testing.assert_allclose(found, -0.2 * variate, rtol=1e-5)


def test_moon_clips_its_extra_loss_too():
  shape = small_models.SHAPES['learned']
  spec = build_language_model(shape, model_seed=1)
  batch = small_models.rows(shape, 2)
  data = tf.data.Dataset.from_tensor_slices(batch).batch(2)
  process = build_moon(
    spec,
    client_optimizer=linear_models.sgd(1.0),
    server_optimizer=linear_models.sgd(1.0),
    mu=1e4,
    local_privacy=LocalPrivacy(0.1, 0.0, 2),
  )
  state, kept = process.initialize(), None
  before = process.get_model_weights(state).trainable
  # Far from the server's: the contrastive loss has a large gradient.
  weights, _ = small_models.random_weights(spec)
  kept = tf.data.Dataset.from_tensors(tuple(weights))
  private = _private(data)
  client = collections.OrderedDict(
    data=data,
    state=collections.OrderedDict(previous_model=kept),
    local_privacy=private['local_privacy'],
  )
  after = process.get_model_weights(process.next(state, [client]).state)
  moved = np.sqrt(
    sum(
      np.sum((a - b) ** 2) for a, b in zip(after.trainable, before, strict=True)
    )
  )
  assert 0.01 < moved <= 0.1 + 1e-5


def test_drawn_batches_are_all_steps_and_rows_count_once():
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
  found, metrics = _weights_after_round(
    build_fed_avg,
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


def test_a_client_without_rows_is_empty():
  found, metrics = _weights_after_round(
    build_fed_avg,
    _private(_batches().take(0), num_examples=0),
    local_privacy=LocalPrivacy(1.0, 1.0, 2),
  )
  assert not np.any(found)
  assert metrics['client_work']['clients']['num_empty_clients'] == 1


@pytest.mark.parametrize(
  ('build', 'options', 'words'),
  [
    (
      build_fed_prox,
      {'adaptation': 'fl4health'},
      "`adaptation` must be 'none' with local_privacy",
    ),
    (
      build_fed_fish,
      {'fisher_estimator': 'example_sq'},
      "`fisher_estimator` must be 'last_epoch' with local_privacy",
    ),
    (
      build_fed_avg,
      {'micro_batch_size': 2},
      '`micro_batch_size` must be None with local_privacy, found 2',
    ),
  ],
)
def test_refused(build, options, words):
  with pytest.raises(ValueError, match=words):
    _weights_after_round(
      build,
      _private(_batches()),
      local_privacy=LocalPrivacy(1.0, 1.0, 2),
      **options,
    )


def test_type_of_a_client():
  process = build_fed_avg(
    linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    local_privacy=LocalPrivacy(1.0, 1.0, 2),
  )
  client = process.next.type_signature.parameter[1].member
  assert isinstance(client, tff.StructWithPythonType)
  assert str(client['local_privacy']) == (
    '<noise_seed=int32[2],num_examples=int64,num_unobserved=int64>*'
  )
