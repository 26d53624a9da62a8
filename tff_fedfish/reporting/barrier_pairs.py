"""FedFish and FedAvg runs whose barriers are of the same clients and rounds."""

import dataclasses
import json
from collections.abc import Sequence

from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.evaluations import barrier_of
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import local_epochs

ClientPair = tuple[ClientBarrier, ClientBarrier]
"""A client's barrier under FedFish, and under FedAvg."""


@dataclasses.dataclass(frozen=True)
class Pair:
  """One round of a FedFish and a FedAvg run that differ in the method alone.

  Attributes:
    fed_fish: The FedFish run.
    fed_avg: The FedAvg run.
    round_num: The round whose barrier was measured; None: not known.
    clients: Those that took part in that round of both.
    num_unmatched: Clients with a barrier in one of the two only.
  """

  fed_fish: Run
  fed_avg: Run
  round_num: int | None
  clients: tuple[ClientPair, ...]
  num_unmatched: int

  def barriers(self, measure: str, scale: float) -> list[tuple[float, float]]:
    """Returns (under FedFish, under FedAvg) of every client.

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
  """Pairs that differ in round and seeds alone, and what they are called."""

  name: str
  num_local_epochs: int | float | None
  pairs: tuple[Pair, ...]


def find_pairs(runs: Sequence[Run]) -> list[Pair]:
  """Returns FedFish and FedAvg runs of equal local epochs, with their clients.

  Where several runs share method and local epochs, those are paired that have
  equal settings and seeds; if that leaves several FedAvg runs, the one that
  agrees in learning rates, too.

  Args:
    runs: The runs of the report, not pooled.

  Returns:
    A pair for each round whose barrier was measured for both.
  """
  pairs = []
  measured = [run for run in runs if run.barriers_by_round()]
  for epochs in local_epochs(measured):
    fish, average = (
      [
        run
        for run in measured
        if run.algorithm == name and run.num_local_epochs == epochs
      ]
      for name in ('fed_fish', 'fed_avg')
    )
    for run in fish:
      is_only = len(fish) == len(average) == 1
      partner = average[0] if is_only else _partner(run, average)
      if partner:
        pairs += _pairs(run, partner)
  return [pair for pair in pairs if pair.clients]


def group_pairs(pairs: Sequence[Pair]) -> list[PairGroup]:
  """Returns the pairs by what they compare, named 'E = 8' where that is enough.

  Args:
    pairs: Of `find_pairs`.
  """
  by_key: dict = {}
  for pair in pairs:
    fish, average = pair.fed_fish, pair.fed_avg
    key = (
      matching.setting_of(fish),
      matching.method_of(fish),
      matching.method_of(average),
    )
    by_key.setdefault(key, []).append(pair)
  epochs = [found[0].fed_fish.num_local_epochs for found in by_key.values()]
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
      **dict(fed_fish),
      **{f'{name} of FedAvg': value for name, value in fed_avg},
    }
    for setting, fed_fish, fed_avg in keys
  ]
  names = []
  for base in bases:
    same = [k for k, other in enumerate(bases) if other == base]
    rest = matching.labels([settings[k] for k in same])
    own = rest[same.index(len(names))]
    names.append(f'{base}, {own}' if own else base)
  return names


def _partner(fed_fish, averages):
  wanted = matching.setting_of(fed_fish), matching.seeds_of(fed_fish)
  found = [
    run
    for run in averages
    if (matching.setting_of(run), matching.seeds_of(run)) == wanted
  ]
  if len(found) > 1:
    rest = _all_but_algorithm(fed_fish)
    found = [run for run in found if _all_but_algorithm(run) == rest]
  return found[0] if len(found) == 1 else None


def _pairs(fed_fish, fed_avg):
  mine, others = fed_fish.barriers_by_round(), fed_avg.barriers_by_round()
  for round_num in mine:
    if round_num not in others:
      continue
    own, other = (
      {c.client_id: c for c in side[round_num]} for side in (mine, others)
    )
    common = [client_id for client_id in own if client_id in other]
    yield Pair(
      fed_fish=fed_fish,
      fed_avg=fed_avg,
      round_num=round_num,
      clients=tuple((own[c], other[c]) for c in common),
      num_unmatched=len(own) + len(other) - 2 * len(common),
    )


def _all_but_algorithm(run):
  rest = {k: v for k, v in run.config.items() if k != 'algorithm'}
  return json.dumps(rest, sort_keys=True)
