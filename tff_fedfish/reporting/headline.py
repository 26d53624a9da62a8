"""The report's first sentences: which method is best, and how sure that is."""

import collections
import math
from typing import Any

from tff_fedfish.reporting.comparisons import (
  main_comparisons,
  most_personalized,
  shown_interval,
  verdict,
)
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.runs import HELD_OUT, OWN_TEST
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.studies import studies
from tff_fedfish.reporting.words import (
  capitalized,
  counted,
  listed,
  shown,
  words_of,
)


def headline(scores: Scores) -> str:
  """Returns the best method, its lead, how sure that is, and at what traffic.

  Without a comparison it is the lowest loss, if the arms are of one study. No
  difference is called significant.
  """
  if line := _lead(scores):
    return capitalized(f'{_comparison(scores, line)}.')
  losses = _losses(scores, str(HELD_OUT)) or _losses(scores, str(OWN_TEST))
  sizes = {row.num_clients for row in losses.values()}
  if len(sizes) == 1 == len(studies(scores.arms)):
    return f'{_lowest(scores, losses)}.'
  number = counted(len(scores.runs), 'run')
  if losses:
    return (
      f'None of {number} is compared: no two differ in the method only and '
      'were evaluated alike.'
    )
  return f'{number} without an evaluation: `fedfish evaluate` makes one.'


def personalization(scores: Scores) -> str:
  """Returns what personalization changes in the first sentence; '' if nothing.

  It says whether the order of the methods stays, and how many clients it hurts.
  """
  line = _lead(scores)
  later = line and most_personalized(scores.comparisons, line)
  if not later:
    return ''
  order = ''
  if verdict(line) == verdict(later) != 'undecided':
    order = 'the order stays: '
  elif 'undecided' not in (verdict(line), verdict(later)):
    order = 'the order changes: '
  hurt = scores.shown(line.subject, 'hurt', later.fraction)
  names = {line.arm: line.method, line.baseline_arm: line.baseline}
  shares = [
    f'{100 * hurt[arm].mean:.0f} % of the clients with {name}'
    for arm, name in names.items()
    if arm in hurt
  ]
  sentence = f' Personalization hurts {listed(shares)}.' if shares else ''
  return (
    f'After personalization on {100 * later.fraction:g} % of each client’s '
    f'data {order}{_difference(later)}.{sentence}'
  )


def _lead(scores: Scores) -> Any:
  """Returns the comparison that the first sentence is about, or None.

  It is against the baseline, if anything is, and of the lowest loss.
  """
  lines = main_comparisons(scores.comparisons)
  losses = _losses(scores, lines[0].subject) if lines else {}

  def rank(line):
    arms = line.arm, line.baseline_arm
    pair = [losses[arm].mean if arm in losses else math.inf for arm in arms]
    return not line.is_against_baseline, min(pair), max(pair)

  return min(lines, key=rank, default=None)


def _comparison(scores: Scores, line: Any) -> str:
  where = f'nats per {words_of(scores.runs).unit} on {line.subject}'
  if line.fraction:
    where += f' after personalization on {100 * line.fraction:g} %'
  if line.setting:
    where += f' with {line.setting}'
  sentence = _difference(line, where, _sizes(line))
  arms = {arm.label: arm for arm in scores.arms}
  order = line.arm, line.baseline_arm
  if verdict(line) == f'{line.baseline} lower':
    order = order[::-1]
  units = [_uplink(arms[arm], line.round) for arm in order]
  if all(units):
    both = ' against '.join(dict.fromkeys(units))
    sentence += f', for an uplink of {both} models'
  lines = main_comparisons(scores.comparisons)
  if len(lines) > 1:
    counts = collections.Counter(map(verdict, lines))
    parts = [f'{name} in {count}' for name, count in counts.most_common()]
    sentence += (
      '. It is the comparison with the lowest loss; of all '
      f'{len(lines)}: {", ".join(parts)}'
    )
  return sentence


def _difference(line: Any, where: str = '', sizes: str = '') -> str:
  """Returns 'A has a lower loss than B by 0.5 (95 % interval 0.4 to 0.6)'."""
  where, sizes = f' {where}' * bool(where), f'; {sizes}' * bool(sizes)
  if verdict(line) == 'undecided':
    kind = '95 % interval' if line.ci_low is not None else 'by seed'
    return (
      f'the order is undecided: the loss of {line.method} minus that of '
      f'{line.baseline} is '
      f'{shown(line.mean, 3, 1, "+")}{where} '
      f'({kind} {shown_interval(line, "+.3f")}{sizes})'
    )
  names, sign = (line.method, line.baseline), -1
  if line.mean > 0:
    names, sign = (line.baseline, line.method), 1
  low, high = sorted((sign * line.ci_low, sign * line.ci_high))
  return (
    f'{names[0]} has a lower loss than {names[1]} by {sign * line.mean:.3f}'
    f'{where} (95 % interval {low:.3f} to {high:.3f}{sizes})'
  )


def _lowest(scores: Scores, losses: dict[str, Any]) -> str:
  """Returns the arm with the lowest mean loss, without a comparison."""
  best = min(losses.values(), key=lambda row: row.mean)
  which = 'the lowest' if len(losses) > 1 else 'a'
  ends = ''
  if not math.isnan(best.low):
    ends = f'95 % interval {best.low:.3f} to {best.high:.3f}; '
  sentence = (
    f'{best.arm} has {which} mean loss on {best.subject}: {best.mean:.3f} '
    f'nats per {words_of(scores.runs).unit} ({ends}{_sizes(best)})'
  )
  arm = next(arm for arm in scores.arms if arm.label == best.arm)
  if units := _uplink(arm, best.round):
    sentence += f', for an uplink of {units} models'
  return sentence


def _sizes(row: Any) -> str:
  clients, seeds = row.num_clients, row.num_seeds
  return f'{counted(clients, "client")}, {counted(seeds, "seed")}'


def _uplink(arm: Arm, round_num: int) -> str:
  units = arm.in_round('communication/uplink_units', round_num)
  return '' if units is None else f'{units:g}'


def _losses(scores: Scores, subject: str) -> dict[str, Any]:
  """Returns the mean loss of each arm with the least personalization."""
  rows = scores.means[scores.means['subject'] == subject]
  return scores.shown(subject, 'loss', rows['fraction'].min())
