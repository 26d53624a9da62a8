"""The report's first sentences: what is better, by how much, and how sure."""

import collections
import math
from collections.abc import Sequence

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.printing import count
from tff_fedfish.reporting.comparisons import (
  Comparison,
  first_answer,
  most_personalized,
  of_question,
)
from tff_fedfish.reporting.equal_bytes import AtEqualBytes
from tff_fedfish.reporting.estimates import MEASURES, MIN_SEEDS
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.pairs import BEST, OTHER, SAME, Pair, rounds_words
from tff_fedfish.reporting.scores import Sample
from tff_fedfish.reporting.words import (
  PLACES,
  SCALES,
  capitalized,
  interval_words,
  listed,
  shown,
  words_of,
)


def sentences(findings: Findings) -> list[str]:
  """Returns the sentences on top of a page, most important first.

  They compare the two sides with the lowest loss, at one fraction and at the
  largest one, then count the verdicts at the same settings. Without a
  comparison they name what was scored.
  """
  rows = first_answer(findings, findings.comparisons, (BEST, SAME, OTHER))
  if not rows:
    return _without_comparison(findings)
  subject = rows[0].subject
  lead = min(rows, key=_losses)
  found = [capitalized(_comparison(findings, lead))]
  if later := most_personalized(findings.comparisons, lead):
    found.append(_personalized(findings, later, lead))
  for row in findings.at_equal_bytes:
    if row.pair is lead.pair and not row.problem:
      found.append(_at_equal_bytes(findings, row, lead.num_seeds))
  same = of_question(findings.comparisons, SAME, subject)
  if len(same) > 1:
    found.append(_counts(same, 'at the same settings'))
  elif same and same[0] is not lead:
    found.append(f'At the same settings: {_comparison(findings, same[0])}')
  best = of_question(findings.comparisons, BEST, subject)
  if len(best) > 1:
    found.append(_counts(best, 'of each at its best'))
  return found


def _losses(row: Comparison) -> list[float]:
  """Returns the lower loss, then the other; infinite where there is none."""
  losses = [s.estimates['loss'] for s in row.sides if not s.problem]
  found = sorted(loss.mean for loss in losses if loss)
  return [*found, math.inf, math.inf][:2]


def _comparison(findings: Findings, row: Comparison) -> str:
  """Returns the sentence on a pair: loss, accuracy, how sure, at what cost."""
  names = list(row.pair.names)
  where = f'on {row.subject}' + _place(row)
  if row.problem:
    return (
      f'no verdict on {names[0]} against {names[1]} {where}: {row.problem}.'
    )
  doubts = _doubts(row)
  differences = f'{_loss(findings, row, names, where)}, {_accuracy(row)}'
  doubt = f'{"; ".join(doubts)}: ' if doubts else ''
  sizes = f'{count(row.num_clients, "client")}, {count(row.num_seeds, "seed")}'
  return f'{doubt}{differences}; {sizes}{_uplink(row)}.'


def _doubts(row: Comparison) -> list[str]:
  """Returns what a reader must know before the difference."""
  doubts = []
  if row.is_apart:
    doubts.append('loss and accuracy point apart')
  if row.has_choice:
    trials = [f'the best of {n}' if n > 1 else 'one trial' for n in row.trials]
    if row.differences['loss'].mean > 0:
      trials.reverse()
    trials = ' against '.join(trials)
    doubts.append(f'{trials}, chosen on these clients, so without an interval')
  if row.num_seeds < MIN_SEEDS:
    number = {1: 'one seed', 2: 'two seeds'}[row.num_seeds]
    doubts.append(f'{number}, not a finding')
  elif row.num_clients == 1:
    doubts.append('one client, not a finding')
  elif row.verdict() == 'undecided':
    doubts.append('undecided')
  return doubts


def _loss(
  findings: Findings,
  row: Comparison | AtEqualBytes,
  names: Sequence[str],
  where: str,
) -> str:
  """Returns by how much which loss is lower."""
  names = list(names)
  difference = row.differences['loss']
  if difference.mean > 0:
    names.reverse()
  verb = 'is' if row.verdict() in ('lower', 'higher') else 'was'
  size = shown(abs(difference.mean), PLACES['loss'])
  unit = f'nats per {words_of(findings.runs).unit}'
  ends = _ends(row, 'loss', 1 if difference.mean > 0 else -1)
  relation = f'{verb} lower than that of {names[1]} by'
  if float(size) == 0:
    relation = f'minus that of {names[1]} {verb}'
  return f'the loss of {names[0]} {relation} {size} {unit} {where}{ends}'


