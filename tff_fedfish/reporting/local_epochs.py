"""Final scores by local epochs, before and after personalization.

Lines for the trend, as Table 3 of Dhawan et al. (2024), FedFish, has its
numbers; bars as in their Figures 4 and 8.
"""

from collections.abc import Sequence

from matplotlib import lines, patches, ticker

from tff_fedfish.reporting import figures, matching
from tff_fedfish.reporting.figure_numbers import record
from tff_fedfish.reporting.fixed_budgets import (
  FIXED_COMPUTE,
  FIXED_ROUNDS,
  find_budgets,
)
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle
from tff_fedfish.reporting.trends import find_trends
from tff_fedfish.reporting.words import interval_sample, words_of

_LINES = {FIXED_ROUNDS: '-', FIXED_COMPUTE: (0, (5, 2))}


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
  studies = matching.studies(runs)
  settings = matching.study_labels(studies)
  for number, study in enumerate(studies):
    setting = settings[number]
    suffix = f'_{number + 1}' if number else ''
    for measure in ('accuracy', 'loss'):
      trends = find_trends(study, styles, measure)
      if len({e for trend in trends for e in trend.scores}) < 2:
        continue
      drawn.append(_line_figure(study, trends, measure, suffix, setting))
      bars = [t for t in trends if t.budget == FIXED_ROUNDS] or trends
      if measure == 'accuracy' and any(len(t.scores) > 1 for t in bars):
        drawn.append(_bar_figure(study, bars, measure, suffix, setting))
  return drawn


def _panels(trends):
  """Returns (title, fraction) of the global and the personalized panel."""
  fractions = {f for t in trends for found in t.scores.values() for f in found}
  panels = [('Global', 0.0)] if 0.0 in fractions else []
  if max(fractions) > 0:
    share = f'{100 * max(fractions):g}'
    panels.append((f'Personalized on {share} %', max(fractions)))
  return panels


def _line_figure(runs, trends, measure, suffix, setting):
  scale = 100.0 if measure == 'accuracy' else 1.0
  panels = _panels(trends)
  with figures.styled(figures.fitting_width(5.2 * len(panels)), 3.9) as figure:
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    for axes, (title, fraction) in zip(grid.flat, panels, strict=True):
      for position, trend in enumerate(trends):
        name = f'{_label(trend, trends)}: {title}'
        _draw_trend(axes, name, trend, fraction, scale, position, len(trends))
      _set_epoch_axis(axes, {e for t in trends for e in t.scores})
      axes.set_title(title)
      axes.set_xlabel('Local epochs per round')
    grid[0, 0].set_ylabel(words_of(runs).label(measure))
    figures.add_legend(
      figure,
      [
        lines.Line2D(
          [], [], label=figures.drawable(_label(t, trends)), **_line(t)
        )
        for t in trends
      ],
    )
    title = _titled(f'Final {measure} by local epochs', setting)
    return figures.render(
      figure,
      name=f'local_epochs_{measure}{suffix}',
      title=title,
      caption='Held-out clients after the last round. The horizontal axis is '
      f'logarithmic. Whiskers: 95 % bootstrap intervals over '
      f'{_sample(runs)}. {_budget_words(runs, trends)}'
      f'{_setting_words(setting)}',
      alternative_text=_describe('Line chart', title, trends, panels, measure),
    )


