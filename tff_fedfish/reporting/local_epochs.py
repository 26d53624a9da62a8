"""Final scores by local epochs, before and after personalization.

Lines for the trend, as Table 3 of Dhawan et al. (2024), FedFish, has its
numbers; bars as in their Figures 4 and 8.
"""

import dataclasses
from collections.abc import Sequence

from matplotlib import ticker

from tff_fedfish.reporting import bars, figures, matching
from tff_fedfish.reporting.bars import Series
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.fixed_budgets import (
  FIXED_COMPUTE,
  FIXED_ROUNDS,
  find_budgets,
)
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import MARKERS, RunStyle
from tff_fedfish.reporting.words import interval_sample, words_of

_LINES = {FIXED_ROUNDS: '-', FIXED_COMPUTE: (0, (5, 2))}


@dataclasses.dataclass(frozen=True)
class _Trend:
  """One method under one budget.

  Attributes:
    method: Its name, with what tells its variants apart.
    budget: `FIXED_ROUNDS` or `FIXED_COMPUTE`.
    look: The first run's.
    marker: One per method.
    scores: Fraction of the client's data -> local epochs -> final score.
  """

  method: str
  budget: str
  look: RunStyle
  marker: str
  scores: dict[float, dict[float, Interval]]

  @property
  def epochs(self) -> set[float]:
    """All local epochs with a score."""
    return {epochs for found in self.scores.values() for epochs in found}

  @property
  def line(self) -> dict:
    """Keyword arguments for `Axes.plot`."""
    own = {'marker': self.marker, 'linestyle': _LINES[self.budget]}
    return {**self.look.marker_arguments(), **own}


