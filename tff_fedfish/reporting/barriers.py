"""Scatters of the Client-Server Barrier.

FedFish against FedAvg client by client, as in Figure 6 of Dhawan et al.
(2024), "Leveraging Function Space Aggregation for Federated Learning at
Scale"; their equation 5 defines the barrier.
"""

import dataclasses
import json
from collections.abc import Sequence

from matplotlib import lines

from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.evaluations import barrier_of
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.scatters import (
  draw_diagonal,
  draw_points,
  padded_limits,
  share_text,
)
from tff_fedfish.reporting.style import (
  EPOCH_HUES,
  MARKERS,
  RunStyle,
  local_epochs,
)

_MEASURES = (
  ('loss', 'barrier in the loss (nats per token)', 1.0),
  ('error', 'barrier in the error (percentage points)', 100.0),
)


@dataclasses.dataclass(frozen=True)
class Pair:
  """A FedFish and a FedAvg run that differ in nothing else that matters.

  Attributes:
    fed_fish: The FedFish run.
    fed_avg: The FedAvg run.
    clients: (barrier under FedFish, barrier under FedAvg) of every client
      that took part in both.
    num_unmatched: Clients with a barrier in one of the two only.
  """

  fed_fish: Run
  fed_avg: Run
  clients: tuple[tuple[ClientBarrier, ClientBarrier], ...]
  num_unmatched: int


