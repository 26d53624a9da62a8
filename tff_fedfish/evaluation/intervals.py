"""Mean, percentiles and bootstrap intervals over clients and seeds.

Every client counts once, however much data it has. The interval is the
percentile bootstrap's (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13): clients are drawn with replacement, as they, not their
tokens, are the sample. Where runs were repeated with other seeds on the same
clients, seeds and clients are drawn independently of each other and crossed
(Owen, The pigeonhole bootstrap, 2007), whose variance is not too small.
"""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tff_fedfish.data import randomness

NUM_BOOTSTRAP = 2000
"""Bootstrap resamples of an interval."""
SEED = 0
"""Seed of the resamples."""
# Draws held at a time: 8 MiB of indices, and as much of values.
_MAX_DRAWS = 2**20
_CONFIDENCE_PERCENTILES = (2.5, 97.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientStatistics:
  """One number per client, summarized; None where no client has a finite one.

  Percentiles are interpolated linearly.
  """

  mean: float | None
  p10: float | None
  p50: float | None
  p90: float | None
  ci_low: float | None
  """Ends of the 95 % interval of the mean."""
  ci_high: float | None
  num_clients: int
  """Clients that count."""
  num_non_finite: int
  """Clients left out, as their number is not finite."""


def summarize(
  values: ArrayLike, *, num_bootstrap: int = NUM_BOOTSTRAP, seed: int = SEED
) -> ClientStatistics:
  """Summarizes one number per client.

  Args:
    values: One number per client, [num_clients]; may be non-finite.
    num_bootstrap: Bootstrap resamples, >= 1.
    seed: Seed of the resamples. Equal values and seed give equal intervals.
  """
  values = np.asarray(values, np.float64)
  finite = values[np.isfinite(values)]
  numbers = [None] * 6
  if finite.size:
    means = _bootstrap_means(
      finite[np.newaxis], np.ones((num_bootstrap, 1)), seed
    )
    numbers = [
      float(np.mean(finite)),
      *np.percentile(finite, (10, 50, 90)).tolist(),
      *np.percentile(means, _CONFIDENCE_PERCENTILES).tolist(),
    ]
  names = ('mean', 'p10', 'p50', 'p90', 'ci_low', 'ci_high')
  return ClientStatistics(
    **dict(zip(names, numbers, strict=True)),
    num_clients=int(finite.size),
    num_non_finite=int(values.size - finite.size),
  )


def worst_decile(losses: ArrayLike) -> float | None:
  """Returns the mean of the tenth that is highest, rounded up.

  Args:
    losses: One per client; those that are not finite are left out.

  Returns:
    None where none is finite.
  """
  losses = np.asarray(losses, np.float64)
  finite = np.sort(losses[np.isfinite(losses)])
  count = -(-finite.size // 10)
  return float(np.mean(finite[-count:])) if count else None


def paired_difference(
  a: Mapping[Hashable, Mapping[bytes, float]],
  b: Mapping[Hashable, Mapping[bytes, float]],
  *,
  num_bootstrap: int = NUM_BOOTSTRAP,
  seed: int = SEED,
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
    num_bootstrap: See `summarize`.
    seed: See `summarize`.

  Returns:
    `mean` over seeds and clients, `ci_low`, `ci_high` and `share_below_zero`,
    the share of (seed, client) pairs whose difference is negative, all None
    where nothing is left; `seed_means`, the mean over clients of each seed, and
    `seed_low` and `seed_high`, the 95 % interval of their mean, Student's t,
    None with fewer than three seeds; `num_seeds` and `num_clients` that count;
    `num_unmatched_seeds`, which only one side has; and `num_left_out_clients`,
    which lack a finite value in some run.
  """
  seeds, differences, num_all = _differences(a, b)
  numbers = [None] * 4
  if differences.size:
    # Apart from the clients' generator: one seed changes nothing for them.
    generator = randomness.generator('bootstrap_seeds', seed)
    drawn = generator.randint(0, len(seeds), (num_bootstrap, len(seeds)))
    counts = (drawn[:, :, np.newaxis] == np.arange(len(seeds))).sum(axis=1)
    means = _bootstrap_means(differences, counts / len(seeds), seed)
    numbers = [
      float(differences.mean()),
      *np.percentile(means, _CONFIDENCE_PERCENTILES).tolist(),
      float((differences < 0).mean()),
    ]
  names = ('mean', 'ci_low', 'ci_high', 'share_below_zero')
  num_clients = differences.shape[1]
  seed_means = differences.mean(axis=1).tolist() if differences.size else []
  half_width = t_half_width(seed_means)
  ends = [None, None]
  if half_width is not None:
    ends = [numbers[0] - half_width, numbers[0] + half_width]
  return dict(zip(names, numbers, strict=True)) | {
    'seed_means': seed_means,
    'seed_low': ends[0],
    'seed_high': ends[1],
    'num_seeds': len(seeds),
    'num_clients': num_clients,
    'num_unmatched_seeds': len(a.keys() ^ b.keys()),
    'num_left_out_clients': num_all - num_clients,
  }


def _differences(a, b):
  """Returns common seeds, `a - b` [num_seeds, num_clients], and all clients."""
  seeds = sorted(a.keys() & b.keys(), key=repr)
  runs = [side[s] for s in seeds for side in (a, b)]
  everywhere = set.intersection(*map(set, runs)) if runs else set()
  # Sorted: the interval must not depend on the order of evaluation.
  clients = sorted(everywhere)
  differences = np.array(
    # In Python's floats: inf - inf is nan there without a warning.
    [[float(a[s][c]) - float(b[s][c]) for c in clients] for s in seeds]
  ).reshape(len(seeds), len(clients))
  differences = differences[:, np.isfinite(differences).all(axis=0)]
  return seeds, differences, len(set().union(*runs))


def t_half_width(values: ArrayLike) -> float | None:
  """Returns half of the 95 % t interval of a mean; None below three values."""
  if len(values) < 3:
    return None
  # Late: it takes half a second to import.
  from scipy import stats

  quantile = stats.t.ppf(0.975, len(values) - 1)
  return float(quantile * stats.sem(values))


def _bootstrap_means(
  values: np.ndarray, shares: np.ndarray, seed: int
) -> np.ndarray:
  """Returns the mean of each resample of clients, [num_bootstrap].

  Args:
    values: [num_seeds, num_clients].
    shares: [num_bootstrap, num_seeds], of each seed in each resample.
    seed: Of the resamples.
  """
  generator = randomness.generator('bootstrap', seed)
  num_bootstrap, num_clients = len(shares), values.shape[1]
  num_rows = max(1, _MAX_DRAWS // num_clients)
  means = np.empty(num_bootstrap)
  for start in range(0, num_bootstrap, num_rows):
    stop = min(start + num_rows, num_bootstrap)
    drawn = generator.randint(0, num_clients, (stop - start, num_clients))
    mixed = shares[start:stop] @ values
    means[start:stop] = np.take_along_axis(mixed, drawn, axis=1).mean(1)
  return means
