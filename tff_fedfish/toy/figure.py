"""Draws the toy regression: functions above, barriers below."""

import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib import lines

from tff_fedfish.reporting import figures, scatters, style
from tff_fedfish.reporting.runs import Run
from tff_fedfish.toy import task
from tff_fedfish.toy.results import (
  METHODS,
  Round,
  SupportSummary,
  findings,
  signed,
)

CLIENT_COLORS = style.EPOCH_HUES[:2]
"""Colours of client 1 and client 2."""

_CLIENT_MARKERS = style.MARKERS[:2]
_SUPPORT_COLORS = style.EPOCH_HUES[2:]
# As in the paper's figure 2.
_SUPPORT_MARKERS = ('P', 'o', '*')
_CONSTANT_LINE = {
  'color': '#777777',
  'linestyle': (0, (1, 1.5)),
  'linewidth': 1.4,
}
_METHOD_LINES = {'fed_avg': (0, (5, 2)), 'fed_fish': '-'}


def method_styles() -> dict[str, style.RunStyle]:
  """Returns the looks that the report gives to the methods, by name."""
  runs = [
    Run(
      directory=pathlib.Path(),
      name=method,
      label=method,
      config={'algorithm': {'name': method}},
      metrics=(),
      timings=(),
      environment={},
      evaluations=(),
    )
    for method in METHODS
  ]
  return style.run_styles(runs)


def toy_figure(
  seeds: Sequence[Sequence[Round]], summaries: Sequence[SupportSummary]
) -> figures.Figure:
  """Returns the figure.

  Args:
    seeds: For each seed its rounds; the functions of the first are drawn.
    summaries: Of all of them, in the same order of supports.

  Returns:
    Above, for each support, the data, the local models and both global models;
    below, the barriers of all seeds, and those of all clients.
  """
  looks = method_styles()
  with figures.styled(width=10.8, height=7.6) as figure:
    # Halves apart: the panels above are not to follow the axes below.
    above, below = figure.subfigures(2, 1)
    for axes, round_, summary in zip(
      above.subplots(1, len(summaries), sharey=True),
      seeds[0],
      summaries,
      strict=True,
    ):
      _draw_functions(axes, round_, looks)
      axes.set_title(summary.overlap.capitalize())
    above.axes[0].set_ylabel('f(x)')
    left, right = below.subplots(1, 2, width_ratios=(5, 3))
    _draw_seeds(left, seeds, summaries, looks)
    _draw_clients(right, seeds, summaries)
    figures.add_legend(figure, _handles(looks))
    sentence = findings(summaries)
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


def _draw_functions(axes, round_, looks):
  for client, (inputs, targets) in enumerate(
    zip(round_.inputs, round_.targets, strict=True)
  ):
    color = CLIENT_COLORS[client]
    axes.plot(
      inputs,
      targets,
      linestyle='none',
      marker=_CLIENT_MARKERS[client],
      color=color,
      markersize=3.4,
      markeredgewidth=0.0,
      alpha=0.45,
    )
    curve = round_.curves[f'client_{client + 1}']
    inside = (task.GRID >= inputs.min()) & (task.GRID <= inputs.max())
    axes.plot(task.GRID, curve, color=color, linewidth=1.1, alpha=0.45)
    axes.plot(task.GRID[inside], curve[inside], color=color, linewidth=1.1)
  for method in METHODS:
    axes.plot(
      task.GRID, round_.curves[method], **_line(method, looks[method].color)
    )
  axes.set_xlabel('x')
  axes.set_xlim(task.GRID[0], task.GRID[-1])
  # What local models do away from their data must not set the scale.
  axes.set_ylim(-2.2, 2.2)


def _draw_seeds(axes, seeds, summaries, looks):
  axes.axhline(0, color='#bbbbbb', linewidth=0.8)
  for position, summary in enumerate(summaries):
    axes.hlines(
      summary.constant_barrier,
      position - 0.42,
      position + 0.42,
      **_CONSTANT_LINE,
    )
    for side, method in zip((-1, 1), METHODS, strict=True):
      look = looks[method].marker_arguments()
      values = [rounds[position].barrier(method) for rounds in seeds]
      # Beside each other in the order of the seeds, outside of the mean.
      spread = np.linspace(-0.07, 0.07, len(values))
      scatters.draw_points(
        axes, position + 0.30 * side + spread, values,
        look,
      )  # fmt: skip
      _draw_mean(axes, position + 0.13 * side, summary.barriers[method], look)
  axes.set_xticks(
    range(len(summaries)), [s.overlap.capitalize() for s in summaries]
  )
  axes.tick_params(axis='x', length=0)
  axes.grid(visible=False, axis='x')
  axes.set_xlim(-0.5, len(summaries) - 0.5)
  axes.set_ylabel('Client-Server Barrier (MSE)')


def _draw_mean(axes, x, interval, look):
  mean = interval.mean
  figures.draw_whisker(axes, x, interval, color=look['color'], linewidth=1.5)
  axes.plot(x, mean, **{**look, 'markersize': 7})
  axes.annotate(
    signed(mean),
    (x, max(mean, interval.ci_high)),
    xytext=(0, 3),
    textcoords='offset points',
    ha='center',
    va='bottom',
    fontsize=8.0,
    color='#222222',
  )


def _draw_clients(axes, seeds, summaries):
  points = [
    [
      pair
      for rounds in seeds
      for pair in zip(
        rounds[position].client_barriers('fed_fish'),
        rounds[position].client_barriers('fed_avg'),
        strict=True,
      )
    ]
    for position in range(len(summaries))
  ]
  low, high = scatters.padded_limits(
    value for pairs in points for pair in pairs for value in pair
  )
  scatters.draw_diagonal(axes, min(low, 0.0), max(high, 0.0))
  for pairs, summary, color, marker in zip(
    points, summaries, _SUPPORT_COLORS, _SUPPORT_MARKERS, strict=True
  ):
    scatters.draw_points(
      axes,
      [x for x, _ in pairs],
      [y for _, y in pairs],
      {'color': color, 'marker': marker},
    )
    axes.lines[-1].set_label(summary.overlap)
  axes.set_xlabel('FedFish: barrier of a client')
  axes.set_ylabel('FedAvg: barrier of a client')
  axes.legend(loc='lower right', fontsize=9.0)


def _handles(looks):
  handles = [
    lines.Line2D(
      [],
      [],
      color=color,
      marker=marker,
      markersize=4.5,
      linewidth=1.1,
      label=f'client {number}',
    )
    for number, (color, marker) in enumerate(
      zip(CLIENT_COLORS, _CLIENT_MARKERS, strict=True), start=1
    )
  ]
  handles += [
    lines.Line2D(
      [],
      [],
      label=name,
      **{
        **looks[method].marker_arguments(),
        **_line(method, looks[method].color),
      },
    )
    for method, name in METHODS.items()
  ]
  constant = lines.Line2D([], [], label='best constant', **_CONSTANT_LINE)
  return [*handles, constant]


def _line(method, color):
  return {'color': color, 'linestyle': _METHOD_LINES[method], 'linewidth': 2.0}
