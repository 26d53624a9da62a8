"""Which plots a report has: each is a table of the findings, and its words."""

import itertools
from collections.abc import Iterable, Sequence

import pandas as pd

from tff_fedfish.data.client_ids import client_id_to_cell
from tff_fedfish.reporting import figures_of_curves, keys
from tff_fedfish.reporting.arms import subjects
from tff_fedfish.reporting.comparisons import Comparison, first_answer
from tff_fedfish.reporting.estimates import MEASURES
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.pairs import QUESTIONS, Pair
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import HELD_OUT, OWN_TEST, Subject
from tff_fedfish.reporting.style import method_looks
from tff_fedfish.reporting.words import (
  PLACES,
  SCALES,
  capitalized,
  estimate_columns,
  said_fraction,
  words_of,
)

_MAX_BARS = 16
_MAX_SCATTERS = 9


def all_plots(findings: Findings) -> dict[str, list[Plot]]:
  """Returns the plots of a report by the anchor of their section."""

  def of_subject(subject, name):
    return [draw(findings, subject, name) for draw in (fractions, before_after)]

  scored = subjects(findings.runs)
  further = [s for s in scored if s not in (HELD_OUT, OWN_TEST)]
  sections = {
    'answer': [differences(findings)],
    'personalization': of_subject(HELD_OUT, 'held_out'),
    'transfer': itertools.chain(
      *(of_subject(s, f'transfer_{n}') for n, s in enumerate(further, start=1))
    ),
    'own-tests': [fractions(findings, OWN_TEST, 'own_test')],
    'curves': [
      figures_of_curves.learning_curves(findings),
      figures_of_curves.cost_curves(findings),
    ],
    'local-epochs': figures_of_curves.local_epochs(findings),
  }
  return {name: [p for p in found if p] for name, found in sections.items()}


def differences(findings: Findings) -> Plot | None:
  """Returns loss and accuracy of each method minus what it is compared with.

  The clients are those that the first sentence is about. A pair without a
  verdict for a missing client or seed has no bar.
  """
  words = words_of(findings.runs)
  rows = first_answer(findings, findings.comparisons, QUESTIONS)
  points = [
    {
      'panel': label,
      'series': row.pair.names[0],
      'x': _bar_name(row.pair, rows),
      'y': SCALES[measure] * d.mean,
      'low': None if d.low is None else SCALES[measure] * d.low,
      'high': None if d.high is None else SCALES[measure] * d.high,
      'places': PLACES[measure],
    }
    for measure, label in (
      ('loss', f'Loss (nats per {words.unit})'),
      ('accuracy', f'{capitalized(words.accuracy)} (points)'),
    )
    for row in rows[:_MAX_BARS]
    if not row.problem and (d := row.differences[measure])
  ]
  if not points:
    return None
  share = rows[0].fraction and f', {said_fraction(rows[0].fraction)}'
  notes = [
    f'{capitalized(rows[0].pair.question)}, on {rows[0].subject}{share or ""}.',
    'Below 0 in loss and above 0 in accuracy the side named first is ahead.',
  ]
  if any(p['low'] is not None for p in points):
    notes.append(_whiskers(row.num_seeds for row in rows))
  if len(rows) > _MAX_BARS:
    notes.append(f'The first {_MAX_BARS} of {len(rows)} pairs.')
  names = {row.pair.names[0]: row.sides[0].arm.algorithm for row in rows}
  return plot(
    pd.DataFrame(points),
    name='differences',
    title=_title(rows),
    caption=' '.join(notes),
    kind='bar',
    x='',
    y='',
    panels='y',
    looks=method_looks((*item, None) for item in names.items()),
  )


