"""Learning rates by hand."""

import math

import hypothesis
import pytest
from hypothesis import strategies

from tff_fedfish.optimizers.schedules import learning_rate


def _rates(rounds, **settings):
  return [learning_rate(0.8, r, **settings) for r in rounds]


def test_constant_is_the_base_rate_to_the_last_bit():
  assert _rates([1, 2, 10**7]) == [0.8, 0.8, 0.8]


def test_warm_up_reaches_the_base_rate_in_its_last_round():
  # 0.8 r / 4.
  assert _rates([1, 2, 3, 4, 5], warmup_rounds=4) == pytest.approx(
    [0.2, 0.4, 0.6, 0.8, 0.8]
  )


def test_cosine_by_hand():
  settings = dict(
    schedule='cosine', warmup_rounds=2, schedule_rounds=4, final_fraction=0.25
  )
  # Warm-up 0.4, 0.8. Then t = 1, 2, 3, 4 of 4, from 0.8 to 0.2, half way 0.5:
  # 0.2 + 0.6 (1 + cos(t pi / 4)) / 2, cos(pi / 4) = 0.7071068.
  assert _rates(range(1, 9), **settings) == pytest.approx(
    [0.4, 0.8, 0.712132, 0.5, 0.287868, 0.2, 0.2, 0.2], rel=1e-6
  )


def test_cosine_ends_at_0_unless_told_otherwise():
  settings = dict(schedule='cosine', schedule_rounds=10)
  # Without warm-up round 1 is t = 1.
  assert _rates([1, 5, 10, 11], **settings) == pytest.approx(
    [0.4 * (1 + math.cos(math.pi / 10)), 0.4, 0.0, 0.0]
  )


def test_exponential_by_hand():
  settings = dict(
    schedule='exponential', schedule_rounds=2, final_fraction=0.25
  )
  # A factor of sqrt(0.25) = 0.5 a round, for two rounds after warm-up.
  assert _rates([1, 2, 3], **settings) == pytest.approx([0.4, 0.2, 0.2])
  assert _rates([1, 2, 3, 4, 5], warmup_rounds=2, **settings) == pytest.approx(
    [0.4, 0.8, 0.4, 0.2, 0.2]
  )


@pytest.mark.parametrize('schedule', ['cosine', 'exponential'])
def test_final_fraction_of_1_is_constant(schedule):
  rates = _rates(
    range(1, 9), schedule=schedule, schedule_rounds=5, final_fraction=1.0
  )
  assert rates == [0.8] * 8


@hypothesis.given(
  schedule=strategies.sampled_from(['cosine', 'exponential']),
  warmup_rounds=strategies.integers(0, 50),
  schedule_rounds=strategies.integers(1, 50),
  final_fraction=strategies.floats(1e-6, 1.0),
)
def test_rises_to_the_base_rate_and_falls_to_the_final_one(**settings):
  last = settings['warmup_rounds'] + settings['schedule_rounds']
  rates = _rates(range(1, last + 3), **settings)
  warm = settings['warmup_rounds']
  assert rates[:warm] == sorted(rates[:warm])
  assert all(0 < rate <= 0.8 * (1 + 1e-12) for rate in rates)
  for rate, following in zip(rates[warm:], rates[warm + 1 :], strict=False):
    assert following <= rate * (1 + 1e-12)
  final = 0.8 * settings['final_fraction']
  assert rates[last - 1 :] == pytest.approx([final] * 3)