def _accuracy(row: Comparison | AtEqualBytes) -> str:
  """Returns the accuracy of the side named first in the sentence."""
  loss, difference = (row.differences[m] for m in MEASURES)
  if difference is None:
    return 'without an accuracy'
  factor = 1 if loss.mean <= 0 else -1
  value = factor * difference.mean
  word = 'higher by' if value >= 0 else 'lower by'
  size = shown(abs(value), PLACES['accuracy'], SCALES['accuracy'])
  if float(size) == 0:
    return f'its accuracy equal{_ends(row, "accuracy", factor)}'
  ends = _ends(row, 'accuracy', factor if value >= 0 else -factor)
  return f'its accuracy {word} {size} points{ends}'


def _ends(row: Comparison | AtEqualBytes, measure: str, factor: int) -> str:
  """Returns ' (95 % interval 0.1 to 0.3)' of a difference, or ''."""
  difference = row.differences[measure]
  ends = interval_words(difference, measure, factor=factor)
  if not ends or row.has_choice:
    return ''
  if difference.low is None:
    return f' ({ends})'
  over = ' over clients' if row.num_seeds == 1 else ''
  if isinstance(row, AtEqualBytes):
    over = ' over seeds'
  undecided = ''
  if row.verdict(measure) == 'undecided':
    undecided = ', undecided'
  return f' (95 % interval{over} {ends}{undecided})'


def _personalized(findings: Findings, row: Comparison, lead: Comparison) -> str:
  """Returns the sentence on the models of `lead` after personalization."""
  share = f'personalization on {100 * row.fraction:g} % of each client’s data'
  names = _short_names(row.pair, row.pair.names)
  if row.problem:
    sentence = f'After {share} there is no verdict: {row.problem}.'
  else:
    sizes = count(row.num_clients, 'client')
    if row.num_seeds != lead.num_seeds:
      doubt = ', not a finding' * (row.num_seeds < MIN_SEEDS)
      share += f' ({count(row.num_seeds, "seed")}{doubt})'
    apart = 'loss and accuracy point apart: ' * row.is_apart
    loss = _loss(findings, row, names, f'on {sizes}')
    sentence = f'After {share} {apart}{loss}, {_accuracy(row)}.'
  hurt = [
    f'{100 * side.hurt:.0f} % of the clients with {name}'
    for side, name in zip(row.sides, names, strict=True)
    if side.hurt is not None
  ]
  return sentence + f' It hurts {listed(hurt)}.' * bool(hurt)


def _at_equal_bytes(
  findings: Findings, row: AtEqualBytes, num_seeds: int
) -> str:
  """Returns the sentence on the same pair after as much traffic.

  Its seeds are named where they are not the `num_seeds` of the first sentence.
  """
  doubts = ['loss and accuracy point apart'] * row.is_apart
  doubts += ['chosen on held-out clients'] * row.has_choice
  doubt = '; '.join(doubts)
  where = 'on the held-out clients that training scores'
  if row.num_seeds != num_seeds:
    where += f' for {count(row.num_seeds, "seed")}'
  names = _short_names(row.pair, row.pair.names_of_curves)
  loss = _loss(findings, row, names, where)
  return (
    f'At equal bytes, {row.traffic:,.5g} models up and down'
    f'{f" ({doubt})" * bool(doubt)}, {loss}, {_accuracy(row)}.'
  )


def _short_names(pair: Pair, names: Sequence[str]) -> Sequence[str]:
  """Returns the methods, where these tell the sides apart, or `names`."""
  methods = [arm.method for arm in pair.arms]
  return methods if len(set(methods)) > 1 else names


