"""Mean scores in groups, with 95 % intervals: by personalization fraction.

Accuracy is drawn as bars from 0. Losses lie close together far from 0, where
bars would hide both differences and intervals: they are drawn as points.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib import patches

from tff_fedfish.reporting import figures
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.runs import OWN_TEST, Run, Subject, models_in_words
from tff_fedfish.reporting.style import RunStyle, run_styles
from tff_fedfish.reporting.words import interval_sample, uncapitalized, words_of

_MAX_LABELLED_BARS = 24


class Series(NamedTuple):
  """Scores of one run or method, a bar or a point in each group."""

  name: str
  """Name in the figure's CSV file."""
  label: str
  """Name in the legend and in words."""
  scores: dict[float, Interval]
  """Score by place of the group."""
  look: RunStyle
  color: str
  """Fill of the bars."""

  @property
  def face(self) -> dict[str, Any]:
    """Keyword arguments of matplotlib for a bar."""
    return {
      'facecolor': self.color,
      'edgecolor': 'white' if self.look.hatch else self.look.color,
      'hatch': self.look.hatch,
      'linewidth': 0.6,
    }


def fraction_bars(
  runs: Sequence[Run], *, subject: Subject, name: str
) -> list[figures.Figure]:
  """Returns loss and accuracy by fraction for one evaluation of each run.

  These are up to two figures, loss first, whose names begin with `name`; none
  if no run was evaluated on the subject.
  """
  found = {run.label: run.evaluation(subject) for run in runs}
  styles, drawn = run_styles(runs), []
  scored = (
    f'Mean over {subject}, scored on the same half of each client’s data '
    'after fine-tuning on none, or on a fraction, of the other half; '
    'fractions are of the client’s whole data.'
  )
  if subject == OWN_TEST:
    scored = (
      'Mean over the clients that train, each scored on its own test rows '
      f'without fine-tuning. {models_in_words(runs)}'
    )
  sample = interval_sample(found.values())
  scored += f' Whiskers: 95 % bootstrap intervals over {sample}.'
  without = [label for label, evaluation in found.items() if not evaluation]
  absent = f' Not evaluated: {"; ".join(without)}.' if without else ''
  captions = {
    'loss': f'Lower is better. {scored} The vertical axis does not start at 0.',
    'accuracy': f'Higher is better. {scored}',
  }
  for measure, caption in captions.items():
    series = []
    for label, evaluation in found.items():
      scores = {
        100 * fraction: evaluation.scores[fraction, measure]
        for fraction in (evaluation.fractions if evaluation else ())
        if evaluation.scores[fraction, measure]
      }
      if scores:
        look = styles[label]
        series.append(Series(label, label, scores, look, look.shade))
    if series:
      words = f'{name}_{measure}', caption + absent
      drawn.append(_figure(runs, subject, measure, series, *words))
  return drawn


def draw_groups(
  axes: Any,
  series: Sequence[Series],
  *,
  scale: float,
  is_bar: bool = True,
  max_labelled: int = 0,
) -> None:
  """Draws and records scores in groups, as bars or as points.

  Up to `max_labelled` of them have their number, `scale` times the score, above
  them.
  """
  places = sorted({place for one in series for place in one.scores})
  width = 0.84 / len(series)
  is_labelled = len(places) * len(series) <= max_labelled
  for position, one in enumerate(series):
    offset = (position - (len(series) - 1) / 2) * width
    for group, place in enumerate(places):
      if score := one.scores.get(place):
        x, mean = group + offset, scale * score.mean
        if is_bar:
          axes.bar(x, mean, width=0.94 * width, **one.face)
        ends = figures.draw_whisker(
          axes,
          x,
          score,
          color='#222222' if is_bar else one.look.color,
          scale=scale,
          linewidth=1.1 if is_bar else 1.5,
        )
        if not is_bar:
          look = one.look.marker_arguments()
          axes.plot(x, mean, **{**look, 'markersize': 7})
        if is_labelled:
          axes.annotate(
            f'{mean:.2f}' if scale == 1.0 else f'{mean:.1f}',
            (x, max([mean, *ends.get('high', ())])),
            xytext=(0, 2 if is_bar or ends else 6),
            textcoords='offset points',
            ha='center',
            va='bottom',
            fontsize=8.0,
            color='#222222',
          )
        figures.record(axes, one.name, [place], [mean], **ends)
  axes.set_xticks(range(len(places)), [f'{place:g}' for place in places])
  axes.tick_params(axis='x', length=0)
  axes.grid(visible=False, axis='x')


def bar_handles(series: Sequence[Series]) -> list[patches.Patch]:
  """Returns the entries of bars in a legend."""
  return [
    patches.Patch(label=figures.drawable(one.label), **one.face)
    for one in series
  ]


def describe(
  kind: str,
  title: str,
  series: Sequence[Series],
  measure: str,
  show_place: Callable[[float], str] | None,
) -> str:
  """Returns all scores in words: 'Bar chart, TITLE. RUN: 5.750 at PLACE.'.

  Without `show_place` there is one place, which is not said.
  """
  scale, show = (1, '{:.3f}') if measure == 'loss' else (100, '{:.1f} %')
  parts = [
    f'{one.label}: '
    + ', '.join(
      show.format(scale * score.mean)
      + (f' at {show_place(place)}' if show_place else '')
      for place, score in one.scores.items()
    )
    for one in series
  ]
  return f'{kind}, {uncapitalized(title)}. {"; ".join(parts)}.'


def _figure(runs, subject, measure, series, name, caption):
  title = f'{measure.capitalize()} on {subject}'
  has_fractions = subject != OWN_TEST
  is_bar = measure == 'accuracy'
  places = {place for one in series for place in one.scores}
  width = figures.fitting_width(0.42 * len(places) * len(series))
  with figures.styled(width) as figure:
    axes = figure.add_subplot()
    draw_groups(
      axes,
      series,
      scale=100.0 if is_bar else 1.0,
      is_bar=is_bar,
      max_labelled=_MAX_LABELLED_BARS,
    )
    by = ''
    if has_fractions:
      axes.set_xlabel('Client’s data used for personalization (%)')
      by = ' by share of the client’s data used for personalization'
    else:
      axes.set_xticks([])
    axes.set_ylabel(words_of(runs).label(measure))
    axes.margins(y=0.12)
    if is_bar:
      axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlim(-0.55, len(places) - 0.45)
    points = [
      figures.handle(one.label, linestyle='none', **one.look.marker_arguments())
      for one in series
    ]
    figures.add_legend(figure, bar_handles(series) if is_bar else points)
    return figures.render(
      figure,
      name=name,
      title=title,
      caption=caption,
      alternative_text=describe(
        'Bar chart' if is_bar else 'Dot chart',
        f'{title}{by}',
        series,
        measure,
        '{:g} %'.format if has_fractions else None,
      ),
    )
