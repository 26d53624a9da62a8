"""Statistics of an evaluation over its clients; every client counts once."""

import dataclasses
import math

import numpy as np
import pandas as pd

from tff_fedfish.evaluation import intervals
from tff_fedfish.evaluation.intervals import ClientStatistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class FractionScores:
  """Scores after personalization on a fraction of each client's data."""

  fraction: float
  loss: ClientStatistics
  accuracy: ClientStatistics
  """Over the clients with a finite loss."""
  share_of_clients_hurt: float | None
  """Fraction of clients whose loss is higher than before, or not finite; None
  at fraction 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarrierSummary:
  """The Client-Server Barrier over the clients with finite losses.

  Dhawan et al. (2024), FedFish, eq. 5: global minus local loss, and the same
  for error = 1 - accuracy. Positive is worse.
  """

  loss: ClientStatistics
  error: ClientStatistics
  local_loss: float | None
  """Mean; None where no client has finite losses."""
  global_loss: float | None
  num_clients: int
  """Clients measured, with whatever loss."""


def fraction_scores(clients: pd.DataFrame) -> list[FractionScores]:
  """Returns the scores at every fraction, in ascending order.

  `clients` are rows of `ClientEvaluation`, in any order.
  """
  # Sorted: intervals must not depend on the order of evaluation.
  by_fraction = clients.sort_values('client_id').groupby('fraction')
  return [_fraction_scores(fraction, rows) for fraction, rows in by_fraction]


def barrier_scores(barriers: pd.DataFrame) -> BarrierSummary:
  """Summarizes the barrier of a cohort: rows of `ClientBarrier`, any order."""
  barriers = with_differences(barriers.sort_values('client_id'))
  is_finite = np.isfinite(barriers['loss'])
  finite = barriers[is_finite]
  return BarrierSummary(
    loss=intervals.summarize(barriers['loss']),
    error=intervals.summarize(barriers['error'].where(is_finite)),
    local_loss=_mean(finite['local_loss']),
    global_loss=_mean(finite['global_loss']),
    num_clients=len(barriers),
  )


def with_differences(barriers: pd.DataFrame) -> pd.DataFrame:
  """Returns barriers with the columns `loss` and `error`, global minus local.

  The error is 1 - accuracy: (1 - global) - (1 - local).
  """
  return barriers.assign(
    loss=barriers['global_loss'] - barriers['local_loss'],
    error=barriers['local_accuracy'] - barriers['global_accuracy'],
  )


def share_hurt(clients: pd.DataFrame) -> float | None:
  """Returns the fraction of the clients whose loss is higher than before.

  One that is not finite afterwards is higher. Clients without a finite loss
  before are left out; None where no client is left.
  """
  before, after = clients['loss_before'], clients['loss_after']
  return _mean(~(after <= before)[np.isfinite(before)])


def _fraction_scores(fraction, rows):
  after = rows['loss_after']
  # A diverged model still has an accuracy, that of its NaNs: it goes with the
  # loss.
  accuracies = rows['accuracy_after'].where(np.isfinite(after))
  return FractionScores(
    fraction=float(fraction),
    loss=intervals.summarize(after),
    accuracy=intervals.summarize(accuracies),
    share_of_clients_hurt=share_hurt(rows) if fraction > 0 else None,
  )


def _mean(values):
  return math.fsum(values) / len(values) if len(values) else None
