"""Final scores by local epochs, before and after personalization.

Lines for the trend, as Table 3 of Dhawan et al. (2024), FedFish, has its
numbers; bars as in their Figures 4 and 8.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.reporting import bars, figures, match
from tff_fedfish.reporting.bars import Series
from tff_fedfish.reporting.match import (
  FIXED_COMPUTE,
  FIXED_ROUNDS,
  find_budgets,
)
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import MARKERS, RunStyle, run_styles
from tff_fedfish.reporting.words import interval_sample, words_of

_LINES = {FIXED_ROUNDS: '-', FIXED_COMPUTE: (0, (5, 2))}
_TREND = ['method', 'budget']


def local_epoch_figures(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns final scores of pooled runs on held-out clients by local epochs.

  For each set of runs with at least two numbers of local epochs these are
  accuracy and loss as lines, global and personalized, and accuracy as bars.
  """
  styles, drawn = run_styles(runs), []
  for number, (setting, study) in enumerate(match.studies(runs).items()):
    suffix = f'_{number + 1}' if number else ''
    table = _final_scores(study)
    for measure in ('accuracy', 'loss'):
      found = table[table['measure'] == measure]
      if found['epochs'].nunique() < 2:
        continue
      words = {'suffix': suffix, 'setting': setting, 'measure': measure}
      drawn.append(_line_figure(study, styles, found, **words))
      shown = found[found['budget'] == FIXED_ROUNDS]
      shown = found if shown.empty else shown
      is_trend = shown.groupby(_TREND)['epochs'].nunique() > 1
      if measure == 'accuracy' and is_trend.any():
        drawn.append(_bar_figure(study, styles, shown, **words))
  return drawn


def _final_scores(runs: Sequence[Run]) -> pd.DataFrame:
  """Returns the scores of evaluations after the last round, a row each."""
  budgets = find_budgets(runs)
  rows = [
    (method, budget, run.num_local_epochs, measure, run.label, fraction, score)
    for method, own in match.methods(runs).items()
    for budget in (budgets.names if budgets else ())
    for run in own
    if budgets.holds(budget, run) and (final := run.final_evaluation())
    for (fraction, measure), score in final.scores.items()
    if score
  ]
  columns = [*_TREND, 'epochs', 'measure', 'run', 'fraction', 'score']
  table = pd.DataFrame(rows, columns=columns, dtype=object)
  # Of equal runs the first, as in the tables.
  first = table.groupby(columns[:4])['run'].transform('first')
  return table[table['run'] == first]


def _series(
  runs: Sequence[Run], styles: Mapping[str, RunStyle], found: pd.DataFrame
) -> tuple[list[str], dict[str, dict[str, Any]], list[Series]]:
  """Returns titles of panels, looks of trends, series by trend and panel."""
  fractions = {'Global': 0.0} if 0.0 in set(found['fraction']) else {}
  if (last := found['fraction'].max()) > 0:
    fractions[f'Personalized on {100 * last:g} %'] = last
  methods = match.methods(runs)
  is_only = found['budget'].nunique() == 1
  looks, series = {}, []
  for (method, budget), own in found.groupby(_TREND, sort=False):
    style = styles[methods[method][0].label]
    marker = MARKERS[list(methods).index(method) % len(MARKERS)]
    name = method if is_only else f'{method}, {budget}'
    line = {'marker': marker, 'linestyle': _LINES[budget]}
    looks[name] = style.marker_arguments() | line
    for title, fraction in fractions.items():
      rows = own[own['fraction'] == fraction].sort_values('epochs')
      scores = dict(zip(rows['epochs'], rows['score'], strict=True))
      # The personalized bars are darker.
      color = style.shaded(0.45 if title == next(iter(fractions)) else 1)
      label = f'{name}, {title.lower()}'
      series.append(Series(f'{name}: {title}', label, scores, style, color))
  return list(fractions), looks, series


def _line_figure(runs, styles, found, *, measure, suffix, setting):
  titles, looks, series = _series(runs, styles, found)
  width = figures.fitting_width(5.2 * len(titles))
  with figures.styled(width, 3.9) as figure:
    _, grid = figures.facets(figure, len(titles), len(titles), sharey=True)
    for position, (axes, title) in enumerate(zip(grid, titles, strict=True)):
      of_panel = series[position :: len(titles)]
      figures.draw_trends(
        axes,
        [
          (one.name, list(one.scores.items()), look)
          for one, look in zip(of_panel, looks.values(), strict=True)
        ],
        ticks=found['epochs'],
        scale=100.0 if measure == 'accuracy' else 1.0,
      )
      axes.margins(x=0.1)
      axes.set_title(title)
    grid[0].set_ylabel(words_of(runs).label(measure))
    handles = [figures.handle(name, **look) for name, look in looks.items()]
    figures.add_legend(figure, handles)
    return _render(
      *(figure, runs, found, series, measure, setting),
      name=f'local_epochs_{measure}{suffix}',
      kind='Line chart',
      title=f'Final {measure} by local epochs',
    )


def _bar_figure(runs, styles, found, *, measure, suffix, setting):
  _, _, series = _series(runs, styles, found)
  num_bars = len(series) * found['epochs'].nunique()
  with figures.styled(figures.fitting_width(0.42 * num_bars)) as figure:
    axes = figure.add_subplot()
    bars.draw_groups(axes, series, scale=100.0)
    axes.set_xlabel('Local epochs per round')
    axes.set_ylabel(words_of(runs).label(measure))
    figures.add_legend(figure, bars.bar_handles(series))
    return _render(
      *(figure, runs, found, series, measure, setting),
      name=f'local_epochs_bars{suffix}',
      kind='Bar chart',
      title='Global and personalized accuracy by local epochs',
    )


def _render(
  figure, runs, found, series, measure, setting, *, name, kind, title
):
  """Returns the figure with its words."""
  budgets = find_budgets(runs)
  total = budgets.num_rounds * budgets.local_epochs
  words = {
    FIXED_ROUNDS: f'Fixed rounds: {budgets.num_rounds:,} each.',
    FIXED_COMPUTE: f'Fixed compute: {total:,} local epochs in all.',
  }
  parts = ['Held-out clients after the last round.']
  if kind == 'Line chart':
    parts.append('The horizontal axis is logarithmic.')
  sample = interval_sample(run.final_evaluation() for run in runs)
  parts.append(f'Whiskers: 95 % bootstrap intervals over {sample}.')
  parts += [words[budget] for budget in found['budget'].unique()]
  if setting:
    title = f'{title}, {setting}'
    parts.append(f'Of the runs with {setting}.')
  return figures.render(
    figure,
    name=name,
    title=title,
    caption=' '.join(parts),
    alternative_text=bars.describe(
      kind, title, series, measure, 'E = {:g}'.format
    ),
  )
