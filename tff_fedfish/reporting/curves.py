"""Curves of a score against rounds or against what the rounds have cost.

Figures 3, 9 and 10 of Dhawan et al. (2024), FedFish, are such curves, against
local epochs, rounds and communicated units, with a mark every 100 rounds.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tff_fedfish.reporting import figures
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle, local_epochs
from tff_fedfish.reporting.words import words_of

ROUND = 'round'
LOCAL_EPOCHS = 'local_epochs'
"""Local epochs so far: rounds times local epochs per round."""

PERSONALIZED = 'personalized/accuracy'
"""Accuracy after personalization, of the evaluations of a run's checkpoints."""

_MAX_MARKS = 15


class Score(NamedTuple):
  """Quantity that a curve shows.

  Attributes:
    metric: A column of metrics.csv, or `PERSONALIZED`.
    label: The axis's, with the unit.
    scale: 100 for what is shown in percent or percentage points, else 1.
    caption: Where the numbers come from.
  """

  metric: str
  label: str
  scale: float
  caption: str

  def show(self, value: float) -> str:
    """Returns a value as text."""
    if self.scale == 1.0:
      return f'{value:.3f}'
    unit = '%' if '%' in self.label else 'points'
    return f'{self.scale * value:.1f} {unit}'


class Place(NamedTuple):
  """X axis of a curve.

  Attributes:
    metric: A column of metrics.csv, `ROUND` or `LOCAL_EPOCHS`.
    label: The axis's.
    words: In running text, such as 'uplink'.
  """

  metric: str
  label: str
  words: str


class Point(NamedTuple):
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


_ROUND = Place(ROUND, 'Round', 'round')
_LOCAL_EPOCHS = Place(LOCAL_EPOCHS, 'Local epochs (cumulative)', 'local epochs')
_UPLINK = Place(
  'communication/uplink_units', 'Uplink (units, cumulative)', 'uplink'
)
_TOTAL = Place(
  'communication/total_units',
  'Uplink and downlink (units, cumulative)',
  'uplink and downlink',
)


def learning_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns loss and accuracy against rounds, held-out and in training.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    One figure per score that any run has.
  """
  words = words_of(runs)
  train = (
    f'Mean over the {words.unit}s of all local steps of the round’s cohort, '
    'each batch scored just before the step that learns from it; every round '
    'has another cohort, and later local epochs have seen the batch before.'
  )
  accuracy = _held_out_accuracy(words)
  loss = f'Held-out {words.loss_label}'
  wanted = {
    'held_out_loss': Score('held_out/loss', loss, 1.0, accuracy.caption),
    'held_out_accuracy': accuracy,
    'personalized_accuracy': _personalized_accuracy(runs, words),
    'train_loss': Score('train/loss', f'Train {words.loss_label}', 1.0, train),
    'train_accuracy': Score(
      'train/accuracy', f'Train {words.accuracy_label}', 100.0, train
    ),
  }
  drawn = [
    score and _figure(runs, styles, _ROUND, score, f'curve_{name}')
    for name, score in wanted.items()
  ]
  return [figure for figure in drawn if figure]


def cost_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns accuracies against local epochs and against communication.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    Held-out and, where runs were evaluated at several rounds, personalized
    accuracy against each cost that any run reports; against local epochs only
    if runs differ in these, as it is that against rounds otherwise.
  """
  words = words_of(runs)
  scores = {
    '': _held_out_accuracy(words),
    'personalized_': _personalized_accuracy(runs, words),
  }
  unit = (
    'one unit is one model of float32 of a client that takes part in every '
    'round.'
  )
  costs = {
    'uplink': (_UPLINK, f'Uplink, summed; {unit}'),
    'total': (_TOTAL, f'Uplink and downlink, summed; {unit}'),
  }
  if len(local_epochs(runs)) > 1:
    titles = dict.fromkeys(
      run.method
      for run in runs
      if (config := run.train_config)
      and config.method.cost(config).pass_after_training != 'none'
    )
    further = (
      f' {title}’s pass after local training, where it makes one, comes on top.'
      for title in titles
    )
    costs['local_epochs'] = (
      _LOCAL_EPOCHS,
      'Local epochs: rounds so far times local epochs per round, what a client '
      f'that takes part in every round has computed.{"".join(further)}',
    )
  drawn = [
    score
    and _figure(
      *(runs, styles, place, score, f'communication_{prefix}{name}'),
      f'Further up and to the left is better. {caption} ',
    )
    for name, (place, caption) in costs.items()
    for prefix, score in scores.items()
  ]
  return [figure for figure in drawn if figure]


