"""Timing, and how times of few layers become those of many."""

import itertools

import planned_configs
import pytest

from tff_fedfish.planning import step_time


@pytest.fixture
def _stopwatch(monkeypatch):
  """Steps take 7 s and 2 s a layer, rows of the batch 1 s each; no model.

  Turns of a timer take 2, -3 and 0 s more.
  """
  made = []

  def step_timer(config, num_layers, batch_size):
    made.append((num_layers, batch_size))
    noise = itertools.cycle([2.0, -3.0, 0.0])
    return lambda: 7 + 2 * num_layers + batch_size + next(noise)

  monkeypatch.setattr(step_time, '_step_timer', step_timer)
  monkeypatch.setattr(
    step_time,
    '_seconds_per_weight',
    # Square, client optimizer, client sums, server.
    lambda config, num_repeats: [0.01, 0.02, 0.03, 0.04],
  )
  return made


def test_extrapolation_by_hand(_stopwatch):
  config = planned_configs.by_hand(model__num_layers=10)
  measured = step_time.measure(config, num_repeats=3)
  assert sorted(_stopwatch) == [(1, 2), (4, 2)]
  # The median of 3 has no noise: 7 + 2 * 10 + 2.
  assert measured.local_step == pytest.approx(29.0)
  # 1 layer has 180 weights, of which 153 in the layer: 27 + 6 + 10 * 147.
  # Layer: norms 12, attention 36 + 12, MLP 48 + 39 = 147; N = 1503.
  assert measured.squared_gradient == pytest.approx(15.03)
  assert measured.step_after_training == pytest.approx(29 - 30.06 + 15.03)
  assert measured.client_sums == pytest.approx(45.09)
  assert measured.server == pytest.approx(60.12)


def test_shallow_model_is_timed_as_it_is(_stopwatch):
  config = planned_configs.by_hand(algorithm__name='fed_avg')
  measured = step_time.measure(config, num_repeats=3)
  assert _stopwatch == [(1, 2)]
  assert measured.measured_layers == (1,)
  assert measured.local_step == pytest.approx(7 + 2 + 2)
  assert measured.step_after_training == 0.0


def test_single_sequences_are_timed_as_such(_stopwatch):
  config = planned_configs.by_hand(
    model__num_layers=2, algorithm__fisher_estimator='example_sq'
  )
  measured = step_time.measure(config, num_repeats=3)
  assert sorted(_stopwatch) == [(1, 1), (1, 2), (2, 1), (2, 2)]
  # N = 33 + 2 * 147 = 327: 7 + 4 + 1, less SGD 6.54, and the square 3.27.
  assert measured.step_after_training == pytest.approx(12 - 6.54 + 3.27)


def test_rows_of_dp_sgd_are_timed_one_by_one(_stopwatch):
  config = planned_configs.by_hand(
    algorithm__name='fed_avg', local_privacy__clip_norm=1.0
  )
  measured = step_time.measure(config, num_repeats=3)
  assert _stopwatch == [(1, 1)]
  # N = 180: two rows of 7 + 2 + 1 less the optimizer's 3.6 and with a square's
  # 1.8, and the optimizer once.
  assert measured.local_step == pytest.approx(2 * (10 - 3.6 + 1.8) + 3.6)


@pytest.mark.slow
@pytest.mark.parametrize(
  'method', ['fed_avg', 'fed_fish', 'own_methods.noisy_mean']
)
def test_real_steps(method, monkeypatch):
  monkeypatch.setattr(step_time, '_NUM_SAMPLE_WEIGHTS', 2**10)
  monkeypatch.setattr(step_time, '_NUM_STEPS', 60)
  config = planned_configs.by_hand(
    algorithm__name=method, client_work__local_batch_size=4, model__width=4
  )
  measured = step_time.measure(config, num_repeats=2)
  assert 0 < measured.local_step < 1
  assert measured.client_sums > 0
  assert measured.server > 0
  assert measured.num_threads >= 1
