"""Draws a plot: lines, bars or points, in panels."""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import figure as matplotlib_figure
from matplotlib import ticker

from tff_fedfish.reporting import labels
from tff_fedfish.reporting.style import PLAIN, RC_PARAMS

if typing.TYPE_CHECKING:
  from tff_fedfish.reporting.plots import Plot

# Every figure is as wide as one of two beside each other on a page, and has
# letters of one size there, on a phone, too.
_WIDTH_INCHES = 5.4
_PANEL_CHARACTERS = 26
# Characters of a line of a panel's title, by columns of panels.
_TITLE_CHARACTERS = {1: 54, 2: 26, 3: 17}
_MAX_LABELLED_BARS = 8
_MAX_TICKS = 8
# Beyond this many points a vector picture is slow to draw and large.
_MAX_VECTOR_POINTS = 2_000


def draw(plot: 'Plot') -> matplotlib_figure.Figure:
  """Returns the figure: panels below each other, those of a scatter in a grid.

  It is laid out once, for all file formats: that takes a third of the time.
  """
  names = plot.panel_names
  columns = _num_columns(plot)
  rows = -(-len(names) // columns)
  height = 4.6 / columns if plot.kind == 'scatter' else 2.5
  figure = matplotlib_figure.Figure(
    figsize=(_WIDTH_INCHES, max(rows * height, 3.2)), layout='constrained'
  )
  grid = figure.subplots(
    rows,
    columns,
    squeeze=False,
    sharex=plot.panels != 'x',
    sharey=plot.panels != 'y',
  )
  for axes in grid.flat[len(names) :]:
    axes.set_visible(False)
  for position, (axes, name) in enumerate(zip(grid.flat, names, strict=False)):
    _DRAWERS[plot.kind](axes, plot.table[plot.table['panel'] == name], plot)
    if plot.log_y:
      axes.set_yscale('log')
      axes.yaxis.set_major_formatter(labels.short_tick)
      axes.yaxis.set_minor_formatter(ticker.LogFormatter())
    if plot.kind == 'bar':
      axes.axhline(0, color='0.35', linewidth=0.9)
    if position + columns >= len(names):
      axes.tick_params(labelbottom=True)
    if plot.panels:
      width = 2 * _PANEL_CHARACTERS if plot.panels == 'x' else _PANEL_CHARACTERS
      getattr(axes, f'set_{plot.panels}label')(labels.wrapped(name, width, 2))
    elif name:
      title = labels.wrapped(name, _TITLE_CHARACTERS[columns], 3)
      axes.set_title(title, fontsize=9.0)
  if plot.panels != 'x':
    figure.supxlabel(plot.x, fontsize=RC_PARAMS['axes.labelsize'])
  if plot.panels != 'y':
    figure.supylabel(plot.y, fontsize=RC_PARAMS['axes.labelsize'])
  _add_legend(figure, plot)
  figure.get_layout_engine().execute(figure)
  figure.set_layout_engine('none')
  return figure


def _num_columns(plot) -> int:
  names = plot.panel_names
  if plot.kind != 'scatter' or len(names) == 1:
    return 1
  # Names in full come before large panels.
  is_long = max(map(len, names)) > 2.5 * _TITLE_CHARACTERS[3]
  return 2 if len(names) <= 6 or is_long else 3


def _add_legend(figure, plot) -> None:
  """Puts a legend above the panels, unless their titles name the series."""
  table = plot.table
  if set(table['series']) <= {''}:
    return
  if (table['series'] == table['panel']).all():
    return
  handles = {}
  for axes in figure.axes:
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
      handles.setdefault(label, handle)
  longest = max(map(len, handles))
  # In characters of the legend's size.
  room = 11.4 * _WIDTH_INCHES
  columns = max(1, min(len(handles), int(room / (longest + 7))))
  rows = -(-len(handles) // columns)
  figure.set_figheight(figure.get_figheight() + 0.22 * max(0, rows - 1))
  figure.legend(
    handles.values(),
    handles.keys(),
    loc='outside upper left',
    ncols=columns,
    borderaxespad=0.2,
    handlelength=1.2 if plot.kind in ('point', 'scatter') else 2.4,
    columnspacing=1.4,
  )


def _line(axes, table: pd.DataFrame, plot) -> None:
  places = sorted(table['x'].unique())
  groups = table.groupby('series', sort=False)
  for position, (name, rows) in enumerate(groups):
    rows, look = rows.sort_values('x'), plot.looks.get(name, PLAIN)
    x = rows['x'].to_numpy(float)
    if _has_ends(rows) and plot.log_x:
      # Apart, so that whiskers do not hide each other.
      x = x * 1.03 ** (position - (len(groups) - 1) / 2)
      _whiskers(axes, x, rows, look.color)
    elif _has_ends(rows):
      ends = rows['low'].astype(float), rows['high'].astype(float)
      axes.fill_between(x, *ends, color=look.color, alpha=0.15, linewidth=0)
    axes.plot(
      x,
      rows['y'],
      label=labels.of_series(name),
      markevery=max(1, len(rows) // 12),
      linestyle=look.line,
      **look.marker_arguments(),
    )
  axes.margins(x=0.06)
  if plot.log_x and len(places) <= _MAX_TICKS:
    axes.set_xscale('log', base=2)
    axes.set_xticks(places, [f'{place:,.6g}' for place in places])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
  elif plot.log_x:
    axes.set_xscale('log')
    axes.xaxis.set_major_formatter(labels.short_tick)
  else:
    locator = ticker.MaxNLocator(nbins=7, integer=True, min_n_ticks=1)
    axes.xaxis.set_major_locator(locator)


def _bar(axes, table: pd.DataFrame, plot) -> None:
  """Draws bars from 0, or points where bars would hide small differences."""
  names = list(dict.fromkeys(table['series']))
  # The panels share the axis.
  places = list(dict.fromkeys(plot.table['x']))
  if pd.api.types.is_numeric_dtype(plot.table['x']):
    places.sort()
  width = 0.84 / len(names)
  for position, name in enumerate(names):
    rows, look = table[table['series'] == name], plot.looks.get(name, PLAIN)
    x = np.array([places.index(place) for place in rows['x']])
    x = x + (position - (len(names) - 1) / 2) * width
    label = labels.of_series(name)
    if plot.kind == 'point':
      look = look.marker_arguments() | {'markersize': 7}
      axes.plot(x, rows['y'], linestyle='none', label=label, **look)
    else:
      axes.bar(x, rows['y'], 0.94 * width, label=label, **look.face())
    if _has_ends(rows):
      _whiskers(axes, x, rows, '#222222')
    for place, row in zip(x, rows.itertuples(), strict=True):
      if len(table) <= _MAX_LABELLED_BARS:
        _label_bar(axes, place, row, plot)
  # Whole labels stand above and below the last bars.
  axes.margins(y=0.14)
  names = [labels.wrapped(labels.tick(place), 24, 3) for place in places]
  # Long names would run into each other.
  turned = {'rotation': 20, 'ha': 'right', 'rotation_mode': 'anchor'}
  is_long = sum(map(len, names)) > labels.MAX_CHARACTERS
  axes.set_xticks(range(len(places)), names, **turned if is_long else {})
  axes.set_xlim(-0.55, len(places) - 0.45)
  axes.tick_params(axis='x', length=0)
  axes.grid(visible=False, axis='x')


def _label_bar(axes, x: float, row: Any, plot) -> None:
  sign = '+' if plot.kind == 'bar' else ''
  is_below = plot.kind == 'bar' and row.y < 0
  end = getattr(row, 'low' if is_below else 'high', None)
  axes.annotate(
    f'{row.y:{sign}.{row.places}f}'.replace('-', '−'),
    (x, row.y if end is None or pd.isna(end) else end),
    xytext=(0, -3 if is_below else 3),
    textcoords='offset points',
    ha='center',
    va='top' if is_below else 'bottom',
    fontsize=9,
  )


def _scatter(axes, table: pd.DataFrame, plot) -> None:
  for name, rows in table.groupby('series', sort=False):
    axes.plot(
      rows['x'],
      rows['y'],
      linestyle='none',
      alpha=0.65,
      label=labels.of_series(name),
      rasterized=len(rows) > _MAX_VECTOR_POINTS,
      **plot.looks.get(name, PLAIN).marker_arguments()
      | {'markersize': 4.2, 'markeredgewidth': 0.9},
    )
  axes.locator_params(nbins={1: 6, 2: 4}.get(_num_columns(plot), 2))
  values = plot.table[['x', 'y']].to_numpy(float)
  pad = 0.05 * (values.max() - values.min()) or 0.5
  limits = values.min() - pad, values.max() + pad
  axes.plot(limits, limits, '--', color='#777777', linewidth=1, zorder=1)
  axes.set(xlim=limits, ylim=limits, aspect='equal')


_DRAWERS: dict[str, Callable] = {
  'line': _line,
  'bar': _bar,
  'point': _bar,
  'scatter': _scatter,
}


def _has_ends(rows: pd.DataFrame) -> bool:
  return 'low' in rows and bool(rows['low'].notna().any())


def _whiskers(axes, x: np.ndarray, rows: pd.DataFrame, color: str) -> None:
  y, low, high = (rows[name].to_numpy(float) for name in ('y', 'low', 'high'))
  # A skewed interval may exclude the mean: no arm is negative.
  arms = [(y - low).clip(min=0), (high - y).clip(min=0)]
  axes.errorbar(
    x,
    y,
    yerr=arms,
    color=color,
    linestyle='none',
    linewidth=1.1,
    capsize=2.5,
  )
