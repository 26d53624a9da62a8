"""Which plots a report has: each is a table of the scores, and its words."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import pandas as pd

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import (
  comparisons,
  figures_of_clients,
  figures_of_studies,
  match,
)
from tff_fedfish.reporting.figures_of_studies import (
  PLACES,
  SCALES,
  said_fraction,
  scaled,
)
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import HELD_OUT, OWN_TEST, Subject
from tff_fedfish.reporting.scores import Scores, curve
from tff_fedfish.reporting.style import Look, method_looks
from tff_fedfish.reporting.words import Words, words_of

_COSTS = {
  'communication/uplink_units': 'Uplink (models, cumulative)',
  'communication/total_units': 'Uplink and downlink (models, cumulative)',
  'local_epochs': 'Local epochs (cumulative)',
}


def all_plots(scores: Scores) -> dict[str, list[Plot]]:
  """Returns the plots of a report by the anchor of their section."""
  words, subjects = words_of(scores.runs), match.subjects(scores.runs)
  looks = method_looks(
    (arm.label, arm.algorithm, arm.num_local_epochs) for arm in scores.arms
  )

  def of_subject(subject, name):
    return [
      fractions(scores, subject, name, words, looks),
      figures_of_clients.before_and_after(scores, subject, name, words, looks),
    ]

  further = [s for s in subjects if s not in (HELD_OUT, OWN_TEST)]
  sections = {
    'answer': [differences(scores, words)],
    'personalization': of_subject(HELD_OUT, 'held_out'),
    'transfer': itertools.chain(
      *(of_subject(s, f'transfer_{n}') for n, s in enumerate(further, start=1))
    ),
    'own-tests': [
      fractions(scores, OWN_TEST, 'own_test', words, looks),
      *figures_of_clients.affinity_maps(scores.arms),
    ],
    'curves': [
      learning_curves(scores, words, looks),
      cost_curves(scores, words, looks),
    ],
    'local-epochs': [
      *figures_of_studies.final_by_local_epochs(scores, words),
      figures_of_studies.who_wins(scores, words),
    ],
    'barrier': figures_of_clients.barriers(scores, words),
  }
  return {name: [p for p in found if p] for name, found in sections.items()}


def differences(scores: Scores, words: Words) -> Plot | None:
  """Returns the loss of each method minus that of what it is compared with.

  The clients are those that the first sentence is about. Where an arm is
  compared with another of equal client rate, its other comparisons are left
  out. The largest fraction is there, too, unless there are several methods in
  several settings.
  """
  table = scaled(comparisons.main_rows(scores.comparisons))
  if table.empty:
    return None
  subject, is_against_baseline = table.iloc[0][
    ['subject', 'is_against_baseline']
  ]
  several = BASELINE.title if is_against_baseline else 'another method'
  is_equal = table['client_rate'] == table['baseline_client_rate']
  table = table[is_equal | ~is_equal.groupby(table['arm']).transform('any')]
  # What is personalized is compared with the same round only.
  pairs = table.groupby(['arm', 'baseline_arm', 'setting'], sort=False)
  table = table[table['round'] == pairs['round'].transform('first')]
  methods, minus = table['method'].unique(), table['baseline'].unique()
  whose = methods[0] if len(methods) == 1 else 'methods'
  minus = minus[0] if len(minus) == 1 else several
  ahead = methods[0] if len(methods) == 1 else 'the method'
  notes = [f'On {subject}. Below 0 {ahead} has the lower loss.']
  if table['setting'].str.contains('E = ', regex=False).any():
    notes.append('E: local epochs per round.')
  if table['low'].notna().any():
    notes.append('Whiskers: 95 % intervals of the paired difference.')
  table, looks = _difference_series(scores, table)
  return plot(
    table,
    name='differences',
    title=f'Loss of {whose} minus loss of {minus}',
    caption=' '.join(notes),
    kind='bar',
    x='',
    y=f'Difference (nats per {words.unit})',
    zero_line=True,
    looks=looks,
  )


def _difference_series(
  scores: Scores, table: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, Look]]:
  """Returns the rows to draw, with `series` and `x`, and the looks."""
  if table.duplicated(['method', 'setting', 'fraction']).any():
    names = table['method'] + ' − ' + table['baseline']
    table = table.assign(method=names)
  algorithms = {arm.label: arm.algorithm for arm in scores.arms}
  names = dict(zip(table['method'], table['arm'].map(algorithms), strict=True))
  looks = method_looks((*item, None) for item in names.items())
  ends = sorted({table['fraction'].min(), table['fraction'].max()})
  if len(names) > 1 and table['setting'].nunique() > 1:
    table = table[table['fraction'] == ends[0]]
    return table.assign(series=table['method'], x=table['setting']), looks
  table = table[table['fraction'].isin(ends)]
  x = table['method' if len(names) > 1 else 'setting']
  if len(ends) == 1:
    return table.assign(series='', x=x), {}
  look = Look('#555555') if len(names) > 1 else looks[table['method'].iloc[0]]
  return table.assign(series=table['fraction'].map(said_fraction), x=x), {
    said_fraction(fraction): dataclasses.replace(look, strength=strength)
    for fraction, strength in zip(ends, (0.45, 1.0), strict=True)
  }


def fractions(
  scores: Scores,
  subject: Subject,
  name: str,
  words: Words,
  looks: Mapping[str, Look],
) -> Plot | None:
  """Returns loss and accuracy by fraction of the clients' data."""
  table = scaled(scores.means)
  table = table[(table['subject'] == str(subject)) & table['is_shown']]
  table = table.sort_values('measure', ascending=False, kind='stable')
  is_own = subject == OWN_TEST
  caption = 'Means over clients, each scored on the same half of its data.'
  if is_own:
    caption = 'Means over the clients that train, each on its own test rows.'
  return plot(
    table.assign(
      panel=table['measure'].map(words.label),
      series=table['arm'],
      x='' if is_own else 100 * table['fraction'],
    ),
    name=f'{name}_scores',
    title=f'Scores on {subject}',
    caption=f'{caption} Whiskers: 95 % bootstrap intervals.',
    kind='point',
    x='' if is_own else 'Client’s data used for personalization (%)',
    y='',
    panels='y',
    looks=looks,
  )


