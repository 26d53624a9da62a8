"""Means and bootstrap intervals over clients and seeds.

Every client counts once, however much data it has. The interval is the
percentile bootstrap's (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13): clients are drawn with replacement, as they, not their
tokens, are the sample. Where runs were repeated with other seeds on the same
clients, seeds and clients are drawn independently of each other and crossed
(Owen, The pigeonhole bootstrap, 2007), whose variance is not too small. Of few
clients the percentiles are too close to the mean (Hesterberg, What Teachers
Should Know About the Bootstrap, 2015): the clients' distances from their mean
are scaled so that the ends are as far away as those of Student's t.
"""

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tff_fedfish.data import randomness

# Resamples of an interval, and their seed.
_NUM_BOOTSTRAP, _SEED = 2000, 0
# Draws held at a time: 8 MiB of indices, and as much of values.
_MAX_DRAWS = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientStatistics:
  """One number per client, summarized; None where none is finite."""

  mean: float | None = None
  ci_low: float | None = None
  """Ends of the 95 % interval of the mean; None of one client."""
  ci_high: float | None = None
  num_clients: int
  """Clients that count."""
  num_non_finite: int
  """Clients left out, as their number is not finite."""


def summarize(values: ArrayLike) -> ClientStatistics:
  """Summarizes one number per client, which may be non-finite."""
  values = np.asarray(values, np.float64)
  finite = values[np.isfinite(values)]
  numbers = {}
  if finite.size:
    shares = np.ones((_NUM_BOOTSTRAP, 1))
    numbers = _interval(finite[np.newaxis], shares)
    numbers['mean'] = float(np.mean(finite))
  return ClientStatistics(
    **numbers,
    num_clients=int(finite.size),
    num_non_finite=int(values.size - finite.size),
  )


def worst_decile(losses: ArrayLike) -> float | None:
  """Returns the mean of the tenth that is highest, rounded up.

  Losses that are not finite are left out; None where none is finite.
  """
  losses = np.asarray(losses, np.float64)
  finite = np.sort(losses[np.isfinite(losses)])
  count = -(-finite.size // 10)
  return float(np.mean(finite[-count:])) if count else None


def paired_difference(
  a: Mapping[Hashable, Mapping[bytes, float]],
  b: Mapping[Hashable, Mapping[bytes, float]],
) -> dict[str, Any]:
  """Summarizes `a - b` over the seeds and the clients that both have.

  Much of what differs between clients, and between seeds, is the same in `a`
  and `b` and cancels, so the interval is narrower than those of `a` and `b`
  suggest. Of few seeds it is too narrow all the same: with two, every second
  resample holds only one of them, and three give their smallest and largest
  mean where clients hardly differ. `seed_low` and `seed_high` are for that.

  Args:
    a: Seed of a run -> a number per client id.
    b: The other side, the same.

  Returns:
    `mean` over seeds and clients, None where nothing is left, alone then;
    `ci_low` and `ci_high`, None of one client; `share_below_zero`, the share of
    (seed, client) pairs whose difference is negative; `num_seeds`;
    `seed_means`, the mean over clients of each seed; and `seed_low` and
    `seed_high`, the 95 % interval of their mean, Student's t, None with fewer
    than three seeds.
  """
  differences = _differences(a, b)
  if not differences.size:
    return {'mean': None}
  num_seeds = len(differences)
  # Apart from the clients' generator: one seed changes nothing for them.
  generator = randomness.generator('bootstrap_seeds', _SEED)
  drawn = generator.randint(0, num_seeds, (_NUM_BOOTSTRAP, num_seeds))
  counts = (drawn[:, :, np.newaxis] == np.arange(num_seeds)).sum(axis=1)
  mean, seed_means = float(differences.mean()), differences.mean(axis=1)
  half_width = t_half_width(seed_means)
  return {
    'mean': mean,
    **_interval(differences, counts / num_seeds),
    'share_below_zero': float((differences < 0).mean()),
    'num_seeds': num_seeds,
    'seed_means': seed_means.tolist(),
    'seed_low': None if half_width is None else mean - half_width,
    'seed_high': None if half_width is None else mean + half_width,
  }


def _differences(a, b):
  """Returns `a - b`, [num_seeds, num_clients], of those that both have."""
  seeds = sorted(a.keys() & b.keys(), key=repr)
  runs = [side[s] for s in seeds for side in (a, b)]
  everywhere = set.intersection(*map(set, runs)) if runs else ()
  # Sorted: the interval must not depend on the order of evaluation.
  clients = sorted(everywhere)
  differences = np.array(
    # In Python's floats: inf - inf is nan there without a warning.
    [[float(a[s][c]) - float(b[s][c]) for c in clients] for s in seeds]
  ).reshape(len(seeds), len(clients))
  return differences[:, np.isfinite(differences).all(axis=0)]


def t_half_width(values: ArrayLike) -> float | None:
  """Returns half of the 95 % t interval of a mean; None below three values."""
  if len(values) < 3:
    return None
  standard_error = np.std(values, ddof=1) / math.sqrt(len(values))
  return float(_t_quantile(len(values)) * standard_error)


@functools.cache
def _t_quantile(num_values):
  # Late: it takes half a second to import.
  from scipy import stats

  return stats.t.ppf(0.975, num_values - 1)


def _interval(
  values: np.ndarray, shares: np.ndarray
) -> dict[str, float | None]:
  """Returns the ends of the 95 % interval of a mean over clients.

  Args:
    values: [num_seeds, num_clients].
    shares: [num_bootstrap, num_seeds], of each seed in each resample.
  """
  num_bootstrap, num_clients = len(shares), values.shape[1]
  if num_clients == 1:
    return {'ci_low': None, 'ci_high': None}
  generator = randomness.generator('bootstrap', _SEED)
  # The percentiles are of a normal mean whose variance is over n.
  wider = _t_quantile(num_clients) / 1.96
  wider *= math.sqrt(num_clients / (num_clients - 1))
  means = values.mean(axis=1, keepdims=True)
  values = means + wider * (values - means)
  num_rows = max(1, _MAX_DRAWS // num_clients)
  means = np.empty(num_bootstrap)
  for start in range(0, num_bootstrap, num_rows):
    stop = min(start + num_rows, num_bootstrap)
    drawn = generator.randint(0, num_clients, (stop - start, num_clients))
    mixed = shares[start:stop] @ values
    means[start:stop] = np.take_along_axis(mixed, drawn, axis=1).mean(1)
  low, high = np.percentile(means, (2.5, 97.5)).tolist()
  return {'ci_low': low, 'ci_high': high}
