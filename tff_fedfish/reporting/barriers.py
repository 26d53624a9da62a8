"""Scatters of the Client-Server Barrier, and which runs they compare.

A method against the baseline client by client, as in Figure 6 of Dhawan et al.
(2024), "Leveraging Function Space Aggregation for Federated Learning at
Scale"; their equation 5 defines the barrier.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib import cm, colormaps, colors

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import figures, match
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.scatters import (
  draw_clients,
  draw_diagonal,
  padded_limits,
  share_text,
)
from tff_fedfish.reporting.style import local_epochs, numbered_look, run_styles
from tff_fedfish.reporting.words import words_of

_ROUND_COLORS = 'viridis'
_MAX_LISTED_ROUNDS = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """One round of a run and a baseline that differ in the method only."""

  run: Run
  baseline: Run
  round_num: int | None
  """The round whose barrier was measured; None: not known."""
  clients: pd.DataFrame
  """`client_barriers` of those that took part in that round of both; columns of
  the baseline end with '_baseline'."""
  num_unmatched: int
  """Clients with a barrier in one of the two only."""

  def barriers(self, measure: str) -> np.ndarray:
    """Returns the barrier under the method and under the baseline.

    float64 [num_clients, 2]; 'loss' in nats or 'error' in percentage points.
    """
    both = (self.clients[f'{measure}{end}'] for end in ('', '_baseline'))
    return (100.0 if measure == 'error' else 1.0) * np.column_stack(list(both))


def barrier_scatters(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns the barrier of each method against the baseline, in loss and error.

  Several rounds have a colour each. Where no run has a partner: global against
  local loss of every run; nothing if none has a barrier. The runs are not
  pooled: other seeds have other cohorts.
  """
  by_method = match.grouped(find_pairs(runs), lambda p: p.run.algorithm)
  unit = f'nats per {words_of(runs).unit}'
  units = {'loss': unit, 'error': 'percentage points'}
  if not by_method:
    figure = _local_global_figure(runs, unit)
    return [figure] if figure else []
  return [
    _pair_figure(
      group_pairs(pairs),
      local_epochs(runs),
      f'barrier in the {measure} ({units[measure]})',
      measure,
      # A number, as a method's name may hold anything.
      f'barrier_{measure}' + f'_{number}' * (len(by_method) > 1),
    )
    for number, pairs in enumerate(by_method.values(), start=1)
    for measure in units
  ]


def find_pairs(runs: Sequence[Run]) -> list[Pair]:
  """Returns each method with the baseline, where local epochs are equal.

  There is a pair for each round whose barrier was measured for both, by method
  and local epochs, of `match.comparable` runs. Where a run has several
  baselines, it is paired with the one that agrees in learning rates, if any.
  """
  names = list(dict.fromkeys(run.algorithm for run in runs))
  measured = [run for run in runs if run.barriers_by_round()]
  # Ascending local epochs; None comes first.
  measured.sort(
    key=lambda run: (names.index(run.algorithm), run.num_local_epochs or -1)
  )
  baselines = match.grouped(
    (run for run in measured if run.is_baseline), match.comparable
  )
  pairs = []
  for run in measured:
    if not run.is_baseline:
      partner = _partner(run, baselines.get(match.comparable(run), []))
      pairs += _pairs(run, partner) if partner else ()
  return pairs


