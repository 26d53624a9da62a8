"""Learning rates as functions of the round, without TensorFlow.

With base rate b, W rounds of warm-up, T schedule rounds, final fraction f and
t = min(r - W, T) in round r = 1, 2, ...:

  r <= W       b r / W
  constant     b
  cosine       b (f + (1 - f) (1 + cos(pi t / T)) / 2)
  exponential  b f^(t / T)

The last round of warm-up has the base rate. Cosine (Loshchilov and Hutter,
2017, SGDR, equation 5, without restarts) and exponential reach b f in round
W + T and stay there. Nothing depends on how many rounds a run has.
"""

import math
from typing import Literal

Schedule = Literal['constant', 'cosine', 'exponential']


def learning_rate(
  base_rate: float,
  round_num: int,
  *,
  schedule: Schedule = 'constant',
  warmup_rounds: int = 0,
  schedule_rounds: int | None = None,
  final_fraction: float | None = None,
) -> float:
  """Returns the learning rate of a round.

  Args:
    base_rate: The rate at the end of warm-up, > 0.
    round_num: The round, >= 1.
    schedule: How the rate goes on after warm-up.
    warmup_rounds: W, >= 0.
    schedule_rounds: T, >= 1; required unless the schedule is 'constant'.
    final_fraction: f, in [0, 1]; above 0 and required for 'exponential'. None
      is 0 for 'cosine'.
  """
  if round_num <= warmup_rounds:
    return base_rate * round_num / warmup_rounds
  if schedule == 'constant':
    return base_rate
  progress = min(round_num - warmup_rounds, schedule_rounds) / schedule_rounds
  if schedule == 'exponential':
    return base_rate * final_fraction**progress
  final_fraction = final_fraction or 0.0
  remaining = (1 + math.cos(math.pi * progress)) / 2
  return base_rate * (final_fraction + (1 - final_fraction) * remaining)
