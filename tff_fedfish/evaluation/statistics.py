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
  barriers = barriers.sort_values('client_id')
  losses = barriers['global_loss'] - barriers['local_loss']
  # (1 - global accuracy) - (1 - local accuracy).
  errors = barriers['local_accuracy'] - barriers['global_accuracy']
  is_finite = np.isfinite(losses)
  finite = barriers[is_finite]
  return BarrierSummary(
    loss=intervals.summarize(losses),
    error=intervals.summarize(errors.where(is_finite)),
    local_loss=_mean(finite['local_loss']),
    global_loss=_mean(finite['global_loss']),
    num_clients=len(barriers),
  )


def _fraction_scores(fraction, rows):
  before, after = rows['loss_before'], rows['loss_after']
  # A loss that is nan afterwards is worse than one that was finite.
  hurt = ~(after <= before)[np.isfinite(before)]
  # A diverged model still has an accuracy, that of its NaNs: it goes with the
  # loss.
  accuracies = rows['accuracy_after'].where(np.isfinite(after))
  return FractionScores(
    fraction=float(fraction),
    loss=intervals.summarize(after),
    accuracy=intervals.summarize(accuracies),
    share_of_clients_hurt=_mean(hurt) if fraction > 0 else None,
  )


def _mean(values):
  return math.fsum(values) / len(values) if len(values) else None
