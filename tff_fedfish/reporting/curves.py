"""Curves of a score against rounds or against what the rounds have cost.

Figures 3, 9 and 10 of Dhawan et al. (2024), FedFish, are such curves, against
local epochs, rounds and communicated units, with a mark every 100 rounds.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tff_fedfish.reporting import figures
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import local_epochs, run_styles
from tff_fedfish.reporting.words import uncapitalized, words_of

# Local epochs so far: rounds times local epochs per round.
_LOCAL_EPOCHS = 'local_epochs'
# Accuracy after personalization, of the evaluations of a run's checkpoints.
_PERSONALIZED = 'personalized/accuracy'
_MAX_MARKS = 15
# Scores by the first part of their metrics: their name, and where they are
# from. {unit}: of the targets.
_SOURCES = {
  'held_out': (
    'Held-out',
    'Measured during training on the same fixed sample of held-out clients; '
    'round 0 is before training.',
  ),
  'personalized': (
    'Personalized',
    'After personalization on the largest evaluated share of each held-out '
    'client’s data, at the checkpoints that were evaluated.',
  ),
  'personal': (
    'Own test',
    'Measured during training: mean over the clients, each scored on its own '
    'test rows with its personal model, the one that it begins the next round '
    'with; round 0 is before training. A global model is not scored so while '
    'it trains.',
  ),
  'train': (
    'Train',
    'Mean over the {unit}s of all local steps of the round’s cohort, each '
    'batch scored just before the step that learns from it; every round has '
    'another cohort, and later local epochs have seen the batch before.',
  ),
}


class _Axis(NamedTuple):
  """X axis: a metric, and its label with the unit."""

  metric: str  # A column of metrics.csv, or `_LOCAL_EPOCHS`.
  label: str
  caption: str = ''


_ROUND = _Axis('round', 'Round')


class _Score(NamedTuple):
  """Y axis: a metric, its label, and where the numbers come from."""

  metric: str  # A column of metrics.csv, or `_PERSONALIZED`.
  label: str
  caption: str
  scale: float = 1.0  # 100 for percent or percentage points.

  def show(self, value: float) -> str:
    """Returns a value as text."""
    if self.scale == 1.0:
      return f'{value:.3f}'
    unit = '%' if '%' in self.label else 'points'
    return f'{self.scale * value:.1f} {unit}'


class _Point(NamedTuple):
  """Score in a round; `low` and `high` are the extreme seeds, or `y`."""

  round_num: int
  x: float
  y: float
  low: float
  high: float


def learning_curves(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns loss and accuracy against rounds: held-out, own and in training.

  There is one figure per score that any run has.
  """
  scores = {
    f'curve_{source}_{measure}': _score(runs, source, measure)
    for source in _sources(runs)
    for measure in ('loss', 'accuracy')
  }
  return _figures(runs, _ROUND, scores)


