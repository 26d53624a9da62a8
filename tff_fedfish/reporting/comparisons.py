"""Comparisons of two arms on the same clients, by the question they answer.

Two arms may be compared where their evaluations are equal; whatever else
differs between them is in their names. A verdict needs three seeds. A client or
a seed that one side alone lacks ends it, and the best of several trials, chosen
on the clients that are scored, has no interval.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tff_fedfish import files
from tff_fedfish.printing import count
from tff_fedfish.reporting.arms import subjects
from tff_fedfish.reporting.estimates import (
  MEASURES,
  Difference,
  estimate,
)
from tff_fedfish.reporting.pairs import SAME, Pair, find_pairs
from tff_fedfish.reporting.runs import Seeds, Subject
from tff_fedfish.reporting.scores import Sample, Scores


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Difference):
  """A pair on some clients, at one fraction."""

  pair: Pair
  sides: tuple[Sample, Sample]
  num_seeds: int
  num_clients: int

  @property
  def subject(self) -> Subject:
    """The clients that were scored."""
    return self.sides[0].subject

  @property
  def trials(self) -> tuple[int, int]:
    """Trials that each side is the best of, rounds of a checkpoint included."""
    return tuple(
      max(own, side.num_trials)
      for own, side in zip(self.pair.trials, self.sides, strict=True)
    )

  @property
  def fraction(self) -> float:
    """Fraction of the clients' data that was personalized on."""
    return self.sides[0].fraction


def compare(scores: Scores) -> list[Comparison]:
  """Returns all comparisons that the arms allow, by question and subject."""
  return [c for pair in find_pairs(scores) for c in _compare(scores, pair)]


def compare_samples(
  pair: Pair, sides: tuple[Sample, Sample]
) -> Comparison | None:
  """Returns the comparison of two samples; None without a common seed.

  Seeds that diverged, and clients that are not finite, on both sides leave the
  comparison. On one side only they are its `problem`.
  """
  tables = [sample.by_seed for sample in sides]
  diverged, problems = find_diverged(pair)
  seeds = (tables[0].keys() & tables[1].keys()) - diverged
  if not seeds and not problems:
    return None
  clients, finite = _common_clients(tables, seeds)
  for own, other, name in zip(
    finite, reversed(finite), pair.names, strict=True
  ):
    if other - own:
      problems.append(
        f'{len(own)} of {count(len(clients), "client")} of {name} finite'
        + ' in every seed' * (len(seeds) > 1)
      )
  used = sorted(finite[0] & finite[1])
  differences = {}
  for measure in MEASURES:
    one, two = (
      {
        s: side[s][f'{measure}_after'].loc[_index(used)].to_dict()
        for s in seeds
      }
      for side in tables
    )
    differences[measure] = estimate(one, two)
  if differences['loss'] is None and not problems:
    return None
  has_choice = any(s.is_chosen_on_scored for s in sides) or (
    pair.chosen_on == sides[0].subject
  )
  if has_choice:
    differences = {
      m: d and d.without_interval() for m, d in differences.items()
    }
  return Comparison(
    pair=pair,
    sides=sides,
    problem=', '.join(problems),
    has_choice=has_choice,
    num_seeds=len(seeds),
    num_clients=len(used),
    differences=differences,
  )


def find_diverged(pair: Pair) -> tuple[set[Seeds], list[str]]:
  """Returns the seeds that diverged on either side, and the problems.

  A problem is of a side with such a seed that the other side does not have.
  """
  diverged = [arm.diverged_seeds for arm in pair.arms]
  problems = [
    f'{len(own)} of {count(arm.num_seeds, "seed")} of {name} diverged'
    for own, other, arm, name in zip(
      diverged, reversed(diverged), pair.arms, pair.names, strict=True
    )
    if own - other
  ]
  return set.union(*diverged), problems


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
  """Returns comparisons.csv: a row per comparison and measure."""
  num_seeds = max((c.num_seeds for c in comparisons), default=0)
  names = [
    *('question', 'setting', 'method', 'baseline', 'subject', 'fraction'),
    *('measure', 'mean', 'ci_low', 'ci_high', 'share_below_zero'),
    *('num_seeds', 'num_clients', 'problem', 'trials', 'baseline_trials'),
    *('chosen_on', 'round', 'baseline_round'),
    *(f'difference_{n + 1}' for n in range(num_seeds)),
  ]
  rows = []
  for c in comparisons:
    place = c.pair.question, c.pair.setting, *c.pair.names, str(c.subject)
    facts = c.num_seeds, c.num_clients, c.problem, *c.trials
    # No one round where each seed's best is another.
    rounds = [s.rounds[0] if len(s.rounds) == 1 else None for s in c.sides]
    facts += str(c.pair.chosen_on), *rounds
    for measure, d in c.differences.items():
      numbers = [None] * (4 + num_seeds)
      # Survivors of one side are no difference.
      if d and not c.problem:
        numbers[:4] = d.mean, d.low, d.high, d.share_below_zero
        numbers[4 : 4 + len(d.by_seed)] = d.by_seed
      rows.append(
        (*place, c.fraction, measure, *numbers[:4], *facts, *numbers[4:])
      )
  return files.csv_file(names, rows)