def _bar_figure(runs, trends, measure, suffix, setting):
  scale = 100.0 if measure == 'accuracy' else 1.0
  panels = _panels(trends)
  epochs = sorted({e for trend in trends for e in trend.scores})
  num_bars = len(trends) * len(panels)
  width = 0.84 / num_bars
  with figures.styled(
    figures.fitting_width(0.42 * num_bars * len(epochs))
  ) as figure:
    axes = figure.add_subplot()
    for position, trend in enumerate(trends):
      for panel, (title, fraction) in enumerate(panels):
        bar = position * len(panels) + panel
        offset = (bar - (num_bars - 1) / 2) * width
        for group, epoch in enumerate(epochs):
          interval = trend.scores.get(epoch, {}).get(fraction)
          if interval:
            mean = scale * interval.mean
            axes.bar(
              group + offset, mean, width=0.94 * width, **_face(trend, panel)
            )
            ends = figures.draw_whisker(
              axes, group + offset, interval, color='#222222', scale=scale
            )
            name = f'{trend.method}: {title}'
            record(axes, name, [epoch], [mean], **ends)
    axes.set_xticks(range(len(epochs)), [f'{e:g}' for e in epochs])
    axes.tick_params(axis='x', length=0)
    axes.grid(visible=False, axis='x')
    axes.set_xlabel('Local epochs per round')
    axes.set_ylabel(words_of(runs).label(measure))
    figures.add_legend(
      figure,
      [
        patches.Patch(
          label=figures.drawable(f'{t.method}, {title[:1].lower()}{title[1:]}'),
          **_face(t, panel),
        )
        for t in trends
        for panel, (title, _) in enumerate(panels)
      ],
    )
    title = _titled(
      f'Global and personalized {measure} by local epochs', setting
    )
    return figures.render(
      figure,
      name=f'local_epochs_bars{suffix}',
      title=title,
      caption='Held-out clients after the last round. Whiskers: 95 % bootstrap '
      f'intervals over {_sample(runs)}. '
      f'{_budget_words(runs, trends)}{_setting_words(setting)}',
      alternative_text=_describe('Bar chart', title, trends, panels, measure),
    )


def _draw_trend(axes, name, trend, fraction, scale, position, num_trends):
  # Next to each other, so that whiskers do not hide each other.
  shift = 1.02 ** (position - (num_trends - 1) / 2)
  found = {e: s[fraction] for e, s in trend.scores.items() if fraction in s}
  axes.plot(
    [e * shift for e in found],
    [scale * interval.mean for interval in found.values()],
    **_line(trend),
  )
  for epochs, interval in found.items():
    ends = figures.draw_whisker(
      axes, epochs * shift, interval, color=trend.look.color, scale=scale
    )
    record(axes, name, [epochs], [scale * interval.mean], **ends)


def _set_epoch_axis(axes, epochs):
  axes.set_xscale('log', base=2)
  axes.set_xticks(sorted(epochs), [f'{e:g}' for e in sorted(epochs)])
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.margins(x=0.1)


def _line(trend):
  return {
    **trend.look.marker_arguments(),
    'marker': trend.marker,
    'linestyle': _LINES[trend.budget],
  }


def _face(trend, panel):
  """Returns the look of a bar: the personalized ones are darker."""
  face = trend.look.shaded(0.45 if panel == 0 else 1.0)
  return {
    'facecolor': face,
    'edgecolor': 'white' if trend.look.hatch else trend.look.color,
    'hatch': trend.look.hatch,
    'linewidth': 0.6,
  }


def _label(trend, trends):
  is_one = len({t.budget for t in trends}) == 1
  text = trend.method if is_one else f'{trend.method}, {trend.budget}'
  return text


def _budget_words(runs, trends):
  budgets = find_budgets(runs)
  words = []
  for name in dict.fromkeys(t.budget for t in trends):
    if name == FIXED_ROUNDS:
      words.append(f'Fixed rounds: {budgets.num_rounds:,} each.')
    else:
      total = budgets.num_rounds * budgets.local_epochs
      words.append(f'Fixed compute: {total:,} local epochs in all.')
  return ' '.join(words)


def _titled(title, setting):
  return f'{title}, {setting}' if setting else title


def _setting_words(setting):
  return f' Of the runs with {setting}.' if setting else ''


def _sample(runs):
  """Returns what the intervals of the final scores are over."""
  found = (run.final_evaluation() for run in runs)
  return interval_sample(e for e in found if e)


def _describe(kind, title, trends, panels, measure):
  parts = []
  for trend in trends:
    for panel, fraction in panels:
      values = ', '.join(
        (
          f'{100 * found[fraction].mean:.1f} %'
          if measure == 'accuracy'
          else f'{found[fraction].mean:.3f}'
        )
        + f' at E = {epochs:g}'
        for epochs, found in trend.scores.items()
        if fraction in found
      )
      parts.append(f'{_label(trend, trends)}, {panel.lower()}: {values}')
  return f'{kind}, {title[:1].lower()}{title[1:]}. {"; ".join(parts)}.'
