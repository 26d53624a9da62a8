"""Draws the toy regression: functions above, barriers below."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import lines

from tff_fedfish.methods import registry
from tff_fedfish.reporting import figures, scatters, style
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.toy.results import (
  GRID,
  METHODS,
  OVERLAPS,
  Round,
  findings,
  signed,
)

CLIENT_COLORS = style.EPOCH_HUES[:2]
"""Colours of client 1 and client 2."""

METHOD_STYLES = {
  method.name: style.RunStyle(
    color=method.hue,
    marker='o',
    line=line,
    hatch=method.hatch,
  )
  for method, line in zip(
    map(registry.find, METHODS), ((0, (5, 2)), '-'), strict=True
  )
}
"""Looks of the methods by name, in the report's colours."""

_CLIENT_MARKERS = style.MARKERS[:2]
_SUPPORT_COLORS = style.EPOCH_HUES[2:]
# As in the paper's figure 2.
_SUPPORT_MARKERS = ('P', 'o', '*')
_CONSTANT_LINE = {
  'color': '#777777',
  'linestyle': (0, (1, 1.5)),
  'linewidth': 1.4,
}


def toy_figure(
  rounds: Mapping[str, Round], numbers: dict[str, Any]
) -> figures.Figure:
  """Returns the figure.

  Args:
    rounds: Rounds of the first seed by support, whose functions are drawn.
    numbers: Contents of toy.json.

  Returns:
    Above, for each support, the data, the local models and both global models;
    below, the barriers of all seeds, and those of all clients.
  """
  with figures.styled(width=10.8, height=7.6) as figure:
    # Halves apart: the panels above are not to follow the axes below.
    above, below = figure.subfigures(2, 1)
    panels = above.subplots(1, len(rounds), sharey=True)
    for axes, (support, round_) in zip(panels, rounds.items(), strict=True):
      _draw_functions(axes, round_)
      axes.set_title(OVERLAPS[support].capitalize())
    panels[0].set_ylabel('f(x)')
    left, right = below.subplots(1, 2, width_ratios=(5, 3))
    _draw_seeds(left, numbers)
    _draw_clients(right, numbers)
    figures.add_legend(figure, _handles())
    sentence = findings(numbers)
    return figures.render(
      figure,
      name='toy',
      title='Two clients, one round',
      caption='Above, seed 0: the clients’ data (points), their local models '
      '(thin lines, paler where a client has no data), and the global models '
      'made of them. Curves may leave the panels. Below, left: the '
      'Client-Server Barrier in mean squared error, lower is better; small '
      'marks are seeds, large ones means with 95 % bootstrap intervals over '
      'seeds; the dotted line is the barrier of the constant that fits both '
      'clients best. Below, right: the same client by client; above the dashed '
      f'diagonal a client’s barrier is lower under FedFish. {sentence}',
      alternative_text='Three panels with the functions that two clients, '
      'FedAvg and FedFish learned from data with full, partial and no overlap, '
      'a dot chart of the barrier by overlap and method, and a scatter plot of '
      f'the barrier of each client. {sentence}',
    )


def _draw_functions(axes, round_):
  for client, color in enumerate(CLIENT_COLORS):
    inputs = round_.inputs[client]
    axes.plot(
      inputs,
      round_.targets[client],
      linestyle='none',
      marker=_CLIENT_MARKERS[client],
      color=color,
      markersize=3.4,
      markeredgewidth=0.0,
      alpha=0.45,
    )
    curve = round_.curves[f'client_{client + 1}']
    inside = (inputs.min() <= GRID) & (inputs.max() >= GRID)
    axes.plot(GRID, curve, color=color, linewidth=1.1, alpha=0.45)
    axes.plot(GRID[inside], curve[inside], color=color, linewidth=1.1)
  for method, look in METHOD_STYLES.items():
    axes.plot(
      GRID,
      round_.curves[method],
      color=look.color,
      linestyle=look.line,
      linewidth=2.0,
    )
  axes.set_xlabel('x')
  axes.set_xlim(GRID[0], GRID[-1])
  # What local models do away from their data must not set the scale.
  axes.set_ylim(-2.2, 2.2)


def _draw_seeds(axes, numbers):
  axes.axhline(0, color='#bbbbbb', linewidth=0.8)
  for x, (support, summary) in enumerate(numbers['summary'].items()):
    constant = summary['best_constant_barrier']
    axes.hlines(constant, x - 0.42, x + 0.42, **_CONSTANT_LINE)
    for side, method in zip((-1, 1), METHODS, strict=True):
      look = METHOD_STYLES[method].marker_arguments()
      barriers = [
        seed['supports'][support]['barrier'][method]
        for seed in numbers['seeds']
      ]
      # Beside each other in the order of the seeds, outside of the mean.
      spread = np.linspace(-0.07, 0.07, len(barriers))
      scatters.draw_points(axes, x + 0.30 * side + spread, barriers, look)
      interval = Interval(**summary['barrier'][method])
      _draw_mean(axes, x + 0.13 * side, interval, look)
  axes.set_xticks(
    range(len(numbers['summary'])),
    [OVERLAPS[support].capitalize() for support in numbers['summary']],
  )
  axes.tick_params(axis='x', length=0)
  axes.grid(visible=False, axis='x')
  axes.set_xlim(-0.5, len(numbers['summary']) - 0.5)
  axes.set_ylabel('Client-Server Barrier (MSE)')


def _draw_mean(axes, x, interval, look):
  figures.draw_whisker(axes, x, interval, color=look['color'], linewidth=1.5)
  axes.plot(x, interval.mean, **{**look, 'markersize': 7})
  axes.annotate(
    signed(interval.mean),
    (x, max(interval.mean, interval.ci_high)),
    xytext=(0, 3),
    textcoords='offset points',
    ha='center',
    va='bottom',
    fontsize=8.0,
    color='#222222',
  )


def _draw_clients(axes, numbers):
  # [seeds, clients, methods] per support.
  barriers = {
    support: np.array(
      [
        [
          [client[f'{m}_mse'] - client['local_mse'] for m in METHODS]
          for client in seed['supports'][support]['clients']
        ]
        for seed in numbers['seeds']
      ]
    )
    for support in numbers['summary']
  }
  low, high = scatters.padded_limits(np.ravel(list(barriers.values())))
  scatters.draw_diagonal(axes, min(low, 0.0), max(high, 0.0))
  for support, color, marker in zip(
    barriers, _SUPPORT_COLORS, _SUPPORT_MARKERS, strict=True
  ):
    fed_avg, fed_fish = np.moveaxis(barriers[support], -1, 0)
    look = {'color': color, 'marker': marker}
    scatters.draw_points(axes, fed_fish.ravel(), fed_avg.ravel(), look)
    axes.lines[-1].set_label(OVERLAPS[support])
  axes.set_xlabel('FedFish: barrier of a client')
  axes.set_ylabel('FedAvg: barrier of a client')
  axes.legend(loc='lower right', fontsize=9.0)


def _handles():
  clients = [
    {'color': color, 'marker': marker, 'markersize': 4.5, 'linewidth': 1.1}
    for color, marker in zip(CLIENT_COLORS, _CLIENT_MARKERS, strict=True)
  ]
  looks = {
    'client 1': clients[0],
    'client 2': clients[1],
    **{
      METHODS[method]: {**look.line_arguments(), 'linewidth': 2.0}
      for method, look in METHOD_STYLES.items()
    },
    'best constant': _CONSTANT_LINE,
  }
  return [lines.Line2D([], [], label=key, **looks[key]) for key in looks]
