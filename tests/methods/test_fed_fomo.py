"""FedFomo as a learning process, against hand and local training."""

import collections

import linear_models
import linear_rounds
import numpy as np
import personal_rounds
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from tff_fedfish.data import randomness
from tff_fedfish.methods.fed_fomo import choose_downloads
from tff_fedfish.methods.parts import Downloads


def _vector_model():
  """Loss x (1 - w_1 / 2 + (w_2 - 2)^2 / 4), the mean over x.

  That is 2 at (0, 0), 1.5 at (1, 0), 1 at (0, 2), 0.5 at (3, 4) and 2.5 at
  (-1, 0).
  """

  @tf.function
  def predict(weights, x, training):
    del training
    (w,) = weights[0]
    return x * (1 - w[0] / 2 + tf.square(w[1] - 2) / 4)

  def loss(output, label, sample_weight=None):
    del label, sample_weight
    return tf.reduce_mean(output)

  spec = tf.TensorSpec([None], tf.float32)
  return personal_rounds.with_loss(
    tff.learning.models.FunctionalModel(
      initial_weights=((np.zeros(2, np.float32),), ()),
      predict_on_batch_fn=predict,
      loss_fn=loss,
      input_spec=collections.OrderedDict(x=spec, y=spec),
    )
  )


def _build(model=_vector_model, num_clients=4, **options):
  return linear_rounds.process(
    tff_fedfish.build_fed_fomo, model, num_clients=num_clients, **options
  )


def _rows(x):
  return linear_models.batches(x, np.zeros(len(x)), 2)


# Batches of two rows and of one: the mean over rows is 1, of batches 1.125.
_VALIDATION = [0.5, 1.0, 1.5]
_SELF, _A, _B, _C = (1, 0), (0, 2), (3, 4), (-1, 0)


def _kept(baseline=(0, 0), affinity=(0, 0, 0, 0)):
  def tensor(value):
    return (np.array(value, np.float32),)

  return dict(
    model=tensor(_SELF), baseline=tensor(baseline), affinity=tensor(affinity)
  )


def _round(process, models, kept=None, validation=_VALIDATION):
  """Runs a round of one client.

  Args:
    process: The process.
    models: (position, weights) of its candidates.
    kept: What it kept.
    validation: Its validation rows.

  Returns:
    (where it began, what it keeps, models that it was sent).
  """
  candidates = [(n, (np.array(w, np.float32),)) for n, w in models]
  client = personal_rounds.argument(
    process,
    _rows([1.0]),
    _rows(validation),
    candidates,
    kept or _kept(),
  )
  state = process.initialize()
  with tff_fedfish.collect_client_outputs() as outputs:
    output = process.next(state, [client])
  counts = output.metrics['client_work']['clients']
  (begun,) = outputs[0]['baseline']
  return begun, outputs[0], counts['num_downloads']


_ALL = list(enumerate((_SELF, _A, _B, _C)))


def test_vector_v6():
  # Gains 0.5, 1, 1.5, -0.5 by norms 1, 2, 5, 1. Theta = sum of w* theta_n, as
  # b = 0, with w* = 0.5, 0.5, 0.3 of 1.3: (0.5 + 0.9, 1 + 1.2) / 1.3.
  added, theta = (0.5, 0.5, 0.3, -0.5), (14 / 13, 22 / 13)
  process = _build()
  # What it held of them is added to.
  before = np.array([1.0, 0.0, -2.0, 0.5])
  begun, kept, num_sent = _round(process, _ALL, _kept(affinity=before))
  np.testing.assert_allclose(begun, theta, rtol=1e-5)
  # One step of 0.1 against (-1/2, (theta_2 - 2) / 2).
  gradient = np.array([-0.5, (theta[1] - 2) / 2])
  np.testing.assert_allclose(
    kept['model'][0], theta - 0.1 * gradient, rtol=1e-5
  )
  np.testing.assert_allclose(kept['affinity'][0], before + added, rtol=1e-5)
  # Its own model is not sent.
  assert num_sent == 3


def test_nothing_better_keeps_the_baseline():
  begun, kept, num_sent = _round(_build(), [(3, _C)], _kept((0.25, -0.5)))
  # Also where its own last model, (1, 0), lowered the training loss.
  np.testing.assert_array_equal(begun, np.float32([0.25, -0.5]))
  assert kept['affinity'][0][3] < 0
  np.testing.assert_array_equal(kept['affinity'][0][:3], 0)
  assert num_sent == 0


def test_without_validation_rows_it_goes_on_with_its_own_model():
  # Its last model is (1, 0), its baseline (0, 0). One step of 0.1 against
  # (-1/2, (0 - 2) / 2) follows.
  begun, kept, num_sent = _round(_build(), _ALL, validation=[])
  np.testing.assert_array_equal(begun, (1, 0))
  np.testing.assert_allclose(kept['model'][0], (1.05, 0.1), rtol=1e-6)
  np.testing.assert_array_equal(kept['affinity'][0], np.zeros(4))
  assert num_sent == 3


