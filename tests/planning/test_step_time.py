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
  return made


def test_extrapolation_by_hand(_stopwatch):
  config = planned_configs.by_hand(model__num_layers=10)
  step = step_time.step_seconds(config, num_repeats=3)
  assert _stopwatch == [(1, 2), (4, 2)]
  # The median of 3 has no noise: 7 + 2 * 10 + 2.
  assert step == pytest.approx(29.0)
  assert step_time.round_time(config, step).measured_layers == (1, 4)


def test_shallow_model_is_timed_as_it_is(_stopwatch):
  config = planned_configs.by_hand(algorithm__name='fed_avg')
  assert step_time.step_seconds(config, num_repeats=3) == 7 + 2 + 2
  assert _stopwatch == [(1, 2)]


def test_rows_of_dp_sgd_are_timed_one_by_one(_stopwatch):
  config = planned_configs.by_hand(
    algorithm__name='fed_avg', local_privacy__clip_norm=1.0
  )
  # Two rows of 7 + 2 + 1.
  assert step_time.step_seconds(config, num_repeats=3) == 20
  assert _stopwatch == [(1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
  'method', ['fed_avg', 'fed_fish', 'own_methods.noisy_mean']
)
def test_real_steps(method, monkeypatch):
  monkeypatch.setattr(step_time, '_NUM_STEPS', 60)
  config = planned_configs.by_hand(
    algorithm__name=method, client_work__local_batch_size=4, model__width=4
  )
  step = step_time.step_seconds(config, num_repeats=2)
  assert 0 < step < 1
  assert step_time.round_time(config, step).num_threads >= 1