def fractions(findings: Findings, subject: Subject, name: str) -> Plot | None:
  """Returns loss and accuracy by fraction of the clients' data, ascending.

  Runs that were evaluated on other clients have panels of their own.
  """
  words, is_own = words_of(findings.runs), subject == OWN_TEST
  samples = sorted(findings.shown_of(subject), key=lambda s: s.fraction)
  groups = keys.grouped(samples, _rows_of)
  rows = [
    {
      'panel': words.label(measure) + f', sample {number}' * (len(groups) > 1),
      'series': s.arm.label,
      'x': '' if is_own else 100 * s.fraction,
      **estimate_columns(s, measure),
    }
    for measure in MEASURES
    for number, own in enumerate(groups.values(), start=1)
    for s in own
  ]
  caption = 'Means over clients, each scored on the same half of its data.'
  if is_own:
    caption = 'Means over the clients that train, each on its own test rows.'
  tuned = keys.grouped(samples, lambda s: (s.fraction, *_rows_of(s)))
  if any(len({s.key for s in own}) > 1 for own in tuned.values()):
    caption += ' Not all runs were fine-tuned alike.'
  return rows and plot(
    pd.DataFrame(rows),
    name=f'{name}_scores',
    title=f'Scores on {subject}',
    caption=f'{caption} {_whiskers(len(s.by_seed) for s in samples)}',
    kind='point',
    x='' if is_own else 'Client’s data used for personalization (%)',
    y='',
    panels='y',
    looks=figures_of_curves.arm_looks(findings),
  )


def before_after(
  findings: Findings, subject: Subject, name: str
) -> Plot | None:
  """Returns each client's loss before and after personalization.

  It is at the largest fraction of each arm.
  """
  last = {s.arm: s for s in findings.shown_of(subject) if s.fraction > 0}
  tables = [
    pd.DataFrame(
      {
        'panel': ', '.join(filter(None, (arm.label, sample.problem))),
        'series': arm.label,
        'point': list(map(client_id_to_cell, sample.finite_clients)),
        'x': sample.mean_by_client('loss_before'),
        'y': sample.mean_by_client('loss_after'),
      }
    )
    for arm, sample in [*last.items()][:_MAX_SCATTERS]
  ]
  few = f' The first {_MAX_SCATTERS} of {len(last)} runs.'
  return tables and plot(
    pd.concat(tables),
    name=f'{name}_before_after',
    title=f'{capitalized(str(subject))} before and after personalization',
    caption='A point per client. Above the diagonal personalization hurt it.'
    + few * (len(last) > _MAX_SCATTERS),
    kind='scatter',
    x=f'Loss before (nats per {words_of(findings.runs).unit})',
    y='Loss after',
    looks=figures_of_curves.arm_looks(findings),
  )


def _title(rows: Sequence[Comparison]) -> str:
  pairs = {row.pair.names for row in rows}
  if len(pairs) == 1:
    return ' minus '.join(rows[0].pair.names)
  baselines = {row.sides[1].arm.method for row in rows}
  baseline = baselines.pop() if len(baselines) == 1 else 'another method'
  return f'Methods minus {baseline}'


def _bar_name(pair: Pair, rows: Sequence[Comparison]) -> str:
  """Returns the words of a pair on the axis, without what the legend says."""
  names = ' − '.join(pair.names)
  baselines = {row.pair.names[1] for row in rows}
  if pair.setting and len(baselines) > 1:
    return f'{names}, {pair.setting}'
  return pair.setting or names


def _rows_of(sample) -> tuple:
  """Returns what samples share that were scored on the same clients."""
  names = {'corpus', 'vocabulary', 'split_seed', 'split_unit'}
  names |= {'sequence_length', 'max_sequences_per_client'}
  return *sample.clients, *(p for p in sample.key if p[0] in names)


def _whiskers(nums_seeds: Iterable[int]) -> str:
  """Returns what the whiskers of points of so many seeds are over."""
  are_one = {number == 1 for number in nums_seeds}
  over = 'clients' if are_one == {True} else 'seeds and clients'
  others = ', of one seed over clients' * (len(are_one) > 1)
  return f'Whiskers: 95 % intervals over {over}{others}.'
