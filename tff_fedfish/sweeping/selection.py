"""Which learning rates a search chooses, from its runs' evaluations."""

import math
from collections.abc import Iterable, Sequence

from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import ClientEvaluation
from tff_fedfish.sweeping.grid import Axis, Settings

METRICS = {'held-out loss': min, 'accuracy': max}
"""What is chosen by, and which value of it is the best."""


def validation_score(
  clients: Iterable[ClientEvaluation],
  metric: str,
  *,
  split_seed: int,
  held_out_fraction: float,
) -> tuple[float, int]:
  """Returns the mean over validation clients, and how many there are.

  Args:
    clients: The rows of a search run's evaluation, of all that it held out.
    metric: Of `METRICS`.
    split_seed: That of the sweep's runs, which is also the search run's.
    held_out_fraction: f: that of the sweep's runs.

  Returns:
    (mean, number of clients). NaN if a client's loss is not finite: its
    accuracy means nothing then either.

  Raises:
    UserError: If there is no validation client among them.
  """
  values = [
    _value(client, metric)
    for client in clients
    if client.fraction == 0
    and not client_splits.is_held_out(
      client.client_id,
      split_seed=split_seed,
      held_out_fraction=held_out_fraction,
    )
  ]
  if not values:
    raise UserError(
      '`learning_rate_search` found no validation client with at least 4 '
      'sequences. Raise `validation_fraction` or `num_clients`.'
    )
  return math.fsum(values) / len(values), len(values)


def choose(scores: Sequence[float], metric: str) -> int | None:
  """Returns the position of the best finite score, the first of equal ones.

  Args:
    scores: One per run of a search.
    metric: Of `METRICS`.

  Returns:
    The position; None if no score is finite.
  """
  finite = [i for i, score in enumerate(scores) if math.isfinite(score)]
  if not finite:
    return None
  return METRICS[metric](finite, key=lambda i: scores[i])


def at_edge(axes: Iterable[Axis], rates: Settings) -> list[str]:
  """Returns the settings whose best value may lie beyond those tried.

  Args:
    axes: What was searched.
    rates: What was chosen, without axes that the method does not read.
  """
  edges = []
  for axis in axes:
    if axis.names[0] not in rates:
      continue
    for position, name in enumerate(axis.names):
      tried = {row[position] for row in axis.values}
      has_order = all(isinstance(value, int | float) for value in tried)
      if not has_order or len(tried) == 1:
        continue
      if rates[name] in (min(tried), max(tried)):
        edges.append(name)
  return edges


def _value(client, metric):
  # A diverged model still has an accuracy, that of its NaNs.
  if not math.isfinite(client.loss_before):
    return math.nan
  if metric == 'accuracy':
    return client.accuracy_before
  return client.loss_before