def learning_curves(
  scores: Scores, words: Words, looks: Mapping[str, Look]
) -> Plot | None:
  """Returns losses, accuracies and the Client-Server Barrier by round."""
  panels = {
    label: _curve(scores.arms, 'round', name)
    for name, label in words.metrics.items()
  }
  panels[f'Personalized {words.accuracy_label}'] = _checkpoints(scores)
  return _curves_plot(
    panels,
    name='curves',
    title='Learning curves',
    caption='Held-out: the same sample of clients in all rounds; round 0 is '
    f'before training. {_over_seeds(scores)}',
    x='Round',
    y='',
    panels='y',
    looks=looks,
  )


def cost_curves(
  scores: Scores, words: Words, looks: Mapping[str, Look]
) -> Plot | None:
  """Returns accuracy by traffic, and by local epochs where these differ."""
  costs = dict(_COSTS)
  if len({arm.num_local_epochs for arm in scores.arms}) == 1:
    del costs['local_epochs']
  source, name = 'held_out', 'Held-out'
  if all(arm.last('held_out/accuracy') is None for arm in scores.arms):
    source, name = 'personal', 'Own test'
  return _curves_plot(
    {
      label: _curve(scores.arms, cost, f'{source}/accuracy')
      for cost, label in costs.items()
    },
    name='cost',
    title=f'{name} accuracy by cost',
    caption='Further up and to the left is better. Traffic of a client that '
    f'takes part in every round, in float32 models. {_over_seeds(scores)}',
    x='',
    y=f'{name} {words.accuracy_label}',
    panels='x',
    looks=looks,
  )


def _curve(arms: Sequence[Arm], x: str, y: str) -> pd.DataFrame:
  table = curve(arms, x, y)
  measure = y.split('/')[1]
  table[['y', 'low', 'high']] *= SCALES[measure]
  # One seed has no band.
  is_one = table['low'] == table['high']
  return table.assign(
    low=table['low'].mask(is_one),
    high=table['high'].mask(is_one),
    places=PLACES[measure],
  )


def _curves_plot(curves: Mapping[str, pd.DataFrame], **words) -> Plot | None:
  tables = [t.assign(panel=name) for name, t in curves.items() if len(t)]
  table = pd.concat(tables or [pd.DataFrame({'x': [], 'y': []})])
  return plot(table, kind='line', **words)


def _checkpoints(scores: Scores) -> pd.DataFrame:
  """Returns accuracies at the largest fraction, of arms with several rounds."""
  means = scaled(scores.means)
  means = means[
    (means['subject'] == str(HELD_OUT))
    & (means['measure'] == 'accuracy')
    & (means['fraction'] > 0)
  ]
  means = means[means['fraction'] == means['fraction'].max()]
  rounds = means.groupby('arm')['round'].transform('nunique')
  means = means[rounds > 1].drop_duplicates(['arm', 'round'], keep='last')
  return means.assign(
    series=means['arm'], point=means['round'], x=means['round']
  )


def _over_seeds(scores: Scores) -> str:
  if all(arm.num_seeds == 1 for arm in scores.arms):
    return ''
  return 'Means over seeds; shaded from the lowest to the highest seed.'