def cost_curves(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns accuracies against local epochs and against communication.

  They are held-out accuracy, that on own test rows and, where runs were
  evaluated at several rounds, personalized accuracy; against local epochs only
  if runs differ in these, as it is that against rounds otherwise.
  """
  costs = {
    name: _Axis(
      f'communication/{name}_units',
      f'{cost} (units, cumulative)',
      f'{cost}, summed; one unit is one model of float32 of a client that '
      'takes part in every round.',
    )
    for name, cost in (('uplink', 'Uplink'), ('total', 'Uplink and downlink'))
  }
  if len(local_epochs(runs)) > 1:
    titles = dict.fromkeys(
      run.method
      for run in runs
      if (config := run.train_config)
      and config.method.cost(config).passes_after_training
    )
    further = (
      f' {title}’s pass after local training, where it makes one, comes on top.'
      for title in titles
    )
    costs['local_epochs'] = _Axis(
      _LOCAL_EPOCHS,
      'Local epochs (cumulative)',
      'Local epochs: rounds so far times local epochs per round, what a client '
      f'that takes part in every round has computed.{"".join(further)}',
    )
  drawn, sources = [], _sources(runs)
  for name, axis in costs.items():
    caption = f'Further up and to the left is better. {axis.caption} '
    scores = {}
    for source in ('held_out', 'personal', 'personalized'):
      if source in sources:
        score = _score(runs, source, 'accuracy')
        prefix = '' if source == 'held_out' else f'{source}_'
        scores[f'communication_{prefix}{name}'] = score._replace(
          caption=caption + score.caption
        )
    drawn += _figures(runs, axis, scores)
  return drawn


def barrier_curves(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns the barrier, in loss and error, against rounds, where measured."""
  scores = {
    f'barrier_{measure}_by_round': _Score(
      f'barrier/{measure}',
      f'Barrier in the {measure} ({unit})',
      'Mean over the clients of the round, on the data that they trained on: '
      f'the new global weights’ {measure} minus that of the client’s own '
      'trained weights. It grows with what the clients learn and ranks '
      'nothing.',
      scale,
    )
    for measure, unit, scale in (
      ('loss', f'nats per {words_of(runs).unit}', 1.0),
      ('error', 'points', 100.0),
    )
  }
  return _figures(runs, _ROUND, scores)


def mark_step(rounds: Sequence[int]) -> int:
  """Returns after how many of the rounds of a plot's scores to put a mark.

  That is 1, 2, 5, 10, ... times what divides all the rounds, so that every
  curve has a score at each mark; at most 15 marks beside round 0's, as 1,500
  rounds of the paper have.
  """
  unit = math.gcd(*rounds) or 1
  steps = (n * 10**k * unit for k in itertools.count() for n in (1, 2, 5))
  last = max(rounds, default=0)
  return next(step for step in steps if step * _MAX_MARKS >= last)


def _sources(runs) -> list[str]:
  """Returns `_SOURCES`; personalized scores only if they make a curve."""
  is_curve = any(len(_points(r, 'round', _PERSONALIZED)) > 1 for r in runs)
  return [s for s in _SOURCES if is_curve or s != 'personalized']


def _score(runs, source, measure) -> _Score:
  """Returns the 'loss' or 'accuracy' of one of `_SOURCES`."""
  words, (name, caption) = words_of(runs), _SOURCES[source]
  label, scale = words.loss_label, 1.0
  if measure == 'accuracy':
    label, scale = words.accuracy_label, 100.0
  caption = caption.format(unit=words.unit)
  return _Score(f'{source}/{measure}', f'{name} {label}', caption, scale)


def _points(run: Run, x: str, y: str) -> list[_Point]:
  """Returns the rounds in which both metrics are finite, in their order."""
  places = _by_round(run, x)
  seeds = [_by_round(repetition, y) for repetition in run.repetitions]
  found = []
  for round_num, value in sorted(_by_round(run, y).items()):
    if round_num in places:
      spread = [s[round_num] for s in seeds if round_num in s] or [value]
      ends = min(spread), max(spread)
      found.append(_Point(round_num, places[round_num], value, *ends))
  return found


def _by_round(run, metric) -> dict[int, float]:
  """Returns round -> finite value."""
  if metric == _LOCAL_EPOCHS:
    epochs = run.num_local_epochs
    rounds = [row['round'] for row in run.metrics]
    return {} if epochs is None else {r: r * epochs for r in rounds}
  if metric != _PERSONALIZED:
    return dict(run.series('round', metric))
  scores: dict[float, dict[int, float]] = {}
  for evaluation in run.evaluations:
    if evaluation.kind == 'held_out' and evaluation.round_num is not None:
      fraction = max(evaluation.fractions, default=0.0)
      accuracy = evaluation.scores.get((fraction, 'accuracy'))
      if fraction > 0 and accuracy:
        found = scores.setdefault(fraction, {})
        found[evaluation.round_num] = accuracy.mean
  # One share for all points of a curve.
  return scores[max(scores)] if scores else {}


def _figures(
  runs: Sequence[Run], axis: _Axis, scores: Mapping[str, _Score]
) -> list[figures.Figure]:
  """Returns a figure, by its name, for each score that any run has."""
  drawn = [_figure(runs, axis, score, name) for name, score in scores.items()]
  return [figure for figure in drawn if figure]


def _figure(runs, axis, score, name) -> figures.Figure | None:
  """Returns a curve per run; None if no run has such scores."""
  found = {run.label: _points(run, axis.metric, score.metric) for run in runs}
  without = [label for label, curve in found.items() if not curve]
  curves = {label: curve for label, curve in found.items() if curve}
  if not curves:
    return None
  styles = run_styles(runs)
  rounds = [p.round_num for curve in curves.values() for p in curve]
  # Evaluations are few, at rounds of the user's choice: each has a mark.
  step = 1 if score.metric == _PERSONALIZED else mark_step(rounds)
  x, y = (label.split(' (')[0] for label in (axis.label, score.label))
  title = f'{y} against {uncapitalized(x)}'
  caption = score.caption
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
    caption += f' No such values: {"; ".join(without)}.'
  parts = [
    f'{label}: '
    + ', '.join(
      f'{score.show(point.y)} at {uncapitalized(x)} {point.x:g}'
      for point in (curve[0], curve[-1])
    )
    for label, curve in curves.items()
  ]
  with figures.styled() as figure:
    axes = figure.add_subplot()
    for label, curve in curves.items():
      _draw(axes, label, curve, score.scale, styles[label], step)
    axes.set_xlabel(axis.label)
    axes.set_ylabel(score.label)
    axes.xaxis.set_major_locator(figures.whole_numbers())
    axes.margins(x=0.03)
    places = {p.x for curve in curves.values() for p in curve}
    if len(places) == 1:
      axes.set_xlim(min(places) - 1, max(places) + 1)
    figures.add_legend(
      figure, [figures.handle(n, **styles[n].line_arguments()) for n in curves]
    )
    return figures.render(
      figure,
      name=name,
      title=title,
      caption=caption,
      alternative_text=f'Line chart, {uncapitalized(title)}. '
      f'{"; ".join(parts)}.',
    )


def _draw(axes, label, curve, scale, look, step):
  rounds, x, *values = zip(*curve, strict=True)
  y, low, high = ([scale * value for value in found] for found in values)
  band = {}
  if any(p.low < p.high for p in curve):
    band = {'low': low, 'high': high}
    axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
  figures.record(axes, label, x, y, points=rounds, **band)
  marks = [i for i, round_num in enumerate(rounds) if round_num % step == 0]
  # A curve that ends before the first mark is seen all the same.
  look = look.line_arguments() | {'markevery': marks or [len(curve) - 1]}
  axes.plot(x, y, **look)