def barrier_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns the barrier, in loss and error, against rounds, where measured.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.
  """
  unit = f'nats per {words_of(runs).unit}'
  drawn = []
  for measure, label, scale in (
    ('loss', f'Barrier in the loss ({unit})', 1.0),
    ('error', 'Barrier in the error (points)', 100.0),
  ):
    caption = (
      'Mean over the clients of the round, on the data that they trained on: '
      f'the new global weights’ {measure} minus that of the client’s own '
      'trained weights; lower is better.'
    )
    score = Score(f'barrier/{measure}', label, scale, caption)
    name = f'barrier_{measure}_by_round'
    drawn.append(_figure(runs, styles, _ROUND, score, name))
  return [figure for figure in drawn if figure]


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
    for nice in (1, 2, 5):
      if nice * scale >= wanted:
        return nice * scale * unit
    scale *= 10


def _held_out_accuracy(words):
  """Returns the accuracy on the sample that is scored during training."""
  return Score(
    'held_out/accuracy',
    f'Held-out {words.accuracy_label}',
    100.0,
    'Measured during training on the same fixed sample of held-out clients; '
    'round 0 is before training.',
  )


def _personalized_accuracy(runs, words):
  """Returns the score; None if each run was evaluated at one round at most."""
  if all(len(points(run, ROUND, PERSONALIZED)) < 2 for run in runs):
    return None
  return Score(
    PERSONALIZED,
    f'Personalized {words.accuracy_label}',
    100.0,
    'After personalization on the largest evaluated share of each held-out '
    'client’s data, at the checkpoints that were evaluated.',
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
      accuracy = evaluation.score(fraction, 'accuracy')
      if fraction > 0 and accuracy:
        found = scores.setdefault(fraction, {})
        found[evaluation.round_num] = accuracy.mean
  # One share for all points of a curve.
  return scores[max(scores)] if scores else {}


def _figure(
  runs: Sequence[Run],
  styles: dict[str, RunStyle],
  place: Place,
  score: Score,
  name: str,
  caption: str = '',
) -> figures.Figure | None:
  """Returns a curve per run; None if no run has such scores.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.
    place: The horizontal axis.
    score: The vertical axis.
    name: File name without suffix.
    caption: What comes before the score's own.
  """
  found = {run.label: points(run, place.metric, score.metric) for run in runs}
  without = [label for label, curve in found.items() if not curve]
  curves = {label: curve for label, curve in found.items() if curve}
  if not curves:
    return None
  rounds = [p.round_num for curve in curves.values() for p in curve]
  # Evaluations are few, at rounds of the user's choice: each has a mark.
  step = 1 if score.metric == PERSONALIZED else mark_step(rounds)
  title = f'{score.label.split(" (")[0]} against {place.words}'
  caption += score.caption
  if 1 < step <= max(rounds) and all(
    set(range(step, curve[-1].round_num + 1, step))
    <= {p.round_num for p in curve}
    for curve in curves.values()
  ):
    caption += f' Marks: every {step} rounds.'
  if any(run.repetitions for run in runs):
    caption += (
      ' Lines are means over seeds; shaded from the lowest to the highest seed.'
    )
  if without:
    caption += f' No such values yet: {"; ".join(without)}.'
  parts = [
    f'{label}: {score.show(curve[0].y)} at {place.words} {curve[0].x:g}, '
    f'{score.show(curve[-1].y)} at {place.words} {curve[-1].x:g}'
    for label, curve in curves.items()
  ]
  with figures.styled() as figure:
    axes = figure.add_subplot()
    for label, curve in curves.items():
      _draw(axes, label, curve, score.scale, styles[label], step)
    axes.set_xlabel(place.label)
    axes.set_ylabel(score.label)
    axes.xaxis.set_major_locator(figures.whole_numbers())
    axes.margins(x=0.03)
    places = {p.x for curve in curves.values() for p in curve}
    if len(places) == 1:
      axes.set_xlim(min(places) - 1, max(places) + 1)
    figures.add_legend(
      figure,
      [figures.handle(x, **styles[x].line_arguments()) for x in curves],
    )
    return figures.render(
      figure,
      name=name,
      title=title,
      caption=caption,
      alternative_text=f'Line chart, {title[:1].lower()}{title[1:]}. '
      f'{"; ".join(parts)}.',
    )


def _draw(axes, label, curve, scale, look, step):
  x = [p.x for p in curve]
  y = [scale * p.y for p in curve]
  band = {}
  if any(p.low < p.high for p in curve):
    band['low'] = [scale * p.low for p in curve]
    band['high'] = [scale * p.high for p in curve]
    axes.fill_between(
      x, *band.values(), color=look.color, alpha=0.15, linewidth=0
    )
  rounds = [p.round_num for p in curve]
  figures.record(axes, label, x, y, points=rounds, **band)
  marks = [i for i, round_num in enumerate(rounds) if round_num % step == 0]
  # A curve that ends before the first mark is seen all the same.
  look = look.line_arguments() | {'markevery': marks or [len(curve) - 1]}
  axes.plot(x, y, **look)
