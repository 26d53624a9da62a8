"""The report's first sentences: which method is best, and how sure that is."""

import collections
import math
from collections.abc import Sequence
from typing import Any

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.printing import count
from tff_fedfish.reporting import match
from tff_fedfish.reporting.comparisons import (
  main_comparisons,
  most_personalized,
  shown_interval,
  verdict,
)
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.studies import studies
from tff_fedfish.reporting.words import capitalized, listed, shown, words_of


def headline(scores: Scores) -> str:
  """Returns the best method, its lead, how sure that is, and at what traffic.

  Without a comparison it is the lowest loss, if the losses may be ranked. No
  difference is called significant.
  """
  if line := _lead(scores):
    return capitalized(f'{_comparison(scores, line)}.')
  losses = _losses(scores)
  if best := _lowest(scores, losses):
    return f'{_mean_loss(scores, best, "the lowest: " * (len(losses) > 1))}.'
  number = count(len(scores.runs), 'run')
  if losses:
    return (
      f'None of {number} is compared: no two differ in the method only and '
      'were evaluated alike.'
    )
  if any(run.evaluations or run.remarks for run in scores.runs):
    return f'{number} without a score on held-out clients.'
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
  hurt = {later.method: later.hurt, later.baseline: later.baseline_hurt}
  shares = [
    f'{100 * share:.0f} % of the clients with {name}'
    for name, share in hurt.items()
    if share is not None
  ]
  sentence = f' Personalization hurts {listed(shares)}.' if shares else ''
  after = f'With {line.setting} and' if line.setting else 'After'
  return (
    f'{after} personalization on {100 * later.fraction:g} % of each client’s '
    f'data {order}{_difference(later)}.{sentence}'
  )


def _lead(scores: Scores) -> Any:
  """Returns the comparison that includes the lowest loss, or None."""
  return min(
    main_comparisons(scores.comparisons),
    key=lambda line: (line.lowest, abs(line.mean)),
    default=None,
  )


def _comparison(scores: Scores, line: Any) -> str:
  by_label = {arm.label: arm for arm in scores.arms}
  arms = [by_label[label] for label in (line.arm, line.baseline_arm)]
  where = f'nats per {words_of(scores.runs).unit} {_place(line, arms)}'
  if line.setting:
    where += f' with {line.setting}'
  sentence = _difference(line, where, _sizes(line))
  if line.mean > 0:
    arms.reverse()
  sentence += _uplink(line, arms)
  lines = main_comparisons(scores.comparisons)
  if len(lines) > 1:
    counts = collections.Counter(map(verdict, lines))
    parts = [f'{name} in {number}' for name, number in counts.most_common()]
    against = f' with {BASELINE.title}' * line.is_against_baseline
    sentence += f'. Of {len(lines)} comparisons{against}: {", ".join(parts)}'
    lowest = [other for other in lines if other.lowest == line.lowest]
    is_alike = all(other.scale == line.scale for other in lines)
    if is_alike and len(lowest) == 1 and line.setting:
      sentence += f'; their lowest loss is with {line.setting}'
  return sentence


def _difference(line: Any, where: str = '', sizes: str = '') -> str:
  """Returns 'the loss of A is lower than that of B by 0.5 (...)'."""
  where, sizes = f' {where}' * bool(where), f'; {sizes}' * bool(sizes)
  undecided = 'the order is undecided: ' * (verdict(line) == 'undecided')
  loss = 'mean loss' if undecided else 'loss'
  names, sign = (line.method, line.baseline), -1
  if line.mean > 0:
    names, sign = (line.baseline, line.method), 1
  ends = shown_interval(line, 'z.3f', sign)
  if line.ci_low is not None:
    ends = f'95 % interval {ends}'
  difference = f'{abs(line.mean):.3f}'
  lead = f'{loss} of {names[0]} is lower than that of {names[1]} by'
  if float(difference) == 0:
    lead = f'{loss} of {names[0]} minus that of {names[1]} is'
  return f'{undecided}the {lead} {difference}{where} ({ends}{sizes})'


def _losses(scores: Scores) -> dict[str, Any]:
  """Returns the mean loss of each arm on the first subject that has any.

  They are those with the least personalization.
  """
  means = scores.means
  means = means[means['is_shown'] & (means['measure'] == 'loss')]
  for subject in map(str, match.subjects(scores.runs)):
    rows = means[means['subject'] == subject]
    if len(rows):
      return scores.shown(subject, 'loss', rows['fraction'].min())
  return {}


def _lowest(scores: Scores, losses: dict[str, Any]) -> Any:
  """Returns the row of the lowest loss; None if the losses have no order."""
  scales = set()
  for row in losses.values():
    clients, key = row.scale
    # Settings of one study may plan other rounds.
    key = [pair for pair in key if not row.is_final or pair[0] != 'round']
    scales.add((clients, *key, row.num_clients))
  if len(scales) != 1 or len(studies(scores.arms)) > 1:
    return None
  best, *others = sorted(losses.values(), key=lambda row: row.mean)
  is_tie = others and shown(others[0].mean, 3) == shown(best.mean, 3)
  return None if is_tie else best


def _mean_loss(scores: Scores, row: Any, rank: str) -> str:
  """Returns the loss of an arm, without a comparison."""
  arms = [arm for arm in scores.arms if arm.label == row.arm]
  ends = ''
  if not math.isnan(row.low):
    ends = f'95 % interval {row.low:.3f} to {row.high:.3f}; '
  return (
    f'The mean loss of {row.arm} {_place(row, arms)} is {rank}{row.mean:.3f} '
    f'nats per {words_of(scores.runs).unit} ({ends}{_sizes(row)})'
    f'{_uplink(row, arms)}'
  )


def _place(row: Any, arms: Sequence[Arm]) -> str:
  """Returns 'on held-out clients', with a round before the last."""
  after = [f'round {row.round}'] * any(a.last_round != row.round for a in arms)
  if row.fraction:
    after.append(f'personalization on {100 * row.fraction:g} %')
  return f'on {row.subject}' + f' after {listed(after)}' * bool(after)


def _sizes(row: Any) -> str:
  clients, seeds = row.num_clients, row.num_seeds
  return f'{count(clients, "client")}, {count(seeds, "seed")}'


def _uplink(row: Any, arms: Sequence[Arm]) -> str:
  """Returns the traffic up to the round, in the order of the arms."""
  units = [a.in_round('communication/uplink_units', row.round) for a in arms]
  if None in units:
    return ''
  both = ' against '.join(dict.fromkeys(f'{number:g}' for number in units))
  return f', for an uplink of {both} models'
