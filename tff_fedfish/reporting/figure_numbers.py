"""The numbers of a figure as CSV, recorded where they are drawn."""

import csv
import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import figure as matplotlib_figure

from tff_fedfish.reporting.tables import csv_text

COLUMNS = ('series', 'point', 'x', 'y', 'low', 'high')
"""Columns of the CSV; `low` and `high` end an interval or a band around `y`."""


class RecordingFigure(matplotlib_figure.Figure):
  """A matplotlib figure that keeps the numbers that are drawn in it.

  Attributes:
    rows: Rows with `COLUMNS`, in the order of drawing.
  """

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self.rows: list[tuple] = []

  def numbers_csv(self) -> str:
    """Returns the numbers as a CSV file, in full precision."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(COLUMNS)
    for series, *values in self.rows:
      writer.writerow([csv_text(series), *map(_cell, values)])
    return file.getvalue()


def record(
  axes: Any,
  series: str,
  x: Sequence[float],
  y: Iterable[float | None],
  *,
  low: Iterable[float | None] = (),
  high: Iterable[float | None] = (),
  points: Iterable[Any] = (),
) -> None:
  """Adds points that are drawn to what the figure keeps.

  Args:
    axes: Axes of a `RecordingFigure`.
    series: What the points belong to, such as the label of a run.
    x: Where on the horizontal axis, in the unit of its ticks.
    y: Where on the vertical axis; None: nowhere, as of a vertical line.
    low: The lower ends of what is drawn around `y`; left out: nothing is.
    high: The upper ends.
    points: What each point stands for, such as a round or a client.
  """
  rows = itertools.zip_longest(points, x, y, low, high)
  axes.get_figure(root=True).rows += [(series, *row) for row in rows]


def _cell(value: Any) -> Any:
  # NumPy's scalars included: a Python number is written exactly.
  return '' if value is None else getattr(value, 'item', lambda: value)()
