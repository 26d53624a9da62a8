"""The learning rate of a round: warm-up, then a schedule."""

import math

from tff_fedfish.config.optimizer_settings import OptimizerSettings


def rate_of_round(settings: OptimizerSettings, round_num: int) -> float:
  """Returns the learning rate of a round r >= 1.

  With base rate b, W rounds of warm-up, T schedule rounds, final fraction f
  and t = min(r - W, T):

    r <= W       b r / W
    constant     b
    cosine       b (f + (1 - f) (1 + cos(pi t / T)) / 2)
    exponential  b f^(t / T)

  Cosine (Loshchilov and Hutter, 2017, SGDR, equation 5, without restarts) and
  exponential reach b f in round W + T and stay there. Nothing depends on how
  many rounds a run has.
  """
  base = settings.learning_rate
  if round_num <= settings.warmup_rounds:
    return base * round_num / settings.warmup_rounds
  if settings.learning_rate_schedule == 'constant':
    return base
  t = min(round_num - settings.warmup_rounds, settings.schedule_rounds)
  progress = t / settings.schedule_rounds
  if settings.learning_rate_schedule == 'exponential':
    return base * settings.final_fraction**progress
  fraction = settings.final_fraction or 0.0
  remaining = (1 + math.cos(math.pi * progress)) / 2
  return base * (fraction + (1 - fraction) * remaining)