def local_epoch_figures(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns final scores on held-out clients by local epochs.

  Args:
    runs: The runs of the report, repetitions pooled.
    styles: Their looks, by label.

  Returns:
    For each set of runs with at least two numbers of local epochs: accuracy and
    loss as lines, global and personalized, and accuracy as bars.
  """
  drawn = []
  for number, (setting, study) in enumerate(matching.studies(runs).items()):
    suffix = f'_{number + 1}' if number else ''
    for measure in ('accuracy', 'loss'):
      trends = _find_trends(study, styles, measure)
      if len({e for trend in trends for e in trend.epochs}) < 2:
        continue
      drawn.append(_line_figure(study, trends, measure, suffix, setting))
      shown = [t for t in trends if t.budget == FIXED_ROUNDS] or trends
      if measure == 'accuracy' and any(len(t.epochs) > 1 for t in shown):
        drawn.append(_bar_figure(study, shown, suffix, setting))
  return drawn


def _find_trends(runs, styles, measure) -> list[_Trend]:
  """Returns trends with a score, of evaluations after the last round."""
  budgets = find_budgets(runs)
  trends = []
  for index, (method, own) in enumerate(matching.methods(runs).items()):
    for budget in budgets.names if budgets else ():
      scores: dict[float, dict[float, Interval]] = {}
      for epochs, fitting in matching.grouped(
        (run for run in own if budgets.holds(budget, run)),
        lambda run: run.num_local_epochs,
      ).items():
        found = [_final_scores(run, measure) for run in fitting]
        # Of equal runs the first, as in the tables.
        for fraction, score in next(filter(None, found), {}).items():
          scores.setdefault(fraction, {})[epochs] = score
      if scores:
        look = styles[own[0].label]
        marker = MARKERS[index % len(MARKERS)]
        scores = {f: dict(sorted(found.items())) for f, found in scores.items()}
        trends.append(_Trend(method, budget, look, marker, scores))
  return trends


def _final_scores(run, measure) -> dict[float, Interval]:
  evaluation = run.final_evaluation()
  if evaluation is None or run.num_local_epochs is None:
    return {}
  scores = {f: evaluation.score(f, measure) for f in evaluation.fractions}
  return {fraction: score for fraction, score in scores.items() if score}


def _series(trends) -> dict[str, list[Series]]:
  """Returns all trends in the global and in the personalized panel."""
  fractions = {fraction for trend in trends for fraction in trend.scores}
  panels = {'Global': 0.0} if 0.0 in fractions else {}
  if (last := max(fractions)) > 0:
    panels[f'Personalized on {100 * last:g} %'] = last
  is_one_budget = len({trend.budget for trend in trends}) == 1
  return {
    title: [
      Series(
        f'{name}: {title}',
        f'{name}, {title.lower()}',
        trend.scores.get(fraction, {}),
        trend.look,
        # The personalized bars are darker.
        bars.bar_face(
          trend.look, trend.look.shaded(0.45 if number == 0 else 1)
        ),
      )
      for trend in trends
      for name in [
        trend.method if is_one_budget else f'{trend.method}, {trend.budget}'
      ]
    ]
    for number, (title, fraction) in enumerate(panels.items())
  }


def _line_figure(runs, trends, measure, suffix, setting):
  scale = 100.0 if measure == 'accuracy' else 1.0
  panels = _series(trends)
  with figures.styled(figures.fitting_width(5.2 * len(panels)), 3.9) as figure:
    _, grid = figures.facets(figure, len(panels), len(panels), sharey=True)
    for axes, (title, series) in zip(grid, panels.items(), strict=True):
      for position, (one, trend) in enumerate(zip(series, trends, strict=True)):
        # Next to each other, so that whiskers do not hide each other.
        shift = 1.02 ** (position - (len(trends) - 1) / 2)
        _draw_trend(axes, one, trend.line, shift, scale)
      epochs = sorted({e for trend in trends for e in trend.epochs})
      axes.set_xscale('log', base=2)
      axes.set_xticks(epochs, [f'{e:g}' for e in epochs])
      axes.xaxis.set_minor_locator(ticker.NullLocator())
      axes.margins(x=0.1)
      axes.set_title(title)
      axes.set_xlabel('Local epochs per round')
    grid[0].set_ylabel(words_of(runs).label(measure))
    first = next(iter(panels.values()))
    figures.add_legend(
      figure,
      [
        figures.handle(one.name.rsplit(': ', 1)[0], **trend.line)
        for one, trend in zip(first, trends, strict=True)
      ],
    )
    return _render(
      figure,
      runs,
      trends,
      [one for found in zip(*panels.values(), strict=True) for one in found],
      measure,
      name=f'local_epochs_{measure}{suffix}',
      kind='Line chart',
      title=f'Final {measure} by local epochs',
      setting=setting,
    )


def _draw_trend(axes, series, line, shift, scale):
  means = [scale * score.mean for score in series.scores.values()]
  axes.plot([e * shift for e in series.scores], means, **line)
  for (epochs, score), mean in zip(series.scores.items(), means, strict=True):
    ends = figures.draw_whisker(
      axes, epochs * shift, score, color=series.look.color, scale=scale
    )
    figures.record(axes, series.name, [epochs], [mean], **ends)


def _bar_figure(runs, trends, suffix, setting):
  panels = _series(trends).values()
  series = [one for found in zip(*panels, strict=True) for one in found]
  epochs = {e for trend in trends for e in trend.epochs}
  width = figures.fitting_width(0.42 * len(series) * len(epochs))
  with figures.styled(width) as figure:
    axes = figure.add_subplot()
    bars.draw_groups(axes, series, scale=100.0)
    axes.set_xlabel('Local epochs per round')
    axes.set_ylabel(words_of(runs).label('accuracy'))
    figures.add_legend(figure, bars.bar_handles(series))
    return _render(
      figure,
      runs,
      trends,
      series,
      'accuracy',
      name=f'local_epochs_bars{suffix}',
      kind='Bar chart',
      title='Global and personalized accuracy by local epochs',
      setting=setting,
    )


def _render(
  figure, runs, trends, series, measure, *, name, kind, title, setting
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
  parts += [words[budget] for budget in dict.fromkeys(t.budget for t in trends)]
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
