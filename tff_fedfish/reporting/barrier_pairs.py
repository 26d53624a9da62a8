"""Pairs of a method and the baseline, of the same clients and rounds."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.runs import Run


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """One round of two runs that differ in the method only.

  Attributes:
    run: The run of a method.
    baseline: The run of `BASELINE`.
    round_num: The round whose barrier was measured; None: not known.
    clients: `client_barriers` of those that took part in that round of both;
      columns of the baseline end with '_baseline'.
    num_unmatched: Clients with a barrier in one of the two only.
  """

  run: Run
  baseline: Run
  round_num: int | None
  clients: pd.DataFrame
  num_unmatched: int

  def barriers(self, measure: str) -> np.ndarray:
    """Returns the barrier under the method and under the baseline.

    Args:
      measure: 'loss', in nats, or 'error', in percentage points.

    Returns:
      float64 [num_clients, 2].
    """
    both = (self.clients[f'{measure}{end}'] for end in ('', '_baseline'))
    return (100.0 if measure == 'error' else 1.0) * np.column_stack(list(both))


def find_pairs(runs: Sequence[Run]) -> list[Pair]:
  """Returns each method with the baseline, where local epochs are equal.

  Where several runs share method and local epochs, those are paired that have
  equal settings and seeds; if that leaves several runs of the baseline, the one
  that also agrees in learning rates.

  Args:
    runs: The runs of the report, not pooled.

  Returns:
    By method and local epochs, a pair for each round whose barrier was measured
    for both.
  """
  measured = [run for run in runs if run.barriers_by_round()]
  # Ascending local epochs; None comes first.
  measured.sort(key=lambda run: run.num_local_epochs or -1)
  by_shape = matching.grouped(
    measured, lambda run: (run.algorithm, run.num_local_epochs)
  )
  names = dict.fromkeys(
    r.algorithm for r in runs if r.algorithm != BASELINE.name
  )
  pairs = []
  for name in names:
    for (algorithm, epochs), mine in by_shape.items():
      baselines = by_shape.get((BASELINE.name, epochs), [])
      is_only = len(mine) == len(baselines) == 1
      for run in mine if algorithm == name else ():
        partner = baselines[0] if is_only else _partner(run, baselines)
        pairs += _pairs(run, partner) if partner else ()
  return pairs


def group_pairs(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
  """Returns the pairs by what they compare, named 'E = 8' where that is enough.

  Args:
    pairs: Of `find_pairs`, of one method.

  Returns:
    Pairs of one name differ in round and seeds only.
  """

  def key(pair):
    methods = map(matching.method_of, (pair.run, pair.baseline))
    return matching.setting_of(pair.run), *methods

  groups = matching.grouped(pairs, key)
  names = {}
  for epochs, keys in matching.grouped(
    groups, lambda key: groups[key][0].run.num_local_epochs
  ).items():
    settings = [
      dict((*setting, *method))
      | {f'{name} of {BASELINE.title}': value for name, value in baseline}
      for setting, method, baseline in keys
    ]
    base = 'all clients' if epochs is None else f'E = {epochs}'
    for key, own in zip(keys, matching.labels(settings), strict=True):
      names[key] = f'{base}, {own}' if own else base
  return {names[key]: found for key, found in groups.items()}


def _partner(run: Run, baselines: Sequence[Run]) -> Run | None:
  """Returns the one baseline that agrees in all but the method, if any."""
  for key in (
    lambda run: (matching.setting_of(run), run.seeds),
    lambda run: {k: v for k, v in run.config.items() if k != 'algorithm'},
  ):
    baselines = [other for other in baselines if key(other) == key(run)]
    if len(baselines) < 2:
      break
  return baselines[0] if len(baselines) == 1 else None


def _pairs(run: Run, baseline: Run) -> Iterator[Pair]:
  others = baseline.barriers_by_round()
  for round_num, own in run.barriers_by_round().items():
    if round_num in others:
      other = others[round_num]
      both = own.merge(other, on='client_id', suffixes=('', '_baseline'))
      num_unmatched = len(own) + len(other) - 2 * len(both)
      if len(both):
        yield Pair(run, baseline, round_num, both, num_unmatched)
