"""Dirichlet draws and cuts, used by several partition schemes."""

from collections.abc import Iterable, Sequence

import numpy as np

MAX_ATTEMPTS = 1_000
"""Draws before a scheme that may redraw gives up."""
Parts = list[np.ndarray]
"""Rows of each class, or of each client; int64, ascending."""


def log_dirichlet(
  generator: np.random.RandomState, concentrations: np.ndarray
) -> np.ndarray:
  """Draws from a Dirichlet distribution; returns logs, but for a constant.

  With concentrations of 0.01 and less most shares are below what a double can
  hold, and NumPy's own draw is at times 0 / 0. The log of a Gamma(a) variable
  is drawn as that of Gamma(a + 1) plus log(U) / a instead, which is exact
  (Marsaglia & Tsang, 2000, section 6).

  Args:
    generator: Where the randomness comes from.
    concentrations: Float array; 0 where a share must be 0.

  Returns:
    Float64, shaped like `concentrations`; -inf where that is 0. `to_shares`
    makes shares of it.
  """
  concentrations = np.asarray(concentrations, np.float64)
  logs = np.full(concentrations.shape, -np.inf)
  positive = concentrations > 0
  above_zero = concentrations[positive]
  gammas = generator.standard_gamma(above_zero + 1.0)
  # Uniform in [0, 1), of which 1 is taken: log(0) is never drawn.
  uniform = generator.random_sample(above_zero.shape)
  logs[positive] = np.log(gammas) + np.log1p(-uniform) / above_zero
  return logs


def to_shares(
  logs: np.ndarray, allowed: np.ndarray | bool = True
) -> np.ndarray:
  """Returns shares that add up to 1.

  Args:
    logs: From `log_dirichlet`; at least one allowed entry is finite.
    allowed: Bool, shaped like `logs`: which entries get a share at all.
  """
  logs = np.where(allowed, logs, -np.inf)
  weights = np.exp(logs - logs.max())
  return weights / weights.sum()


def rows_by_class(labels: np.ndarray, num_classes: int) -> Parts:
  """Returns the rows of each class, from 0 to num_classes - 1."""
  return [np.flatnonzero(labels == label) for label in range(num_classes)]


def shuffled(generator: np.random.RandomState, classes: Parts) -> Parts:
  """Returns the rows of each class in an order that is drawn."""
  return [generator.permutation(rows) for rows in classes]


def cut(rows: np.ndarray, shares: np.ndarray) -> Parts:
  """Cuts rows into consecutive parts, one per share.

  Args:
    rows: Rows to cut, [n].
    shares: Numbers >= 0, not all 0: ints are counted with exactly, floats as
      doubles. Parts end at floor(n * the sum of shares so far / the sum of
      all), so that a share of 0 gets none.
  """
  sums = np.cumsum(shares)
  if sums.dtype.kind == 'f':
    ends = np.floor(sums / sums[-1] * len(rows)).astype(np.int64)
  else:
    ends = sums * len(rows) // sums[-1]
  return np.split(rows, ends[:-1])


def collect(
  num_clients: int, pieces: Sequence[tuple[int, np.ndarray]]
) -> Parts:
  """Joins (client number, rows) pieces into each client's rows, ascending."""
  given = [[np.empty(0, np.int64)] for _ in range(num_clients)]
  for client, rows in pieces:
    given[client].append(rows)
  return [np.sort(np.concatenate(rows)) for rows in given]


def label_histograms(
  labels: np.ndarray, parts: Iterable[np.ndarray], num_classes: int
) -> np.ndarray:
  """Returns how many examples of each class each client has.

  Args:
    labels: Int [n], from 0 to num_classes - 1.
    parts: The rows of each client.
    num_classes: Width of the result, int64 [clients, num_classes].
  """
  return np.array(
    [np.bincount(labels[rows], minlength=num_classes) for rows in parts],
    np.int64,
  ).reshape(-1, num_classes)


def label_skew(histograms: np.ndarray) -> float:
  """Returns how far the clients' label frequencies are from those of all.

  The mean over clients of sum_c |p_ic - q_c|, from 0 to 2: p_i are the
  frequencies of client i, q those of all clients' examples. Zhang et al.
  (2021), FedFomo, state it as the "EMD" of a division.

  Args:
    histograms: Int [clients, classes], examples of each class. Clients without
      examples do not count.
  """
  histograms = histograms[histograms.sum(axis=1) > 0]
  overall = histograms.sum(axis=0) / histograms.sum()
  own = histograms / histograms.sum(axis=1, keepdims=True)
  return float(np.abs(own - overall).sum(axis=1).mean())
