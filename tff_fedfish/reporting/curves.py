"""Curves of a score against rounds or against what the rounds have cost.

Figures 3, 9 and 10 of Dhawan et al. (2024), FedFish, are such curves, against
local epochs, rounds and communicated units, with a mark every 100 rounds.
"""

import dataclasses
import math
from collections.abc import Sequence

from matplotlib import lines

from tff_fedfish.reporting import figures
from tff_fedfish.reporting.figure_numbers import record
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle
from tff_fedfish.reporting.words import Words

ROUND = 'round'
LOCAL_EPOCHS = 'local_epochs'
"""Local epochs so far: rounds times local epochs per round."""

PERSONALIZED = 'personalized/accuracy'
"""Accuracy after personalization, of the evaluations of a run's checkpoints."""

_MAX_MARKS = 15
_NICE = (1, 2, 5)


@dataclasses.dataclass(frozen=True)
class Score:
  """Quantity that a curve shows.

  Attributes:
    metric: A column of metrics.csv, or `PERSONALIZED`.
    label: Of the axis, with the unit.
    scale: 100 for what is shown in percent or percentage points, else 1.
    caption: Where the numbers come from.
  """

  metric: str
  label: str
  scale: float
  caption: str

  @property
  def title(self) -> str:
    """The label without its unit."""
    return self.label.split(' (')[0]

  def show(self, value: float) -> str:
    """Returns a value as text."""
    if self.scale == 1.0:
      return f'{value:.3f}'
    unit = '%' if '%' in self.label else 'points'
    return f'{self.scale * value:.1f} {unit}'


@dataclasses.dataclass(frozen=True)
class Place:
  """X axis of a curve.

  Attributes:
    metric: A column of metrics.csv, `ROUND` or `LOCAL_EPOCHS`.
    label: Of the axis.
    words: In running text, such as 'uplink'.
  """

  metric: str
  label: str
  words: str


@dataclasses.dataclass(frozen=True)
class Point:
  """One score of a run.

  Attributes:
    round_num: When it was measured.
    x: What had been spent by then.
    y: The score; a mean over seeds for a run that stands for several.
    low: The lowest of these seeds; `y` for a single run.
    high: The highest.
  """

  round_num: int
  x: float
  y: float
  low: float
  high: float


def held_out_accuracy(words: Words) -> Score:
  """Returns the accuracy on the sample that is scored during training."""
  return Score(
    'held_out/accuracy',
    f'Held-out {words.accuracy_label}',
    100.0,
    'Measured during training on the same fixed sample of held-out clients; '
    'round 0 is before training.',
  )


def personalized_accuracy(runs: Sequence[Run], words: Words) -> Score | None:
  """Returns the score of runs that were evaluated at several rounds.

  Args:
    runs: The runs of the report.
    words: Of what they predict.

  Returns:
    The score; None if every run was evaluated at one round at most.
  """
  if all(len(points(run, ROUND, PERSONALIZED)) < 2 for run in runs):
    return None
  return Score(
    PERSONALIZED,
    f'Personalized {words.accuracy_label}',
    100.0,
    'After personalization on the largest evaluated share of each held-out '
    'client’s data, at the checkpoints that were evaluated.',
  )


def points(run: Run, x: str, y: str) -> list[Point]:
  """Returns the scores of a run in the order of the rounds.

  Args:
    run: A run, or one that stands for its repetitions.
    x: The metric of a `Place`.
    y: The metric of a `Score`.

  Returns:
    Points where both values are finite.
  """
  places = _by_round(run, x)
  seeds = [_by_round(repetition, y) for repetition in run.repetitions]
  found = []
  for round_num, value in sorted(_by_round(run, y).items()):
    if round_num in places:
      spread = [s[round_num] for s in seeds if round_num in s] or [value]
      found.append(
        Point(round_num, places[round_num], value, min(spread), max(spread))
      )
  return found


def mark_step(rounds: Sequence[int]) -> int:
  """Returns after how many rounds to put a mark.

  Args:
    rounds: In which scores were measured, of all curves of a plot.

  Returns:
    1, 2, 5, 10, ... times what divides all the rounds, so that every curve has
    a score at each mark; at most 15 marks beside round 0's, as 1,500 rounds of
    the paper have.
  """
  unit = math.gcd(*rounds) or 1
  wanted = max(rounds, default=0) / unit / _MAX_MARKS
  scale = 1
  while True:
    for nice in _NICE:
      if nice * scale >= wanted:
        return nice * scale * unit
    scale *= 10


