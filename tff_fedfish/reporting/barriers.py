"""Scatters of the Client-Server Barrier.

A method against the baseline client by client, as in Figure 6 of Dhawan et al.
(2024), "Leveraging Function Space Aggregation for Federated Learning at
Scale"; their equation 5 defines the barrier.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib import cm, colormaps, colors, lines

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.barrier_pairs import (
  Pair,
  PairGroup,
  find_pairs,
  group_pairs,
)
from tff_fedfish.reporting.evaluations import barrier_of
from tff_fedfish.reporting.figure_numbers import record
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.scatters import (
  draw_diagonal,
  draw_points,
  padded_limits,
  record_clients,
  share_text,
)
from tff_fedfish.reporting.style import (
  EPOCH_HUES,
  MARKERS,
  RunStyle,
  local_epochs,
)
from tff_fedfish.reporting.words import words_of

_ROUND_COLORS = 'viridis'
_MAX_LISTED_ROUNDS = 6


def barrier_scatters(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns the barrier's scatter plots.

  Args:
    runs: The runs of the report, not pooled: other seeds have other cohorts.
    styles: Their looks, by label.

  Returns:
    Each method against the baseline in loss and in error if there is a pair,
    with a colour per round if there are several; else global against local loss
    of every run; nothing if no run has a barrier.
  """
  by_method: dict[str, list[Pair]] = {}
  for pair in find_pairs(runs):
    by_method.setdefault(pair.run.algorithm, []).append(pair)
  unit = f'nats per {words_of(runs).unit}'
  if by_method:
    epochs = local_epochs(runs)
    return [
      _pair_figure(
        group_pairs(pairs),
        epochs,
        measure_unit,
        measure,
        # A number, as a method's name may hold anything.
        f'barrier_{measure}' + f'_{number}' * (len(by_method) > 1),
      )
      for number, pairs in enumerate(by_method.values(), start=1)
      for measure, measure_unit in (
        ('loss', unit),
        ('error', 'percentage points'),
      )
    ]
  clients = {
    run.label: list(found.values())[-1]
    for run in runs
    if (found := run.barriers_by_round())
  }
  titles = dict.fromkeys(
    run.method for run in runs if run.algorithm != BASELINE.name
  )
  other = f'a {next(iter(titles))}' if len(titles) == 1 else 'another method’s'
  if not clients:
    return []
  return [_local_global_figure(clients, styles, unit, other)]


