"""Mean, percentiles and bootstrap intervals over clients.

Every client counts once, however much data it has. The interval is the
percentile bootstrap's (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13): clients are drawn with replacement, as they, not their
tokens, are the sample.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_fedfish.data import randomness

# Draws held at a time: 8 MiB of indices, and as much of values.
_MAX_DRAWS = 2**20
_CONFIDENCE_PERCENTILES = (2.5, 97.5)

Summary = dict[str, Any]


def summarize(
  values: np.ndarray, *, num_bootstrap: int = 2000, seed: int
) -> Summary:
  """Summarizes one number per client.

  Args:
    values: One number per client, [num_clients]. Those that are not finite
      are left out and counted.
    num_bootstrap: Bootstrap resamples, >= 1.
    seed: Of the resamples; equal values and seed give equal intervals.

  Returns:
    `mean`, the percentiles `p10`, `p50`, `p90` (interpolated linearly) and the
    95 % interval of the mean, `ci_low` and `ci_high`, all floats or, where no
    value is finite, None; `num_clients`, the values that count, and
    `num_non_finite`, those left out.

  Raises:
    ValueError: If `values` has not one axis, or `num_bootstrap` is below 1.
  """
  values = np.asarray(values, np.float64)
  if values.ndim != 1:
    raise ValueError(
      f'`values` must have one axis, found shape {values.shape}.'
    )
  if num_bootstrap < 1:
    raise ValueError(f'`num_bootstrap` must be >= 1, found {num_bootstrap}.')
  finite = values[np.isfinite(values)]
  names = ('mean', 'p10', 'p50', 'p90', 'ci_low', 'ci_high')
  if finite.size:
    means = _bootstrap_means(finite, num_bootstrap, seed)
    numbers = (
      np.mean(finite),
      *np.percentile(finite, (10, 50, 90)),
      *np.percentile(means, _CONFIDENCE_PERCENTILES),
    )
    summary = {name: float(x) for name, x in zip(names, numbers, strict=True)}
  else:
    summary = dict.fromkeys(names)
  summary['num_clients'] = int(finite.size)
  summary['num_non_finite'] = int(values.size - finite.size)
  return summary


def paired_difference(
  a: Mapping[bytes, float],
  b: Mapping[bytes, float],
  *,
  num_bootstrap: int = 2000,
  seed: int,
) -> Summary:
  """Summarizes `a - b` over the clients that both have.

  Much of what differs between clients is the same in `a` and `b` and cancels,
  so the interval is narrower than those of `a` and `b` suggest.

  Args:
    a: A number per client id.
    b: Likewise.
    num_bootstrap: See `summarize`.
    seed: See `summarize`.

  Returns:
    As `summarize`; and `num_unmatched`, clients that only one of the two has.
  """
  # Sorted: the interval must not depend on the order of evaluation.
  matched = sorted(a.keys() & b.keys())
  # In Python's floats: inf - inf is nan there without a warning.
  differences = np.array([float(a[c]) - float(b[c]) for c in matched])
  summary = summarize(differences, num_bootstrap=num_bootstrap, seed=seed)
  summary['num_unmatched'] = len(a.keys() ^ b.keys())
  return summary


def _bootstrap_means(
  values: np.ndarray, num_bootstrap: int, seed: int
) -> np.ndarray:
  """Returns the mean of each resample, [num_bootstrap]."""
  generator = randomness.generator('bootstrap', seed)
  num_rows = max(1, _MAX_DRAWS // values.size)
  means = np.empty(num_bootstrap)
  for start in range(0, num_bootstrap, num_rows):
    stop = min(start + num_rows, num_bootstrap)
    shape = (stop - start, values.size)
    means[start:stop] = values[generator.randint(0, values.size, shape)].mean(1)
  return means