def _counts(rows: Sequence[Comparison], question: str) -> str:
  """Returns how many pairs have which verdict."""
  rows = [r for r in rows if r.pair.is_against_baseline] or list(rows)
  against = f' with {BASELINE.title}' * rows[0].pair.is_against_baseline
  verdicts = collections.Counter()
  for row in rows:
    verdict = row.verdict()
    if verdict in ('lower', 'higher'):
      method = row.sides[0 if verdict == 'lower' else 1].arm.method
      verdicts[f'{method} has the lower loss in'] += 1
    else:
      verdicts['undecided in' if verdict else 'no finding in'] += 1
  parts = [f'{name} {number}' for name, number in verdicts.most_common()]
  number = count(len(rows), 'comparison')
  return f'Of {number}{against} {question}: {", ".join(parts)}.'


def _place(row: Comparison) -> str:
  """Returns the setting, the rounds before the last, and the fraction."""
  parts = []
  if row.pair.setting:
    parts.append(f'with {row.pair.setting}')
  # A run in progress has not reached the last one.
  if any([s.arm.num_rounds] != s.rounds for s in row.sides):
    words = dict.fromkeys(rounds_words(s.rounds) for s in row.sides)
    parts.append(f'after {listed(list(words))}')
  if row.fraction:
    parts.append(f'after personalization on {100 * row.fraction:g} %')
  return ''.join(f' {part}' for part in parts)


def _uplink(row: Comparison | Sample) -> str:
  """Returns the traffic up to the rounds that were scored."""
  sides = row.sides if isinstance(row, Comparison) else [row]
  units = [s.in_rounds('communication/uplink_units') for s in sides]
  if isinstance(row, Comparison) and row.differences['loss'].mean > 0:
    units.reverse()
  if None in units:
    return ''
  both = ' against '.join(dict.fromkeys(f'{number:g}' for number in units))
  return f'; uplink {both} {"model" if both == "1" else "models"}'


def _without_comparison(findings: Findings) -> list[str]:
  number = count(len(findings.runs), 'run')
  scored = [s for s in findings.shown if s.estimates['loss'] or s.problem]
  if not scored:
    reason = 'a score on held-out clients'
    if not any(run.evaluations or run.remarks for run in findings.runs):
      reason = 'an evaluation: `fedfish evaluate` makes one'
    return [f'{number} without {reason}.']
  if len(findings.arms) > 1:
    return [f'None of {number} is compared; the notes say why.']
  least = [s for s in scored if s.subject == scored[0].subject]
  found = [_mean_loss(findings, least[0])]
  first, last = least[0], least[-1]
  is_later = last.fraction > first.fraction
  is_later &= last.round_num == first.round_num
  if is_later and last.hurt is not None:
    loss = f'there is no mean loss: {last.problem}'
    if not last.problem:
      loss = f'it is {shown(last.estimates["loss"].mean, 3)} nats per '
      loss += words_of(findings.runs).unit
    found.append(
      f'After personalization on {100 * last.fraction:g} % of each client’s '
      f'data {loss}. It hurts {100 * last.hurt:.0f} % of the clients.'
    )
  return found


def _mean_loss(findings: Findings, sample: Sample) -> str:
  """Returns the loss and the accuracy of the only arm."""
  arm, where = sample.arm, f'on {sample.subject}'
  if sample.problem:
    return f'{arm.label} has no mean loss {where}: {sample.problem}.'
  loss, accuracy = (sample.estimates[m] for m in MEASURES)
  ends = interval_words(loss, 'loss')
  over = ' over clients' if len(sample.by_seed) == 1 else ''
  ends = f' (95 % interval{over} {ends})' if loss.low is not None else ''
  if sample.rounds != [arm.num_rounds]:
    where += f' after {rounds_words(sample.rounds)}'
  if sample.fraction:
    where += f' after personalization on {100 * sample.fraction:g} %'
  if sample.is_chosen_on_scored:
    where += f', the best of {sample.num_trials} rounds on these clients,'
  sizes = f'{count(len(sample.clients), "client")}, '
  sizes += count(len(sample.by_seed), 'seed')
  percent = ''
  if accuracy:
    percent = f', its accuracy {shown(accuracy.mean, 2, 100)} %'
  return (
    f'The mean loss of {arm.label} {where} is {shown(loss.mean, 3)} nats per '
    f'{words_of(findings.runs).unit}{ends}{percent}; {sizes}{_uplink(sample)}.'
  )