def _pair_figure(groups: Sequence[PairGroup], epochs, unit, measure, name):
  method = groups[0].pairs[0].run.method
  scale = 1.0 if measure == 'loss' else 100.0
  words = f'barrier in the {measure} ({unit})'
  points = {
    group.name: [pair.barriers(measure, scale) for pair in group.pairs]
    for group in groups
  }
  rounds = sorted({p.round_num for g in groups for p in g.pairs}, key=_or_first)
  # One panel per setting where colours stand for rounds, as in the paper.
  panels = [[g] for g in groups] if len(rounds) > 1 else [list(groups)]
  shares = '; '.join(
    f'{name}: ' + share_text(sum(x < y for x, y in flat), len(flat))
    for name, found in points.items()
    for flat in [[point for one in found for point in one]]
  )
  columns = min(2, len(panels))
  num_rows = -(-len(panels) // columns)
  size = (5.4, 5.0) if len(panels) == 1 else (4.3 * columns, 4.1 * num_rows)
  with figures.styled(*size) as figure:
    grid = figure.subplots(
      num_rows, columns, squeeze=False, sharex=True, sharey=True
    )
    limits = padded_limits(
      v for found in points.values() for o in found for xy in o for v in xy
    )
    handles = []
    for axes, panel in zip(grid.flat, panels, strict=False):
      _draw_axes(axes, limits)
      if len(panels) > 1:
        axes.set_title(figures.drawable(panel[0].name))
      for group in panel:
        handles += _draw_group(axes, group, points[group.name], epochs, rounds)
      axes.set_xlabel(f'{figures.drawable(method)}: {words}')
      axes.set_ylabel(f'{BASELINE.title}: {words}')
    for axes in grid.flat[len(panels) :]:
      axes.set_visible(False)
    if len(rounds) > 1:
      shown = cm.ScalarMappable(_round_scale(rounds), _ROUND_COLORS)
      bar = figure.colorbar(shown, ax=grid, label='Round', shrink=0.8)
      bar.ax.yaxis.set_major_locator(figures.whole_numbers())
    else:
      figures.add_legend(figure, handles)
    caption = (
      'One small point per client of a measured round; the large ones are '
      'the means over the clients of a round. Barrier: the new global weights’ '
      + ('loss' if measure == 'loss' else 'error (1 − accuracy)')
      + ' minus that of the client’s own trained weights, on the client’s '
      'training data; positive is worse. Above the diagonal the barrier is '
      f'lower under {method}, for these shares of clients: {shares}.'
    )
    if len(rounds) > 1:
      caption += f' Rounds: {_rounds_text(rounds)}.'
    unmatched = sum(pair.num_unmatched for g in groups for pair in g.pairs)
    if unmatched:
      caption += (
        f' Left out: {unmatched} rows of clients that appear under one '
        'method only.'
      )
    return figures.render(
      figure,
      name=name,
      title=f'Client-Server Barrier in the {measure}, {method} and '
      f'{BASELINE.title}',
      caption=caption,
      alternative_text='Scatter plot of the Client-Server Barrier in the '
      f'{measure} per client, {method} horizontally and {BASELINE.title} '
      f'vertically. Share of clients with the lower barrier under {method}: '
      f'{shares}.',
    )


def _draw_axes(axes, limits):
  low, high = limits
  axes.axhline(0, color='#bbbbbb', linewidth=0.8)
  axes.axvline(0, color='#bbbbbb', linewidth=0.8)
  draw_diagonal(axes, min(low, 0.0), max(high, 0.0))
  axes.tick_params(labelbottom=True, labelleft=True)


def _draw_group(axes, group, points, epochs, rounds):
  """Draws the points of a group and returns its entry of the legend."""
  rank = epochs.index(group.num_local_epochs)
  look = {
    'color': EPOCH_HUES[rank % len(EPOCH_HUES)],
    'marker': MARKERS[rank % len(MARKERS)],
  }
  means = []
  for pair, found in zip(group.pairs, points, strict=True):
    own = dict(look)
    if len(rounds) > 1:
      share = _round_scale(rounds)(pair.round_num or 0)
      own['color'] = colors.to_hex(colormaps[_ROUND_COLORS](share))
    draw_points(axes, [x for x, _ in found], [y for _, y in found], own)
    series = group.name
    if len(rounds) > 1:
      series += f', round {pair.round_num}'
    record_clients(axes, series, [mine.client_id for mine, _ in pair.clients])
    means.append((*np.mean(found, axis=0), own, f'{series}, mean'))
  for x, y, own, series in means:
    axes.plot(
      x, y, **own, markersize=9.0, markeredgecolor='#222222', linestyle='none'
    )
    record(axes, series, [x], [y])
  name = figures.drawable(group.name)
  return [lines.Line2D([], [], linestyle='none', label=name, **look)]


def _rounds_text(rounds):
  if len(rounds) > _MAX_LISTED_ROUNDS:
    return f'{len(rounds)} from {rounds[0]} to {rounds[-1]}'
  return ', '.join(map(str, rounds))


def _round_scale(rounds):
  return colors.Normalize(rounds[0] or 0, rounds[-1] or 0)


def _or_first(round_num):
  return -1 if round_num is None else round_num


def _local_global_figure(clients, styles, unit, other):
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
      record_clients(axes, label, [c.client_id for c in found])
      handles.append(
        lines.Line2D(
          [], [], linestyle='none', label=figures.drawable(label), **look
        )
      )
    axes.set_xlabel(f'Loss of the client’s own weights ({unit})')
    axes.set_ylabel(f'Loss of the new global weights ({unit})')
    figures.add_legend(figure, handles)
    return figures.render(
      figure,
      name='barrier_local_global',
      title='Client-Server Barrier by run',
      caption='One point per client of the last measured round, on its '
      'training data. The height above the dashed diagonal is the client’s '
      'barrier. '
      f'Share of clients with a positive barrier: {shares}. There is no '
      f'pair of {other} and a {BASELINE.title} run with equal local epochs to '
      'set against each other.',
      alternative_text='Scatter plot of the loss of the new global weights '
      'against the loss of each client’s own weights. Share of clients '
      f'above the diagonal: {shares}.',
    )
