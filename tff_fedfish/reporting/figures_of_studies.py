"""Plots by local epochs: final scores, and where methods win.

Table 3 and Figures 3 and 4 of Dhawan et al. (2024), FedFish, have such scores.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import studies
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import HELD_OUT
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.style import Look, method_looks
from tff_fedfish.reporting.words import Words, capitalized

SCALES = {'loss': 1, 'accuracy': 100}
"""Factor of a measure in a plot: accuracies are in percent."""

PLACES = {'loss': 3, 'accuracy': 1}
"""Decimal places of a measure."""


def final_by_local_epochs(
  scores: Scores, words: Words
) -> Iterator[Plot | None]:
  """Yields final loss and accuracy of held-out clients by local epochs."""
  means = scaled(scores.means)
  means = means[means['is_final'] & (means['subject'] == str(HELD_OUT))]
  for number, (setting, study) in enumerate(
    studies.studies(scores.arms).items()
  ):
    trends = pd.DataFrame(
      _trends(study), columns=['series', 'algorithm', 'budget', 'arm', 'x']
    )
    looks = _trend_looks(trends)
    table = trends.merge(means, on='arm')
    ends = {0.0, table['fraction'].max()}
    table = table[table['fraction'].isin(ends)]
    table = table.sort_values(['fraction', 'x'], kind='stable')
    if table['x'].nunique() < 2:
      continue
    for measure, rows in table.groupby('measure', sort=False):
      yield plot(
        rows.assign(panel=rows['fraction'].map(said_fraction).map(capitalized)),
        name=f'local_epochs_{measure}' + f'_{number + 1}' * bool(number),
        title=f'Final {measure} by local epochs'
        + f', {setting}' * bool(setting),
        caption='Held-out clients after the last round. Whiskers: '
        '95 % bootstrap intervals.',
        kind='line',
        x='Local epochs per round',
        y=words.label(measure),
        log_x=True,
        looks=looks,
      )


def who_wins(scores: Scores, words: Words) -> Plot | None:
  """Returns loss minus the baseline's by local epochs and client rate.

  None if there are not two client rates, or a method has several differences in
  one place.
  """
  table = scaled(scores.comparisons)
  arms = {arm.label: arm for arm in scores.arms}
  table = table[
    table['is_against_baseline'].astype(bool)
    & (table['client_rate'] == table['baseline_client_rate'])
    & (table['subject'] == str(HELD_OUT))
    & (table['measure'] == 'loss')
    & (table['fraction'] == 0)
  ]
  table = table.assign(
    series=table['arm'].map({name: arm.method for name, arm in arms.items()}),
    x=table['num_local_epochs'],
  )
  place = ['series', 'client_rate', 'x']
  if table['client_rate'].nunique() < 2 or table.duplicated(place).any():
    return None
  methods = {arm.method: arm.algorithm for arm in scores.arms}
  table = table.sort_values(['client_rate', 'x'])
  return plot(
    table.assign(panel=table['client_rate'].map('Client rate {:g}'.format)),
    name='who_wins',
    title='Where methods win, by client learning rate and local epochs',
    caption=f'Held-out loss minus that of {BASELINE.title} at the same client '
    'rate, local epochs and seeds. Below 0 the method is ahead. Whiskers: 95 % '
    'intervals.',
    kind='line',
    x='Local epochs per round',
    y=f'Difference (nats per {words.unit})',
    log_x=True,
    zero_line=True,
    looks=method_looks((*item, None) for item in methods.items()),
  )


def scaled(table: pd.DataFrame) -> pd.DataFrame:
  """Returns the losses and accuracies, in percent, as columns of plots."""
  table = table[table['measure'].isin(SCALES)]
  table = table.rename(columns={'ci_low': 'low', 'ci_high': 'high'})
  scale = table['measure'].map(SCALES).astype(float)
  names = {'y': 'mean', 'low': 'low', 'high': 'high'}
  return table.assign(
    places=table['measure'].map(PLACES),
    **{new: scale * table[old].astype(float) for new, old in names.items()},
  )


def said_fraction(fraction: float) -> str:
  """Returns how a model was personalized, such as 'personalized on 50 %'."""
  if fraction == 0:
    return 'without personalization'
  return f'personalized on {100 * fraction:g} %'


def _trends(study: Sequence[Arm]) -> Iterator[tuple]:
  """Yields a name, algorithm, budget, arm and local epochs."""
  budgets = studies.budgets(study)
  for (method, arms), (budget, members) in itertools.product(
    studies.methods(study).items(), budgets.items()
  ):
    name = method if len(budgets) == 1 else f'{method}, {budget}'
    for arm in arms:
      if arm in members:
        yield name, arm.algorithm, budget, arm.label, arm.num_local_epochs


def _trend_looks(trends: pd.DataFrame) -> dict[str, Look]:
  """Returns looks with the line of the budget."""
  rows = trends.drop_duplicates('series')
  looks = method_looks(
    (row.series, row.algorithm, None) for row in rows.itertuples()
  )
  dashed = set(rows['series'][rows['budget'].str.endswith('in all')])
  return {
    name: dataclasses.replace(look, line=(0, (5, 2)) if name in dashed else '-')
    for name, look in looks.items()
  }