def test_what_weighs_nothing():
  # Loss 1 + 10^40 / 4 at a distance of 10^20; weights that are no numbers; a
  # distance of 0.
  process = _build()
  broken = [(1, (0, 1e20)), (2, (np.nan, np.inf)), (3, (0, 0))]
  begun, kept, num_sent = _round(process, [(0, _SELF), *broken])
  np.testing.assert_allclose(begun, _SELF, rtol=1e-6)
  np.testing.assert_array_equal(kept['affinity'][0], [0.5, 0, 0, 0])
  assert num_sent == 3
  # None is better than a loss that is no number.
  begun, kept, _ = _round(process, _ALL, validation=[np.inf])
  np.testing.assert_array_equal(begun, [0, 0])
  np.testing.assert_array_equal(kept['affinity'][0], np.zeros(4))


def test_first_round_is_local_training():
  process = _build()
  rounds = personal_rounds.Rounds(process)
  # Steps of 0.1 against x (-1/2, (w_2 - 2) / 2) of batches with the means 3/2
  # and 3, (0.075, 0.15) and (0.15, 0.2775); and with the mean 1/2.
  found = rounds.run([_rows([1.0, 2.0, 3.0]), _rows([0.5])])
  np.testing.assert_allclose(
    np.ravel(found), (0.225, 0.4275, 0.025, 0.05), rtol=1e-5
  )
  counts = rounds.metrics['client_work']['clients']
  assert counts['num_downloads'] == 0
  # The server only initializes.
  (weights,) = process.get_model_weights(rounds.state).trainable
  np.testing.assert_array_equal(weights, [0, 0])
  assert rounds.metrics['finalizer'] == dict(
    update_is_non_finite=0, update_is_all_zero=0
  )


def _scalar_model():
  return personal_rounds.with_loss(linear_models.scalar_model(0.5))


@pytest.mark.slow
def test_one_client_keeps_its_baseline_where_the_loss_rises():
  # It trains from 0.5 towards 3 and validates at 1: from 0.5 to 0.95 the
  # validation loss falls, from there to 1.319 it rises.
  rounds = personal_rounds.Rounds(
    _build(_scalar_model, 1, client_optimizer=linear_models.sgd(0.18))
  )
  data = [linear_models.batches([1.0], [3.0], 1)]
  validation = [linear_models.batches([1.0], [1.0], 1)]
  rounds.run(data, validation)
  for n in range(3):
    (model,) = rounds.run(data, validation)
    np.testing.assert_allclose(rounds.kept[0]['baseline'][0], 0.95, rtol=1e-5)
    np.testing.assert_allclose(model[0], 1.319, rtol=1e-5)
    # (L(b) - L(theta)) / |theta - b|: (0.125 - 0.00125) / 0.45 = 0.275, then
    # (0.00125 - 0.0508805) / 0.369 = -0.1345 each time.
    np.testing.assert_allclose(
      rounds.kept[0]['affinity'][0], [0.275 - 0.1345 * n], rtol=1e-4
    )


def _choose(affinity, pool, num_models, epsilon=0.0, round_num=1, seed=1):
  return choose_downloads(
    np.array(affinity, np.float32),
    pool,
    Downloads(num_models, epsilon, 0.0),
    round_num=round_num,
    generator=randomness.generator('downloads', seed, round_num, b'client'),
  )


def test_the_highest_affinities_are_sent():
  assert _choose([9, -1, 0.5, 2, 0, 7], [1, 2, 3, 4], 3) == [3, 2, 4]
  # No more than there are.
  assert _choose([0, 1, 2], [1, 2], 5) == [2, 1]
  assert _choose([0, 1, 2], [2], 5, epsilon=1.0) == [2]
  assert _choose([0, 1, 2], [], 5) == []


def test_ties_are_drawn():
  first = [
    _choose([1, 1, 1, 5, 0], range(5), 2, round_num=n) for n in range(600)
  ]
  assert {pair[0] for pair in first} == {3}
  counts = np.bincount([pair[1] for pair in first], minlength=5)
  # 200 of each of three, with a standard deviation of 11.5.
  assert counts[3] == counts[4] == 0
  assert all(150 < count < 250 for count in counts[:3])


@pytest.mark.parametrize('epsilon', [0.4, 1.0])
def test_exploration(epsilon):
  found = [
    _choose([4, 3, 2, 1], range(4), 2, epsilon, round_num=n)
    for n in range(1000)
  ]
  assert all(len(set(pair)) == 2 for pair in found)
  # A quarter of the random draws is the best one.
  counts = np.bincount([pair[0] for pair in found]) / 1000
  expected = np.array([1 - 0.75 * epsilon, *3 * [epsilon / 4]])
  np.testing.assert_allclose(counts, expected, atol=0.05)
