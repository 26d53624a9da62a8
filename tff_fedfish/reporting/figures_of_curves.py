"""Curves: what was scored while training, by round and by traffic."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import Look
from tff_fedfish.reporting.words import PLACES, SCALES, Words

_COSTS = {
  'communication/uplink_units': 'Uplink (models, cumulative)',
  'communication/total_units': 'Uplink and downlink (models, cumulative)',
}


def learning_curves(
  findings: Findings, words: Words, looks: Mapping[str, Look]
) -> Plot | None:
  """Returns losses, accuracies and the Client-Server Barrier by round.

  Arms that score other clients while training have panels of their own.
  """
  panels = {}
  for metric, label in words.metrics.items():
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
    looks=looks,
  )


def cost_curves(
  findings: Findings, words: Words, looks: Mapping[str, Look]
) -> Plot | None:
  """Returns the loss by traffic."""
  source, name = 'held_out', 'Held-out'
  if all(arm.last('held_out/loss') is None for arm in findings.arms):
    source, name = 'personal', 'Own test'
  panels = {}
  for cost, label in _COSTS.items():
    panels |= _panels(
      findings.arms, cost, f'{source}/loss', label, keys.curve_key
    )
  return _curves_plot(
    panels,
    name='cost',
    title=f'{name} loss by traffic',
    caption='Further down and to the left is better. Traffic of a client that '
    f'takes part in every round, in float32 models. {_over_seeds(findings)}',
    x='',
    y=f'{name} {words.loss_label}',
    panels='x',
    looks=looks,
  )


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