def curve_figure(
  runs: Sequence[Run],
  styles: dict[str, RunStyle],
  *,
  place: Place,
  score: Score,
  name: str,
  caption: str,
) -> figures.Figure | None:
  """Returns one score against one kind of place, a curve per run.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.
    place: The horizontal axis.
    score: The vertical axis.
    name: File name without suffix.
    caption: What the plot shows and how to read it.

  Returns:
    The figure; None if no run has such scores.
  """
  series = {run.label: points(run, place.metric, score.metric) for run in runs}
  if not any(series.values()):
    return None
  rounds = [p.round_num for found in series.values() for p in found]
  # Evaluations are few, at rounds of the user's choice: each has a mark.
  step = 1 if score.metric == PERSONALIZED else mark_step(rounds)
  title = f'{score.title} against {place.words}'
  with figures.styled() as figure:
    axes = figure.add_subplot()
    handles = []
    for run in runs:
      if series[run.label]:
        look = styles[run.label]
        _draw(axes, run.label, series[run.label], score.scale, look, step)
        label = figures.drawable(run.label)
        handles.append(
          lines.Line2D([], [], label=label, **look.line_arguments())
        )
    axes.set_xlabel(place.label)
    axes.set_ylabel(score.label)
    axes.xaxis.set_major_locator(figures.whole_numbers())
    axes.margins(x=0.03)
    places = {p.x for found in series.values() for p in found}
    if len(places) == 1:
      axes.set_xlim(min(places) - 1, max(places) + 1)
    figures.add_legend(figure, handles)
    return figures.render(
      figure,
      name=name,
      title=title,
      caption=caption + _caption_end(runs, series, step, max(rounds)),
      alternative_text=_describe(title, place, series, score),
    )


def _by_round(run, metric) -> dict[int, float]:
  """Returns round -> finite value."""
  if metric == PERSONALIZED:
    return _personalized(run)
  if metric == LOCAL_EPOCHS:
    epochs = run.num_local_epochs
    rounds = [row['round'] for row in run.metrics]
    return {} if epochs is None else {r: r * epochs for r in rounds}
  return dict(run.series(ROUND, metric))


def _personalized(run):
  scores = {}
  for evaluation in run.evaluations:
    if evaluation.kind == 'held_out' and evaluation.round_num is not None:
      fraction = max(evaluation.fractions, default=0.0)
      if fraction > 0 and evaluation.fractions[fraction].accuracy:
        accuracy = evaluation.fractions[fraction].accuracy
        scores.setdefault(fraction, {})[evaluation.round_num] = accuracy.mean
  # One share for all points of a curve.
  return scores[max(scores)] if scores else {}


def _draw(axes, label, found, scale, look, step):
  x = [p.x for p in found]
  y = [scale * p.y for p in found]
  band = {}
  if any(p.low < p.high for p in found):
    band['low'] = [scale * p.low for p in found]
    band['high'] = [scale * p.high for p in found]
    axes.fill_between(
      x, *band.values(), color=look.color, alpha=0.15, linewidth=0
    )
  rounds = [p.round_num for p in found]
  record(axes, label, x, y, points=rounds, **band)
  axes.plot(
    x,
    y,
    # A curve that ends before the first mark is seen all the same.
    markevery=[i for i, p in enumerate(found) if p.round_num % step == 0]
    or [len(found) - 1],
    **look.line_arguments(),
  )


def _caption_end(runs, series, step, last):
  text = ''
  if 1 < step <= last and all(
    set(range(step, found[-1].round_num + 1, step))
    <= {p.round_num for p in found}
    for found in series.values()
    if found
  ):
    text = f' Marks: every {step} rounds.'
  if any(run.repetitions for run in runs):
    text += (
      ' Lines are means over seeds; shaded from the lowest to the highest seed.'
    )
  without = [label for label, found in series.items() if not found]
  if without:
    text += f' No such values yet: {"; ".join(without)}.'
  return text


def _describe(title, place, series, score) -> str:
  """Says where each curve starts and ends."""
  parts = [
    f'{label}: {score.show(found[0].y)} at {place.words} {found[0].x:g}, '
    f'{score.show(found[-1].y)} at {place.words} {found[-1].x:g}'
    for label, found in series.items()
    if found
  ]
  return f'Line chart, {title[:1].lower()}{title[1:]}. {"; ".join(parts)}.'