def group_pairs(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
  """Returns the pairs of one method by what they compare, such as 'E = 8'.

  Pairs of one name differ in round and seeds only.
  """

  def key(pair):
    methods = map(match.method_of, (pair.run, pair.baseline))
    return match.setting_of(pair.run), *methods

  groups = match.grouped(pairs, key)
  names = {}
  for epochs, keys in match.grouped(
    groups, lambda key: groups[key][0].run.num_local_epochs
  ).items():
    settings = [
      dict((*setting, *method))
      | {f'{name} of {BASELINE.title}': value for name, value in baseline}
      for setting, method, baseline in keys
    ]
    base = 'all clients' if epochs is None else f'E = {epochs}'
    for key, own in zip(keys, match.labels(settings), strict=True):
      names[key] = f'{base}, {own}' if own else base
  return {names[key]: found for key, found in groups.items()}


def _pair_figure(
  groups: dict[str, list[Pair]], epochs, words, measure, name
) -> figures.Figure:
  """Returns the barrier under a method against that under the baseline."""
  pairs = [pair for group in groups.values() for pair in group]
  method = pairs[0].run.method
  # An unknown round comes first.
  rounds = sorted(
    {p.round_num for p in pairs}, key=lambda r: (r is not None, r)
  )
  shares = '; '.join(
    f'{group}: '
    + share_text(
      x < y for pair in found for x, y in pair.barriers(measure).tolist()
    )
    for group, found in groups.items()
  )
  # One panel per setting where colours stand for rounds, as in the paper.
  panels = [[g] for g in groups] if len(rounds) > 1 else [list(groups)]
  columns = min(2, len(panels))
  size = (5.4, 5.0)
  if len(panels) > 1:
    size = (4.3 * columns, 4.1 * -(-len(panels) // columns))
  with figures.styled(*size) as figure:
    grid, found = figures.facets(
      figure, len(panels), columns, sharex=True, sharey=True
    )
    low, high = padded_limits(
      np.concatenate([pair.barriers(measure).ravel() for pair in pairs])
    )
    handles = []
    for axes, panel in zip(found, panels, strict=True):
      axes.axhline(0, color='#bbbbbb', linewidth=0.8)
      axes.axvline(0, color='#bbbbbb', linewidth=0.8)
      draw_diagonal(axes, min(low, 0.0), max(high, 0.0))
      axes.tick_params(labelbottom=True, labelleft=True)
      if len(panels) > 1:
        axes.set_title(figures.drawable(panel[0]))
      for group in panel:
        rank = epochs.index(groups[group][0].run.num_local_epochs)
        look = numbered_look(rank)
        _draw_group(axes, group, groups[group], measure, look, rounds)
        handles.append(figures.handle(group, linestyle='none', **look))
      axes.set_xlabel(f'{figures.drawable(method)}: {words}')
      axes.set_ylabel(f'{BASELINE.title}: {words}')
    if len(rounds) > 1:
      shown = cm.ScalarMappable(_round_scale(rounds), _ROUND_COLORS)
      bar = figure.colorbar(shown, ax=grid, label='Round', shrink=0.8)
      bar.ax.yaxis.set_major_locator(figures.whole_numbers())
    else:
      figures.add_legend(figure, handles)
    return figures.render(
      figure,
      name=name,
      title=f'Client-Server Barrier in the {measure}, {method} and '
      f'{BASELINE.title}',
      caption=_pair_caption(pairs, measure, rounds, shares),
      alternative_text='Scatter plot of the Client-Server Barrier in the '
      f'{measure} per client, {method} horizontally and {BASELINE.title} '
      f'vertically. Share of clients with the lower barrier under {method}: '
      f'{shares}.',
    )


def _pair_caption(pairs, measure, rounds, shares):
  quantity = 'loss' if measure == 'loss' else 'error (1 − accuracy)'
  caption = (
    'One small point per client of a measured round; the large ones are the '
    'means over the clients of a round. Barrier: the new global weights’ '
    f'{quantity} minus that of the client’s own trained weights, on the '
    'client’s training data. It ranks nothing. Above the diagonal the barrier '
    f'is lower under {pairs[0].run.method}, for these shares of clients: '
    f'{shares}. Pairs of runs have equal settings, seeds and measured rounds, '
    'and differ in the method and its optimizers only.'
  )
  if len(rounds) > _MAX_LISTED_ROUNDS:
    caption += f' Rounds: {len(rounds)} from {rounds[0]} to {rounds[-1]}.'
  elif len(rounds) > 1:
    caption += f' Rounds: {", ".join(map(str, rounds))}.'
  if unmatched := sum(pair.num_unmatched for pair in pairs):
    caption += (
      f' Left out: {unmatched} rows of clients that appear under one method '
      'only.'
    )
  return caption


def _draw_group(axes, group, pairs, measure, look, rounds):
  """Draws a point per client, and the means of rounds on top."""
  means = []
  for pair in pairs:
    own, series, barriers = look, group, pair.barriers(measure)
    if len(rounds) > 1:
      share = _round_scale(rounds)(pair.round_num or 0)
      color = colors.to_hex(colormaps[_ROUND_COLORS](share))
      own, series = {**look, 'color': color}, f'{group}, round {pair.round_num}'
    draw_clients(axes, series, pair.clients, *barriers.T, own)
    means.append((*barriers.mean(axis=0), own, f'{series}, mean'))
  for x, y, own, series in means:
    axes.plot(
      x, y, **own, markersize=9.0, markeredgecolor='#222222', linestyle='none'
    )
    figures.record(axes, series, [x], [y])


def _round_scale(rounds):
  return colors.Normalize(rounds[0] or 0, rounds[-1] or 0)


def _local_global_figure(runs, unit) -> figures.Figure | None:
  """Returns global against local loss of every run with a barrier, if any."""
  clients = {
    run.label: list(found.values())[-1]
    for run in runs
    if (found := run.barriers_by_round())
  }
  if not clients:
    return None
  titles = {run.method for run in runs if not run.is_baseline}
  other = f'a {titles.pop()}' if len(titles) == 1 else 'another method’s'
  shares = '; '.join(
    f'{label}: {share_text(found["loss"] > 0)}'
    for label, found in clients.items()
  )
  styles = run_styles(runs)
  with figures.styled(5.4, 5.0) as figure:
    axes = figure.add_subplot()
    limits = padded_limits(
      value
      for found in clients.values()
      for value in (*found['local_loss'], *found['global_loss'])
    )
    draw_diagonal(axes, *limits)
    handles = []
    for label, found in clients.items():
      look = styles[label].marker_arguments()
      losses = found['local_loss'], found['global_loss']
      draw_clients(axes, label, found, *losses, look)
      handles.append(figures.handle(label, linestyle='none', **look))
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


def _partner(run: Run, baselines: Sequence[Run]) -> Run | None:
  """Returns the only baseline, or the only one of equal optimizers, if any."""
  if len(baselines) > 1:
    own = match.optimizers_of(run)
    baselines = [b for b in baselines if match.optimizers_of(b) == own]
  return baselines[0] if len(baselines) == 1 else None


def _pairs(run: Run, baseline: Run) -> Iterator[Pair]:
  others = baseline.barriers_by_round()
  for round_num, own in run.barriers_by_round().items():
    if round_num in others:
      other = others[round_num]
      both = own.merge(other, on='client_id', suffixes=('', '_baseline'))
      num_unmatched = len(own) + len(other) - 2 * len(both)
      if len(both):
        yield Pair(run, baseline, round_num, both, num_unmatched)
