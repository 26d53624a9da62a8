"""Curves: scores by round, by traffic and by local epochs."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.estimates import MEASURES
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import HELD_OUT, Run
from tff_fedfish.reporting.style import Look, method_looks
from tff_fedfish.reporting.words import (
  PLACES,
  SCALES,
  capitalized,
  estimate_columns,
  said_fraction,
  words_of,
)

_COSTS = {
  'communication/uplink_units': 'Uplink (models, cumulative)',
  'communication/total_units': 'Uplink and downlink (models, cumulative)',
}


def arm_looks(findings: Findings) -> dict[str, Look]:
  """Returns the look of each arm in every plot, by its label."""
  return method_looks(
    (arm.label, arm.algorithm, arm.num_local_epochs) for arm in findings.arms
  )


def learning_curves(findings: Findings) -> Plot | None:
  """Returns losses, accuracies and the Client-Server Barrier by round.

  Arms that score other clients while training have panels of their own.
  """
  panels = {}
  for metric, label in words_of(findings.runs).metrics.items():
    is_scored = not metric.startswith(('train', 'barrier'))
    key = keys.curve_key if is_scored else keys.client_key
    panels |= _panels(findings.arms, 'round', metric, label, key)
  return _curves_plot(
    panels,
    name='curves',
    title='Learning curves',
    caption='Held-out: the same sample of clients in all rounds; round 0 is '
    f'before training. {_over_seeds(findings)}',
    x='Round',
    y='',
    panels='y',
    looks=arm_looks(findings),
  )


def cost_curves(findings: Findings) -> Plot | None:
  """Returns the loss by traffic."""
  source, name = 'held_out', 'Held-out'
  if all(arm.last('held_out/loss') is None for arm in findings.arms):
    source, name = 'personal', 'Own test'
  panels = {}
  for cost, label in _COSTS.items():
    panels |= _panels(findings.arms, cost, f'{source}/loss', label, _cost_key)
  return _curves_plot(
    panels,
    name='cost',
    title=f'{name} loss by traffic',
    caption='Further down and to the left is better. Traffic of a client that '
    f'takes part in every round, in float32 models. {_over_seeds(findings)}',
    x='',
    y=f'{name} {words_of(findings.runs).loss_label}',
    panels='x',
    looks=arm_looks(findings),
  )


def local_epochs(findings: Findings) -> Iterator[Plot | None]:
  """Yields final loss and accuracy of held-out clients by local epochs.

  Dhawan et al. (2024), FedFish, compare local epochs E for R rounds each, and
  for R E_reference / E rounds, so that all clients compute as much: two budgets
  (their Table 3, Figures 3 and 4).
  """
  lines = list(_lines(findings.arms))
  looks = method_looks(
    (name, arms[0].algorithm, None) for name, _, arms in lines
  )
  for name, is_compute, _ in lines:
    line = (0, (5, 2)) if is_compute else '-'
    looks[name] = dataclasses.replace(looks[name], line=line)
  final = [
    s
    for s in findings.shown
    if s.subject == HELD_OUT and s.rounds == [s.arm.num_rounds]
  ]
  ends = {0.0, max((s.fraction for s in final), default=0.0)}
  for measure in MEASURES:
    rows = [
      {
        'series': name,
        'x': s.arm.num_local_epochs,
        'panel': capitalized(said_fraction(s.fraction)),
        **estimate_columns(s, measure),
      }
      for fraction in sorted(ends)
      for name, _, arms in lines
      for s in final
      if s.arm in arms and s.fraction == fraction
    ]
    table = pd.DataFrame(rows)
    if table.empty or table['x'].nunique() < 2:
      continue
    yield plot(
      table.sort_values('x', kind='stable'),
      name=f'local_epochs_{measure}',
      title=f'Final {measure} by local epochs',
      caption='Held-out clients after the last round. Whiskers: 95 % '
      'intervals, over clients where there is one seed.',
      kind='line',
      x='Local epochs per round',
      y=words_of(findings.runs).label(measure),
      log_x=True,
      looks=looks,
    )


def _cost_key(run: Run) -> keys.Key:
  """Returns what runs share on an axis that counts models."""
  return keys.curve_key(run) + keys.model_key(run)


def _panels(
  arms: Sequence[Arm],
  x: str,
  y: str,
  label: str,
  key: Callable[[Run], keys.Key],
) -> dict[str, pd.DataFrame]:
  """Returns curves by the panel's label; a panel for each sample of clients."""
  groups = list(keys.grouped(arms, lambda arm: key(arm.first)).values())
  # Of one number in all figures, drawn or not.
  return {
    label + f', training sample {n}' * (len(groups) > 1): _curve(own, x, y)
    for n, own in enumerate(groups, start=1)
  }


def _curve(arms: Sequence[Arm], x: str, y: str) -> pd.DataFrame:
  """Returns a metric against another one, as means over seeds.

  Columns are series (the arm's label), point (the round), x, y, and low and
  high, those of the lowest and the highest seed. Rounds without either are
  absent.
  """
  rows, measure = [], y.split('/')[1]
  scale = SCALES[measure]
  for arm in arms:
    places = dict(arm.series('round', x))
    seeds = [dict(run.series('round', y)) for run in arm.runs]
    for round_num, value in arm.series('round', y):
      if round_num in places:
        spread = [scale * seed[round_num] for seed in seeds]
        # One seed has no band.
        ends = (min(spread), max(spread)) if len(spread) > 1 else (None, None)
        place = arm.label, round_num, places[round_num]
        rows.append((*place, scale * value, *ends))
  names = ('series', 'point', 'x', 'y', 'low', 'high')
  table = pd.DataFrame(rows, columns=names)
  table[['low', 'high']] = table[['low', 'high']].astype(float)
  return table.assign(places=PLACES[measure])


def _curves_plot(curves: Mapping[str, pd.DataFrame], **words) -> Plot | None:
  tables = [t.assign(panel=name) for name, t in curves.items() if len(t)]
  return plot(pd.concat(tables), kind='line', **words) if tables else None


def _over_seeds(findings: Findings) -> str:
  if all(arm.num_seeds == 1 for arm in findings.arms):
    return ''
  return 'Means over seeds; shaded from the lowest to the highest seed.'


def _lines(
  arms: Sequence[Arm],
) -> Iterator[tuple[str, bool, Sequence[Arm]]]:
  """Yields a name, whether all its arms compute as much, and the arms.

  Arms of a line differ in local epochs, and in the rates that were chosen for
  each number of them. Of several rates at one number there is no line.
  """
  arms = [arm for arm in arms if arm.num_local_epochs]
  sides = list(keys.grouped(arms, lambda a: keys.side_key(a.first)).values())
  names = keys.names([side[0].first for side in sides], keys.TUNED)
  for name, side in zip(names, sides, strict=True):
    method = name if len(sides) > 1 else side[0].method
    by_rounds = keys.grouped(side, lambda a: f'{a.num_rounds:,} rounds')
    by_compute = keys.grouped(
      side,
      lambda a: f'{a.num_rounds * a.num_local_epochs:,} local epochs in all',
    )
    for budgets, is_compute in ((by_rounds, False), (by_compute, True)):
      for budget, members in budgets.items():
        epochs = [arm.num_local_epochs for arm in members]
        if len(epochs) > 1 and len(set(epochs)) == len(epochs):
          yield f'{method}, {budget}', is_compute, members
