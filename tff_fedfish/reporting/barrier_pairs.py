"""Pairs of a method and the baseline, of the same clients and rounds."""

import dataclasses
import json
from collections.abc import Sequence

from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.evaluations import barrier_of
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import local_epochs

ClientPair = tuple[ClientBarrier, ClientBarrier]
"""A client's barrier under a method, and under the baseline."""


@dataclasses.dataclass(frozen=True)
class Pair:
  """One round of two runs that differ in the method only.

  Attributes:
    run: The run of a method.
    baseline: The run of `BASELINE`.
    round_num: The round whose barrier was measured; None: not known.
    clients: Those that took part in that round of both.
    num_unmatched: Clients with a barrier in one of the two only.
  """

  run: Run
  baseline: Run
  round_num: int | None
  clients: tuple[ClientPair, ...]
  num_unmatched: int

  def barriers(self, measure: str, scale: float) -> list[tuple[float, float]]:
    """Returns (under the method, under the baseline) of every client.

    Args:
      measure: 'loss' or 'error'.
      scale: What to multiply barriers by.
    """
    return [
      tuple(scale * barrier_of(client, measure) for client in both)
      for both in self.clients
    ]


@dataclasses.dataclass(frozen=True)
class PairGroup:
  """Pairs that differ in round and seeds only, and what they are called."""

  name: str
  num_local_epochs: int | float | None
  pairs: tuple[Pair, ...]


def find_pairs(runs: Sequence[Run]) -> list[Pair]:
  """Returns each method with the baseline, where local epochs are equal.

  Where several runs share method and local epochs, those are paired that have
  equal settings and seeds; if that leaves several runs of the baseline, the one
  that agrees in learning rates, too.

  Args:
    runs: The runs of the report, not pooled.

  Returns:
    By method, a pair for each round whose barrier was measured for both.
  """
  pairs = []
  measured = [run for run in runs if run.barriers_by_round()]
  names = dict.fromkeys(run.algorithm for run in measured)
  for name in names:
    if name == BASELINE.name:
      continue
    for epochs in local_epochs(measured):
      mine, baselines = (
        [
          run
          for run in measured
          if run.algorithm == wanted and run.num_local_epochs == epochs
        ]
        for wanted in (name, BASELINE.name)
      )
      for run in mine:
        is_only = len(mine) == len(baselines) == 1
        partner = baselines[0] if is_only else _partner(run, baselines)
        if partner:
          pairs += _pairs(run, partner)
  return [pair for pair in pairs if pair.clients]


def group_pairs(pairs: Sequence[Pair]) -> list[PairGroup]:
  """Returns the pairs by what they compare, named 'E = 8' where that is enough.

  Args:
    pairs: Of `find_pairs`, of one method.
  """
  by_key: dict = {}
  for pair in pairs:
    key = (
      matching.setting_of(pair.run),
      matching.method_of(pair.run),
      matching.method_of(pair.baseline),
    )
    by_key.setdefault(key, []).append(pair)
  epochs = [found[0].run.num_local_epochs for found in by_key.values()]
  names = _names(list(by_key), epochs)
  return [
    PairGroup(name, num, tuple(found))
    for name, num, found in zip(names, epochs, by_key.values(), strict=True)
  ]


def _names(keys, epochs):
  """Returns 'E = 8', with what else tells it from another group."""
  bases = ['all clients' if e is None else f'E = {e}' for e in epochs]
  settings = [
    {
      **dict(setting),
      **dict(method),
      **{f'{name} of {BASELINE.title}': value for name, value in baseline},
    }
    for setting, method, baseline in keys
  ]
  names = []
  for base in bases:
    same = [k for k, other in enumerate(bases) if other == base]
    rest = matching.labels([settings[k] for k in same])
    own = rest[same.index(len(names))]
    names.append(f'{base}, {own}' if own else base)
  return names


def _partner(run, baselines):
  wanted = matching.setting_of(run), matching.seeds_of(run)
  found = [
    other
    for other in baselines
    if (matching.setting_of(other), matching.seeds_of(other)) == wanted
  ]
  if len(found) > 1:
    rest = _all_but_algorithm(run)
    found = [other for other in found if _all_but_algorithm(other) == rest]
  return found[0] if len(found) == 1 else None


def _pairs(run, baseline):
  mine, others = run.barriers_by_round(), baseline.barriers_by_round()
  for round_num in mine:
    if round_num not in others:
      continue
    own, other = (
      {c.client_id: c for c in side[round_num]} for side in (mine, others)
    )
    common = [client_id for client_id in own if client_id in other]
    yield Pair(
      run=run,
      baseline=baseline,
      round_num=round_num,
      clients=tuple((own[c], other[c]) for c in common),
      num_unmatched=len(own) + len(other) - 2 * len(common),
    )


def _all_but_algorithm(run):
  rest = {k: v for k, v in run.config.items() if k != 'algorithm'}
  return json.dumps(rest, sort_keys=True)
