"""The round by hand: Fisher diagonals, aggregation, local training."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.toy import one_round
from tff_fedfish.toy.results import (
  GRID,
  SUPPORTS,
  Round,
  ToySettings,
  round_numbers,
  summarize,
)

_SMALL = ToySettings(
  num_seeds=2, num_examples=7, hidden_widths=(3, 2), num_local_steps=4
)


@pytest.fixture(scope='module')
def small_rounds():
  """The rounds of seed 1, read only."""
  return one_round.run_rounds(1, _SMALL)


def _constants(*values):
  return tuple(tf.constant(value, tf.float32) for value in values)


class TestOneWeightPerBin:
  """Two clients that know different bins of one function, f = theta[bin].

  client  bins         targets        local optimum   Gaussian Fisher
    1     0, 0, 0, 1   1, 1, 1, 2     (1, 2, 0, 0)    (3, 1, 0, 0): counts
    2     2, 2, 3, 3   -1, -1, 3, 3   (0, 0, -1, 3)   (0, 0, 2, 2)
  """

  _BINS = _constants([0, 0, 0, 1], [2, 2, 3, 3])
  _TARGETS = _constants([1, 1, 1, 2], [-1, -1, 3, 3])
  _INITIAL = _constants([0, 0, 0, 0])
  _OPTIMA = (_constants([1, 2, 0, 0]), _constants([0, 0, -1, 3]))
  _NUM_EXAMPLES = (4, 4)

  @staticmethod
  def _predict(weights, bins):
    return tf.linalg.matvec(tf.one_hot(tf.cast(bins, tf.int32), 4), weights[0])

  @pytest.fixture(scope='class')
  def fishers(self):
    return [
      one_round.gaussian_fisher_diagonal(self._predict, weights, bins)
      for weights, bins in zip(self._OPTIMA, self._BINS, strict=True)
    ]

  def _barrier(self, theta):
    """The barrier, from errors of the same kind as in `run_rounds`."""

    def errors(models):
      return np.array(
        [
          np.mean(np.square(self._predict(weights, bins) - targets))
          for weights, bins, targets in zip(
            models, self._BINS, self._TARGETS, strict=True
          )
        ]
      )

    round_ = Round(
      inputs=np.stack(self._BINS),
      targets=np.stack(self._TARGETS),
      errors={
        'local': errors(self._OPTIMA),
        'any': errors([theta, theta]),
      },
      curves={},
    )
    np.testing.assert_array_equal(round_.errors['local'], [0, 0])
    # Of local models without any error, the barriers are the errors.
    return round_.errors['any'], round_numbers(round_)['barrier']['any']

  def test_gaussian_fisher_counts_the_points_of_a_bin(self, fishers):
    [first], [second] = fishers
    np.testing.assert_array_equal(first, [3, 1, 0, 0])
    np.testing.assert_array_equal(second, [0, 0, 2, 2])

  def test_fed_fish_keeps_what_each_client_knows(self, fishers):
    # Entry 0: 4 * 3 * 1 / (4 * 3) = 1, and so on: each bin has one expert.
    # The floors, 1e-8 * mean(3, 1, 0, 0) = 1e-8, shift that by 1e-8 at most.
    theta = one_round.server_step(
      self._INITIAL,
      self._OPTIMA,
      self._NUM_EXAMPLES,
      fishers,
      relative_floor=1e-8,
    )
    np.testing.assert_allclose(theta[0], [1, 2, -1, 3], atol=1e-6)
    assert self._barrier(theta)[1] == pytest.approx(0, abs=1e-12)

  def test_fed_avg_forgets_half(self):
    theta = one_round.server_step(
      self._INITIAL, self._OPTIMA, self._NUM_EXAMPLES
    )
    np.testing.assert_array_equal(theta[0], [0.5, 1, -0.5, 1.5])
    # Client 1: (3 * 0.5^2 + 1^2) / 4 = 0.4375.
    # Client 2: (2 * 0.5^2 + 2 * 1.5^2) / 4 = 1.25. Mean 0.84375.
    clients, mean = self._barrier(theta)
    np.testing.assert_array_equal(clients, [0.4375, 1.25])
    assert mean == 0.84375

  def test_gradients_of_the_loss_vanish_at_exact_optima(self):
    # The empirical Fisher squares gradients of the loss, (f - y) df/dtheta,
    # and f = y: nobody has any mass, not even a relative floor's, and the
    # server keeps (0, 0, 0, 0).
    diagonals = []
    for weights, bins, targets in zip(
      self._OPTIMA, self._BINS, self._TARGETS, strict=True
    ):

      def losses(weights, bins, targets=targets):
        return tf.square(self._predict(weights, bins) - targets) / 2

      diagonals.append(
        one_round.gaussian_fisher_diagonal(losses, weights, bins)
      )
      np.testing.assert_array_equal(diagonals[-1][0], [0, 0, 0, 0])
    theta = one_round.server_step(
      self._INITIAL,
      self._OPTIMA,
      self._NUM_EXAMPLES,
      diagonals,
      relative_floor=1e-8,
    )
    np.testing.assert_array_equal(theta[0], [0, 0, 0, 0])
    # Client 1: (3 * 1^2 + 2^2) / 4 = 1.75; client 2: (2 * 1^2 + 2 * 3^2) / 4
    # = 5. Falling back to FedAvg instead would give 0.84375, as above.
    clients, mean = self._barrier(theta)
    np.testing.assert_array_equal(clients, [1.75, 5])
    assert mean == 3.375


class TestAggregation:
  _INITIAL = _constants([1.0, -2.0], 0.5)
  _LOCAL = (_constants([0.0, 2.0], 1.5), _constants([2.0, -4.0], -0.5))

  def test_one_client_is_followed(self):
    for theta in (
      one_round.server_step(self._INITIAL, self._LOCAL[:1], [7]),
      one_round.server_step(
        self._INITIAL,
        self._LOCAL[:1],
        [7],
        [_constants([5.0, 0.25], 2.0)],
        relative_floor=1e-8,
      ),
    ):
      np.testing.assert_allclose(theta[0], [0, 2], atol=1e-6)
      np.testing.assert_allclose(theta[1], 1.5, atol=1e-6)

  def test_unequal_weights_by_hand(self):
    # w = (1, 3), F = (2, 1) and (4, 0) for the kernel, 3 and 1 for the bias.
    # Kernel 0: (1*2*0 + 3*4*2) / (2 + 12) = 24/14; kernel 1: client 1 alone.
    # Bias: (1*3*1.5 + 3*1*(-0.5)) / (3 + 3) = 0.5.
    kernel, bias = one_round.server_step(
      self._INITIAL,
      self._LOCAL,
      [1, 3],
      [_constants([2.0, 1.0], 3.0), _constants([4.0, 0.0], 1.0)],
    )
    np.testing.assert_allclose(kernel, [24 / 14, 2], rtol=1e-6)
    np.testing.assert_allclose(bias, 0.5, rtol=1e-6)
    # FedAvg: (0 + 3*2) / 4, (2 - 3*4) / 4 and (1.5 - 1.5) / 4.
    kernel, bias = one_round.server_step(self._INITIAL, self._LOCAL, [1, 3])
    np.testing.assert_allclose(kernel, [1.5, -2.5], rtol=1e-6)
    np.testing.assert_allclose(bias, 0, atol=1e-6)

  def test_equal_fishers_are_fed_avg(self):
    diagonal = _constants([3.0, 1e-3], 40.0)
    fish = one_round.server_step(
      self._INITIAL, self._LOCAL, [1, 3], [diagonal] * 2
    )
    average = one_round.server_step(self._INITIAL, self._LOCAL, [1, 3])
    for mine, other in zip(fish, average, strict=True):
      np.testing.assert_allclose(mine, other, atol=1e-6)


class TestPerceptron:
  # f(x) = b_2 + w_2 tanh(b_1 + w_1 x)
  _WEIGHTS = _constants([[0.5]], [0.0], [[2.0]], [-1.0])

  def test_by_hand(self):
    # -1 + 2 tanh(1) = -1 + 2 * 0.7615942; tanh is odd.
    outputs = one_round.predict(self._WEIGHTS, tf.constant([2.0, 0.0, -2.0]))
    np.testing.assert_allclose(outputs, [0.5231883, -1, -2.5231883], rtol=1e-6)
    # Errors 0.5231883 - 0.5 and -1 - 2: (0.0005377 + 9) / 2.
    error = one_round.mean_squared_error(
      self._WEIGHTS, tf.constant([2.0, 0.0]), tf.constant([0.5, 2.0])
    )
    np.testing.assert_allclose(error, 4.5002689, rtol=1e-6)

  def test_fisher_by_hand(self):
    # At w_1 = b_1 = 0, where tanh is 0 and its slope 1, for x = 1, -2, 3:
    #   df/dw_1 = w_2 x = 2 x     4 (1 + 4 + 9) = 56
    #   df/db_1 = w_2 = 2         4 * 3 = 12
    #   df/dw_2 = tanh(0) = 0     0
    #   df/db_2 = 1               3
    found = one_round.gaussian_fisher_diagonal(
      one_round.predict,
      _constants([[0.0]], [0.0], [[2.0]], [-1.0]),
      tf.constant([1.0, -2.0, 3.0]),
    )
    for diagonal, expected in zip(
      found, ([[56]], [12], [[0]], [3]), strict=True
    ):
      np.testing.assert_array_equal(diagonal, expected)

  def test_models_side_by_side_are_those_models(self):
    models = [one_round.initial_weights((3, 2), seed) for seed in (0, 1)]
    inputs = tf.constant([[0.5, -1.0, 2.0, 1.0], [1.5, 0.0, -0.25, 1.0]])
    together = one_round.predict(
      tuple(tf.stack(pair) for pair in zip(*models, strict=True)), inputs
    )
    for k, weights in enumerate(models):
      np.testing.assert_allclose(
        together[k], one_round.predict(weights, inputs[k]), rtol=1e-6
      )

  def test_two_steps_of_adam_by_hand(self):
    # A line, f = k x + b from (0, 0); x = 1, 2; y = 2, 4; rate 0.1.
    # Step 1: residuals -2, -4. Gradient of k: (2*-2*1 + 2*-4*2) / 2 = -10, of
    #   b: (-4 - 8) / 2 = -6. Corrected moments are g and g^2: both move by
    #   0.1, to (0.1, 0.1).
    # Step 2: residuals 0.2 - 2 = -1.8 and 0.3 - 4 = -3.7.
    #   k: g = (-3.6 - 14.8) / 2 = -9.2
    #      m = (0.9*0.1*-10 + 0.1*-9.2) / (1 - 0.81) = -1.82 / 0.19
    #        = -9.578947
    #      v = (0.999*0.001*100 + 0.001*84.64) / (1 - 0.998001)
    #        = 0.18454 / 0.001999 = 92.316158, root 9.608130
    #      k = 0.1 + 0.1 * 9.578947 / 9.608130 = 0.1996963
    #   b: g = (-3.6 - 7.4) / 2 = -5.5
    #      m = (-0.54 - 0.55) / 0.19 = -5.736842
    #      v = (0.035964 + 0.03025) / 0.001999 = 33.123562, root 5.755307
    #      b = 0.1 + 0.1 * 5.736842 / 5.755307 = 0.1996792
    kernel, bias = one_round.train(
      _constants([[[0.0]]], [[0.0]]),
      tf.constant([[1.0, 2.0]]),
      tf.constant([[2.0, 4.0]]),
      num_steps=2,
      learning_rate=0.1,
    )
    np.testing.assert_allclose(kernel, [[[0.1996963]]], rtol=2e-5)
    np.testing.assert_allclose(bias, [[0.1996792]], rtol=2e-5)

  def test_initial_weights(self):
    weights = one_round.initial_weights((64, 64), 0)
    shapes = [tuple(w.shape) for w in weights]
    assert shapes == [(1, 64), (64,), (64, 64), (64,), (64, 1), (1,)]
    # 1 / sqrt(1), 1 / sqrt(64) twice; 4,096 draws come close to the bound.
    for w, bound in zip(weights, [1] * 2 + [0.125] * 4, strict=True):
      assert np.abs(w).max() <= bound
    assert np.abs(weights[2]).max() > 0.124
    assert np.abs(np.mean(weights[2])) < 0.125 * 4 / np.sqrt(3 * 4096)


class TestRounds:
  def test_one_round_for_each_support(self, small_rounds):
    assert list(small_rounds) == list(SUPPORTS)
    for support, round_ in small_rounds.items():
      inputs, targets = one_round.draw_clients(1, support, _SMALL)
      np.testing.assert_array_equal(round_.inputs, inputs)
      np.testing.assert_array_equal(round_.targets, targets)
      assert {len(curve) for curve in round_.curves.values()} == {221}

  def test_clients_start_together_and_learn_their_own_data(self, small_rounds):
    # Again, one client at a time and from its own data alone.
    initial = one_round.initial_weights(_SMALL.hidden_widths, 1)
    for round_ in small_rounds.values():
      for client in range(2):
        inputs = tf.constant(round_.inputs[client])
        targets = tf.constant(round_.targets[client])
        trained = one_round.train(
          tuple(w[tf.newaxis] for w in initial),
          inputs[tf.newaxis],
          targets[tf.newaxis],
          num_steps=4,
          learning_rate=_SMALL.learning_rate,
        )
        own = tuple(w[0] for w in trained)
        error = one_round.mean_squared_error(own, inputs, targets).numpy()
        np.testing.assert_allclose(
          round_.errors['local'][client], error, rtol=1e-5
        )
        np.testing.assert_allclose(
          round_.curves[f'client_{client + 1}'],
          one_round.predict(own, tf.constant(GRID)),
          atol=1e-5,
        )
        start = one_round.mean_squared_error(initial, inputs, targets)
        assert error < start.numpy()

  def test_the_same_again(self, small_rounds):
    again = one_round.run_rounds(1, _SMALL)
    for support, round_ in small_rounds.items():
      for model in ('local', 'fed_avg', 'fed_fish'):
        np.testing.assert_array_equal(
          round_.errors[model], again[support].errors[model]
        )

  def test_methods_differ(self, small_rounds):
    for round_ in small_rounds.values():
      assert np.all(round_.errors['fed_avg'] != round_.errors['fed_fish'])

  def test_no_training_is_no_barrier(self):
    settings = ToySettings(
      num_examples=7, hidden_widths=(3, 2), num_local_steps=0
    )
    numbers = summarize([one_round.run_rounds(0, settings)], settings)
    assert list(numbers['summary']) == list(SUPPORTS)
    for summary in numbers['summary'].values():
      assert {i['mean'] for i in summary['barrier'].values()} == {0.0}
      assert summary['num_seeds_fed_fish_lower'] == 0


@pytest.mark.slow
def test_local_models_fit_their_data():
  # The recipe's one criterion: an error below 0.01 where the noise is 0.0025.
  settings = ToySettings()
  for seed in range(settings.num_seeds):
    for support, round_ in one_round.run_rounds(seed, settings).items():
      assert round_.errors['local'].max() < 0.01, (seed, support)
