"""Plots of tidy tables: a row per point, bar or cell.

A `Plot` is a table with its words. The table is also the CSV file of the
figure, and the alternative text is read from it. No global state of matplotlib
is used.
"""

import dataclasses
import functools
import io
import re
from collections.abc import Mapping
from typing import Any

import markupsafe
import numpy as np
import pandas as pd
from matplotlib import figure as matplotlib_figure
from matplotlib import rc_context

from tff_fedfish.files import csv_file
from tff_fedfish.reporting import drawing, labels
from tff_fedfish.reporting.style import RC_PARAMS, Look

# Columns of a plot's table, and of its CSV file; empty ones are left out.
_COLUMNS = ('panel', 'series', 'point', 'x', 'y', 'low', 'high')
_MAX_SAID = 12
_NOUNS = {
  'line': 'Line chart',
  'bar': 'Bar chart',
  'point': 'Point chart',
  'scatter': 'Scatter plot',
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Plot:
  """A table to draw, and the words that belong to it."""

  name: str
  """File name without suffix: lower-case letters, digits and '_'."""
  title: str
  caption: str
  """Text on how to read the plot."""
  kind: str
  """'line'; 'bar', of a difference from 0; 'point', at the end of a bar; or
  'scatter', with the diagonal."""
  table: pd.DataFrame
  """Columns `series`, `x`, `y`, any other of `_COLUMNS`, and `places`, decimal
  places in words."""
  x: str
  """Label of the horizontal axis, with its unit."""
  y: str
  looks: Mapping[str, Look] = dataclasses.field(default_factory=dict)
  """The look of each series; a plain one for those that are not there."""
  panels: str = ''
  """'x' or 'y' if the name of a panel is the label of that axis, which the
  panels then do not share; '' if it is a title."""
  log_x: bool = False
  log_y: bool = False

  @property
  def panel_names(self) -> list[str]:
    """The panels, in the order of the table."""
    return list(dict.fromkeys(self.table['panel']))

  @property
  def csv(self) -> str:
    """The table as a CSV file, in full precision."""
    table = self.table.reindex(columns=list(_COLUMNS)).dropna(axis=1, how='all')
    if self.panel_names == ['']:
      table = table.drop(columns='panel')
    table = table.astype(object).where(table.notna(), None)
    return csv_file(list(table.columns), table.itertuples(index=False))

  @property
  def words(self) -> str:
    """The plot for somebody who cannot see it."""
    groups = self.table.groupby(['panel', 'series'], sort=False)
    parts = [
      ': '.join(dict.fromkeys(filter(None, (*names, self._say(rows)))))
      for names, rows in groups
    ]
    return f'{_NOUNS[self.kind]}. {self.title}. {"; ".join(parts)}.'

  @functools.cached_property
  def svg(self) -> markupsafe.Markup:
    """One `<svg>` element that can stand inside HTML."""
    svg = self._saved('svg', {'Date': None, 'Creator': None}).decode()
    svg = svg[svg.index('<svg') :]
    svg = re.sub(r'<!--.*?-->|<metadata>.*?</metadata>', '', svg, flags=re.S)
    # Ids are unique within the page.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf'\g<1>{self.name}-', svg)
    opening, rest = svg.split('>', 1)
    opening = re.sub(r' (width|height)="[^"]*"', '', opening)
    label = markupsafe.escape(self.words)
    return markupsafe.Markup(
      f'{opening} role="img" aria-label="{label}">{rest}'
    )

  def file(self, file_format: str) -> bytes:
    """Returns a 'png', 'svg' or 'pdf'; equal plots give equal bytes."""
    if file_format == 'svg':
      return f'{self.svg}\n'.encode()
    if file_format == 'png':
      return self._saved('png', {'Software': None})
    nothing = dict.fromkeys(('CreationDate', 'Creator', 'Producer'))
    return self._saved('pdf', nothing | {'Title': self.title})

  def _saved(self, file_format: str, metadata: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    with rc_context(RC_PARAMS):
      self._figure.savefig(data, format=file_format, metadata=metadata)
    return data.getvalue()

  @functools.cached_property
  def _figure(self) -> matplotlib_figure.Figure:
    with rc_context(RC_PARAMS):
      return drawing.draw(self)

  def _say(self, rows: pd.DataFrame) -> str:
    if self.kind == 'scatter':
      num_below = (rows['y'].astype(float) < rows['x'].astype(float)).sum()
      return f'{num_below} of {len(rows)} points below the diagonal'
    if len(rows) > _MAX_SAID or self.kind == 'line':
      # The first and the last.
      rows = rows.iloc[:: max(len(rows) - 1, 1)]
    return ', '.join(
      f'{row.y:.{row.places}f}'
      + (f' at {labels.tick(row.x)}' if row.x != '' else '')
      for row in rows.itertuples()
    )


def plot(table: pd.DataFrame, *, places: int = 3, **words: Any) -> Plot | None:
  """Returns a plot of the rows with finite numbers; None without any.

  `words` are the other fields of `Plot`. The table may lack `panel`, `series`
  where there is one, and `places`.
  """
  defaults = {'panel': '', 'series': '', 'places': places}
  table = table.assign(**{n: d for n, d in defaults.items() if n not in table})
  is_finite = np.isfinite(table['y'].astype(float))
  if pd.api.types.is_numeric_dtype(table['x']):
    is_finite &= np.isfinite(table['x'].astype(float))
  table = table[is_finite]
  return Plot(table=table, **words) if len(table) else None
