"""Final scores by local epochs, before and after personalization.

Lines for the trend, as Table 3 of Dhawan et al. (2024), FedFish, has its
numbers; bars as in their Figures 4 and 8.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib import ticker

from tff_fedfish.reporting import bars, figures, matching
from tff_fedfish.reporting.bars import Series
from tff_fedfish.reporting.matching import (
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
  """Returns final scores on held-out clients by local epochs.

  Args:
    runs: The runs of the report, repetitions pooled.

  Returns:
    For each set of runs with at least two numbers of local epochs: accuracy and
    loss as lines, global and personalized, and accuracy as bars.
  """
  styles, drawn = run_styles(runs), []
  for number, (setting, study) in enumerate(matching.studies(runs).items()):
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
  """Returns the scores of evaluations after the last round, a row each.

  Columns: method, budget ('fixed rounds' or 'fixed compute'), epochs, measure,
  run (its label), fraction of the client's data, score (`Interval`).
  """
  budgets = find_budgets(runs)
  rows = [
    (method, budget, run.num_local_epochs, measure, run.label, fraction, score)
    for method, own in matching.methods(runs).items()
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


def _panels(
  runs: Sequence[Run], styles: Mapping[str, RunStyle], found: pd.DataFrame
) -> tuple[dict[str, list[Series]], list[dict[str, Any]]]:
  """Returns the trends of each panel, and how their lines look."""
  fractions = {'Global': 0.0} if 0.0 in set(found['fraction']) else {}
  if (last := found['fraction'].max()) > 0:
    fractions[f'Personalized on {100 * last:g} %'] = last
  methods = matching.methods(runs)
  panels, lines = {title: [] for title in fractions}, []
  for (method, budget), own in found.groupby(_TREND, sort=False):
    look = styles[methods[method][0].label]
    marker = MARKERS[list(methods).index(method) % len(MARKERS)]
    line = {'marker': marker, 'linestyle': _LINES[budget]}
    lines.append({**look.marker_arguments(), **line})
    is_only = found['budget'].nunique() == 1
    name = method if is_only else f'{method}, {budget}'
    for title, fraction in fractions.items():
      rows = own[own['fraction'] == fraction].sort_values('epochs')
      scores = dict(zip(rows['epochs'], rows['score'], strict=True))
      # The personalized bars are darker.
      color = look.shaded(0.45 if title == next(iter(fractions)) else 1)
      label = f'{name}, {title.lower()}'
      one = Series(f'{name}: {title}', label, scores, look, color)
      panels[title].append(one)
  return panels, lines


def _line_figure(runs, styles, found, *, measure, suffix, setting):
  panels, lines = _panels(runs, styles, found)
  scale = 100.0 if measure == 'accuracy' else 1.0
  with figures.styled(figures.fitting_width(5.2 * len(panels)), 3.9) as figure:
    _, grid = figures.facets(figure, len(panels), len(panels), sharey=True)
    for axes, (title, series) in zip(grid, panels.items(), strict=True):
      for position, (one, line) in enumerate(zip(series, lines, strict=True)):
        # Next to each other, so that whiskers do not hide each other.
        shift = 1.02 ** (position - (len(lines) - 1) / 2)
        means = [scale * score.mean for score in one.scores.values()]
        axes.plot([e * shift for e in one.scores], means, **line)
        for epochs, score in one.scores.items():
          ends = figures.draw_whisker(
            axes, epochs * shift, score, color=one.look.color, scale=scale
          )
          mean = scale * score.mean
          figures.record(axes, one.name, [epochs], [mean], **ends)
      epochs = sorted(set(found['epochs']))
      axes.set_xscale('log', base=2)
      axes.set_xticks(epochs, [f'{e:g}' for e in epochs])
      axes.xaxis.set_minor_locator(ticker.NullLocator())
      axes.margins(x=0.1)
      axes.set_title(title)
      axes.set_xlabel('Local epochs per round')
    grid[0].set_ylabel(words_of(runs).label(measure))
    names = [one.name.rsplit(': ', 1)[0] for one in next(iter(panels.values()))]
    handles = [
      figures.handle(n, **x) for n, x in zip(names, lines, strict=True)
    ]
    figures.add_legend(figure, handles)
    return _render(
      *(figure, runs, found, panels, measure, setting),
      name=f'local_epochs_{measure}{suffix}',
      kind='Line chart',
      title=f'Final {measure} by local epochs',
    )


def _bar_figure(runs, styles, found, *, measure, suffix, setting):
  panels, _ = _panels(runs, styles, found)
  series = [
    one for trend in zip(*panels.values(), strict=True) for one in trend
  ]
  num_bars = len(series) * found['epochs'].nunique()
  with figures.styled(figures.fitting_width(0.42 * num_bars)) as figure:
    axes = figure.add_subplot()
    bars.draw_groups(axes, series, scale=100.0)
    axes.set_xlabel('Local epochs per round')
    axes.set_ylabel(words_of(runs).label(measure))
    figures.add_legend(figure, bars.bar_handles(series))
    return _render(
      *(figure, runs, found, panels, measure, setting),
      name=f'local_epochs_bars{suffix}',
      kind='Bar chart',
      title='Global and personalized accuracy by local epochs',
    )


def _render(
  figure, runs, found, panels, measure, setting, *, name, kind, title
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
  series = [
    one for trend in zip(*panels.values(), strict=True) for one in trend
  ]
  return figures.render(
    figure,
    name=name,
    title=title,
    caption=' '.join(parts),
    alternative_text=bars.describe(
      kind, title, series, measure, 'E = {:g}'.format
    ),
  )