def of_question(
  comparisons: Sequence[Comparison], question: str, subject: Subject
) -> list[Comparison]:
  """Returns comparisons with the least personalization, one for a pair."""
  rows = [
    c
    for c in comparisons
    if c.pair.question == question and c.subject == subject
  ]
  least = min((c.fraction for c in rows), default=0.0)
  rows = [c for c in rows if c.fraction == least]
  return sorted(rows, key=lambda c: not c.pair.is_against_baseline)


def first_answer(
  scores: Scores, comparisons: Sequence[Comparison], questions: Sequence[str]
) -> list[Comparison]:
  """Returns the comparisons that answer first; [] if there are none.

  They are of the first subject that was compared, and of the first question
  that has any. Pairs with the baseline come before others.
  """
  answers = (
    of_question(comparisons, question, subject)
    for subject in subjects(scores.runs)
    for question in questions
  )
  rows = next(filter(None, answers), [])
  return [r for r in rows if r.pair.is_against_baseline] or rows


def most_personalized(
  comparisons: Sequence[Comparison], comparison: Comparison
) -> Comparison | None:
  """Returns the comparison of the same models with the most personalization."""
  rounds = [s.round_num for s in comparison.sides]
  later = [
    c
    for c in comparisons
    if c.pair is comparison.pair
    and c.subject == comparison.subject
    and c.fraction > comparison.fraction
    and [s.round_num for s in c.sides] == rounds
  ]
  return max(later, key=lambda c: c.fraction, default=None)


def _compare(scores: Scores, pair: Pair) -> Iterator[Comparison]:
  """Yields a comparison for every subject and fraction that both sides have."""
  samples = [
    [
      s
      for s in scores.samples
      if s.arm is arm
      and round_num in (None, s.round_num)
      # A best round is a choice, and may be the last one of some seeds only.
      and (s.num_trials > 1) == is_best
    ]
    for arm, round_num, is_best in zip(
      pair.arms, pair.rounds, pair.are_best, strict=True
    )
  ]
  for subject in subjects(run for arm in pair.arms for run in arm.runs):
    fractions = {s.fraction for own in samples for s in own}
    for fraction in sorted(fractions):
      matched = [
        (one, two)
        for one, two in itertools.product(*samples)
        if one.subject == two.subject == subject
        and one.fraction == two.fraction == fraction
        and one.key == two.key
        and (pair.question != SAME or one.round_num == two.round_num)
      ]
      matched.sort(key=_num_common_seeds_and_rank, reverse=True)
      compared = (compare_samples(pair, sides) for sides in matched)
      if comparison := next(filter(None, compared), None):
        yield comparison


def _num_common_seeds_and_rank(sides: Sequence[Sample]) -> tuple:
  one, two = (sample.by_seed.keys() for sample in sides)
  return len(one & two), sides[0].rank[1:], sides[1].rank[1:]


def _common_clients(
  tables: Sequence[dict[Seeds, pd.DataFrame]], seeds: set[Seeds]
) -> tuple[set[bytes], list[set[bytes]]]:
  """Returns the clients that all have, and those finite on each side."""
  used = [[side[s] for s in seeds] for side in tables]
  if not seeds:
    return set(), [set(), set()]
  clients = set.intersection(*(set(t.index) for side in used for t in side))
  finite = [
    functools.reduce(
      set.intersection,
      (set(t.index[np.isfinite(t['loss_after'])]) for t in side),
      clients,
    )
    for side in used
  ]
  return clients, finite


def _index(clients: Sequence[bytes]) -> pd.Index:
  # Without the dtype NumPy cuts NULs at the end of an id.
  return pd.Index(clients, dtype=object)
