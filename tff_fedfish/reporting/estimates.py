"""Means and differences over clients and seeds, with their intervals.

Seeds and clients are drawn independently of each other and crossed in the
intervals (`evaluation/intervals.py`), which from three seeds on are at least as
wide as Student's t over seeds.
"""

import dataclasses
import math
from collections.abc import Mapping

from tff_fedfish.evaluation import intervals

MEASURES = ('loss', 'accuracy')
MIN_SEEDS = 3
"""Seeds of a finding: an interval over fewer says nothing of other seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """A mean over clients and seeds, or a difference of two."""

  mean: float
  low: float | None = None
  """End of the 95 % interval; None where there is none."""
  high: float | None = None
  by_seed: tuple[float, ...] = ()
  """The mean over clients of each seed."""
  share_below_zero: float = math.nan
  """Share of (seed, client) pairs."""

  @property
  def is_finding(self) -> bool:
    """Whether enough seeds say the same for an interval over them."""
    return len(self.by_seed) >= MIN_SEEDS and self.low is not None

  def without_interval(self) -> 'Estimate':
    """Returns the same without an interval, as of a choice among trials."""
    return dataclasses.replace(self, low=None, high=None)


def estimate(
  scores: Mapping[str, Mapping[bytes, float]],
  minus: Mapping[str, Mapping[bytes, float]] | None = None,
) -> Estimate | None:
  """Returns the mean of `scores`, or of its paired difference to `minus`.

  With one seed the interval is over clients. Two seeds, and one client, have
  none. From three seeds on it is the wider, at either end, of the bootstrap
  over clients and seeds and of Student's t over seeds.

  Args:
    scores: Seed -> a finite number per client.
    minus: The other side, the same. None: 0.

  Returns:
    None without a client.
  """
  if minus is None:
    minus = {seed: dict.fromkeys(own, 0.0) for seed, own in scores.items()}
  paired = intervals.paired_difference(scores, minus)
  if paired['mean'] is None:
    return None
  low, high = paired['ci_low'], paired['ci_high']
  if paired['num_seeds'] == 2:
    low = high = None
  elif None not in (low, paired['seed_low']):
    low, high = min(low, paired['seed_low']), max(high, paired['seed_high'])
  return Estimate(
    mean=paired['mean'],
    low=low,
    high=high,
    by_seed=tuple(paired['seed_means']),
    share_below_zero=paired['share_below_zero'],
  )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Difference:
  """Loss and accuracy of one side minus those of another."""

  problem: str
  """Why there is no verdict, such as '3 of 8 clients of FedFish finite'."""
  has_choice: bool
  """Whether a side was chosen on the clients that are scored."""
  differences: Mapping[str, Estimate | None]
  """'loss' in nats and 'accuracy' in [-1, 1], first side minus second."""

  @property
  def is_apart(self) -> bool:
    """Whether loss and accuracy, as shown, prefer different sides."""
    loss, accuracy = (self.differences[m] for m in MEASURES)
    if not (loss and accuracy):
      return False
    return round(loss.mean, 3) * round(accuracy.mean, 4) > 0

  def verdict(self, measure: str = 'loss') -> str:
    """Returns 'lower', 'higher', 'undecided', or '' where none may be given."""
    difference = self.differences[measure]
    if self.problem or self.has_choice:
      return ''
    if not (difference and difference.is_finding):
      return ''
    # As shown: a difference of 0.000 decides nothing.
    places = {'loss': 3, 'accuracy': 4}[measure]
    if round(difference.high, places) < 0:
      return 'lower'
    return 'higher' if round(difference.low, places) > 0 else 'undecided'