def barrier_scatters(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns the barrier's scatter plots.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    FedFish against FedAvg in loss and in error if there is a pair; else global
    against local loss of every run; nothing if no run has a barrier.
  """
  pairs = find_pairs(runs)
  if pairs:
    return [
      _pair_figure(pairs, local_epochs(runs), *measure) for measure in _MEASURES
    ]
  clients = {
    run.label: evaluation.barrier_clients
    for run in runs
    if (evaluation := run.barrier()) and evaluation.barrier_clients
  }
  return [_local_global_figure(clients, styles)] if clients else []


def find_pairs(runs: Sequence[Run]) -> list[Pair]:
  """Returns FedFish and FedAvg runs of equal local epochs, with their clients.

  Where several runs share method and local epochs, those are paired whose
  configurations agree in everything but `algorithm`.
  """
  pairs = []
  measured = [r for r in runs if r.barrier() and r.barrier().barrier_clients]
  for epochs in local_epochs(measured):
    fish, average = (
      [
        run
        for run in measured
        if run.algorithm == name and run.num_local_epochs == epochs
      ]
      for name in ('fed_fish', 'fed_avg')
    )
    if len(fish) == 1 and len(average) == 1:
      pairs.append(_pair(fish[0], average[0]))
      continue
    by_rest = {_all_but_algorithm(run): run for run in average}
    for run in fish:
      partner = by_rest.pop(_all_but_algorithm(run), None)
      if partner is not None:
        pairs.append(_pair(run, partner))
  return [pair for pair in pairs if pair.clients]


def _pair(fed_fish, fed_avg):
  mine = {c.client_id: c for c in fed_fish.barrier().barrier_clients}
  other = {c.client_id: c for c in fed_avg.barrier().barrier_clients}
  common = [client_id for client_id in mine if client_id in other]
  return Pair(
    fed_fish=fed_fish,
    fed_avg=fed_avg,
    clients=tuple((mine[c], other[c]) for c in common),
    num_unmatched=len(mine) + len(other) - 2 * len(common),
  )


def _all_but_algorithm(run):
  rest = {k: v for k, v in run.config.items() if k != 'algorithm'}
  return json.dumps(rest, sort_keys=True)


def _pair_figure(pairs, epochs, measure, words, scale):
  values = [
    [
      tuple(scale * barrier_of(client, measure) for client in both)
      for both in pair.clients
    ]
    for pair in pairs
  ]
  names = [_pair_name(pair, pairs) for pair in pairs]
  shares = '; '.join(
    f'{name}: ' + share_text(sum(x < y for x, y in points), len(points))
    for name, points in zip(names, values, strict=True)
  )
  with figures.styled(5.4, 5.0) as figure:
    axes = figure.add_subplot()
    low, high = padded_limits(
      v for points in values for point in points for v in point
    )
    axes.axhline(0, color='#bbbbbb', linewidth=0.8)
    axes.axvline(0, color='#bbbbbb', linewidth=0.8)
    draw_diagonal(axes, min(low, 0.0), max(high, 0.0))
    handles = []
    for pair, name, points in zip(pairs, names, values, strict=True):
      rank = epochs.index(pair.fed_fish.num_local_epochs)
      look = {
        'color': EPOCH_HUES[rank % len(EPOCH_HUES)],
        'marker': MARKERS[rank % len(MARKERS)],
      }
      draw_points(axes, [x for x, _ in points], [y for _, y in points], look)
      handles.append(
        lines.Line2D(
          [],
          [],
          linestyle='none',
          label=figures.drawable(name),
          **look,
        )
      )
    axes.set_xlabel(f'FedFish: {words}')
    axes.set_ylabel(f'FedAvg: {words}')
    figures.add_legend(figure, handles)
    caption = (
      'One point per client of the replayed round. Barrier: the new global '
      'weights’ '
      + ('loss' if measure == 'loss' else 'error (1 − token accuracy)')
      + ' minus that of the client’s own trained weights, on the client’s '
      'training data; positive is worse. Above the diagonal the barrier is '
      f'lower under FedFish, for these shares of clients: {shares}.'
    )
    unmatched = sum(pair.num_unmatched for pair in pairs)
    if unmatched:
      caption += (
        f' Left out: {unmatched} rows of clients that appear under one '
        'method only.'
      )
    return figures.render(
      figure,
      name=f'barrier_{measure}',
      title=f'Client-Server Barrier in the {measure}, FedFish and FedAvg',
      caption=caption,
      alternative_text='Scatter plot of the Client-Server Barrier in the '
      f'{measure} per client, FedFish horizontally and FedAvg vertically. '
      f'Share of clients with the lower barrier under FedFish: {shares}.',
    )


def _pair_name(pair, pairs):
  epochs = pair.fed_fish.num_local_epochs
  same = [p for p in pairs if p.fed_fish.num_local_epochs == epochs]
  if len(same) > 1:
    return f'{pair.fed_fish.label} and {pair.fed_avg.label}'
  return 'all clients' if epochs is None else f'E = {epochs}'


def _local_global_figure(clients, styles):
  shares = '; '.join(
    f'{label}: '
    + share_text(sum(barrier_of(c, 'loss') > 0 for c in found), len(found))
    for label, found in clients.items()
  )
  with figures.styled(5.4, 5.0) as figure:
    axes = figure.add_subplot()
    low, high = padded_limits(
      value
      for found in clients.values()
      for c in found
      for value in (c.local_loss, c.global_loss)
    )
    draw_diagonal(axes, low, high)
    handles = []
    for label, found in clients.items():
      look = styles[label].marker_arguments()
      draw_points(
        axes,
        [c.local_loss for c in found],
        [c.global_loss for c in found],
        look,
      )
      handles.append(
        lines.Line2D(
          [], [], linestyle='none', label=figures.drawable(label), **look
        )
      )
    axes.set_xlabel('Loss of the client’s own weights (nats per token)')
    axes.set_ylabel('Loss of the new global weights (nats per token)')
    figures.add_legend(figure, handles)
    return figures.render(
      figure,
      name='barrier_local_global',
      title='Client-Server Barrier by run',
      caption='One point per client of the replayed round, on its training '
      'data. The height above the dashed diagonal is the client’s barrier. '
      f'Share of clients with a positive barrier: {shares}. There is no '
      'pair of a FedFish and a FedAvg run with equal local epochs to set '
      'against each other.',
      alternative_text='Scatter plot of the loss of the new global weights '
      'against the loss of each client’s own weights. Share of clients '
      f'above the diagonal: {shares}.',
    )
