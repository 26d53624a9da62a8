"""From a matplotlib figure to SVG, PNG, PDF and CSV, without global state."""

import contextlib
import dataclasses
import io
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import markupsafe
import numpy as np
from matplotlib import figure as matplotlib_figure
from matplotlib import font_manager, ft2font, lines, rc_context, ticker

from tff_fedfish.files import csv_file
from tff_fedfish.reporting import style
from tff_fedfish.reporting.evaluations import Interval

COLUMNS = ('series', 'point', 'x', 'y', 'low', 'high')
"""Columns of the CSV; `low` and `high` end an interval or a band around `y`."""

# Width of a plot beside which another one stands, usually and at most.
_NARROW_INCHES = 5.4
_MAX_NARROW_INCHES = 6.5
# As wide as two narrow ones: letters then are of the same size.
_WIDE_INCHES = 10.8
# Characters of a line.
_LABEL_WIDTH = 44


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
    return csv_file(COLUMNS, self.rows)


@dataclasses.dataclass(frozen=True)
class Figure:
  """A plot with the words that belong to it."""

  name: str
  """File name without suffix, and prefix of the ids in the SVG."""
  title: str
  """A few words, shown above the plot."""
  caption: str
  """Text on what the plot shows, how to read it and what it leaves out."""
  alternative_text: str
  """Text for somebody who cannot see the plot."""
  svg: markupsafe.Markup
  """One `<svg>` element that can stand inside HTML."""
  png: bytes
  """The same picture as a PNG file."""
  is_wide: bool
  """Whether the plot needs the whole width of the page."""
  csv: str
  """The numbers that are drawn, with `COLUMNS`."""
  drawn: RecordingFigure
  """The figure that they are drawn in."""

  def file(self, file_format: str) -> bytes:
    """Returns a 'png', 'svg' or 'pdf'; equal plots give equal bytes."""
    if file_format == 'png':
      return self.png
    if file_format == 'svg':
      return f'{self.svg}\n'.encode()
    pdf = io.BytesIO()
    metadata = dict.fromkeys(('CreationDate', 'Creator', 'Producer'))
    with rc_context(style.RC_PARAMS):
      self.drawn.savefig(
        pdf, format='pdf', metadata={**metadata, 'Title': self.title}
      )
    return pdf.getvalue()


@contextlib.contextmanager
def styled(
  width: float = _NARROW_INCHES, height: float = 3.7
) -> Iterator[RecordingFigure]:
  """Yields an empty figure of some inches, to `render` in this context."""
  with rc_context(style.RC_PARAMS):
    yield RecordingFigure(figsize=(width, height), layout='constrained')


def fitting_width(wanted: float) -> float:
  """Returns the inches of a plot that needs some: of one plot, or of two."""
  if wanted <= _MAX_NARROW_INCHES:
    return max(wanted, _NARROW_INCHES)
  return max(wanted, _WIDE_INCHES)


def facets(
  figure: RecordingFigure, num_panels: int, num_columns: int, **sharing: Any
) -> tuple[np.ndarray, list]:
  """Returns a grid of axes, and those of its panels; the rest is not seen."""
  num_rows = -(-num_panels // num_columns)
  grid = figure.subplots(num_rows, num_columns, squeeze=False, **sharing)
  for axes in grid.flat[num_panels:]:
    axes.set_visible(False)
  return grid, list(grid.flat[:num_panels])


def render(
  figure: RecordingFigure,
  *,
  name: str,
  title: str,
  caption: str,
  alternative_text: str,
) -> Figure:
  """Returns what was drawn inside `styled` as SVG and PNG, with its numbers.

  The words are those of `Figure`; the name holds lower-case letters, digits and
  '_' only. Equal plots give equal bytes.
  """
  png, svg = io.BytesIO(), io.StringIO()
  figure.savefig(png, format='png', metadata={'Software': None})
  # The layout is a third of the work, and the same for both.
  figure.set_layout_engine('none')
  figure.savefig(svg, format='svg', metadata={'Date': None, 'Creator': None})
  return Figure(
    name=name,
    title=title,
    caption=caption,
    alternative_text=alternative_text,
    svg=_inline(svg.getvalue(), name, alternative_text),
    png=png.getvalue(),
    is_wide=figure.get_figwidth() > _MAX_NARROW_INCHES,
    csv=figure.numbers_csv(),
    drawn=figure,
  )


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


def drawable(text: str, max_characters: int = _LABEL_WIDTH) -> str:
  """Returns `text` for a plot: short, without what its font cannot draw.

  An ellipsis is the last character of what is cut; '?' stands for one that the
  font lacks.
  """
  path = font_manager.findfont(style.RC_PARAMS['font.family'])
  font = ft2font.FT2Font(path)
  if len(text) > max_characters:
    text = f'{text[: max_characters - 1]}…'
  return ''.join(
    c if c.isprintable() and font.get_char_index(ord(c)) else '?' for c in text
  )


def handle(label: str, **look: Any) -> lines.Line2D:
  """Returns the entry of a line, or of markers without one, in a legend.

  A long label takes two lines.
  """
  first, *rest = textwrap.wrap(label, _LABEL_WIDTH) or ['']
  shown = [first, *([' '.join(rest)] if rest else [])]
  text = '\n'.join(drawable(line, _LABEL_WIDTH) for line in shown)
  return lines.Line2D([], [], label=text, **look)


def add_legend(figure: RecordingFigure, handles: list) -> None:
  """Puts a legend above the axes; the figure grows where it has many rows."""
  if not handles:
    return
  longest = max(len(handle.get_label()) for handle in handles)
  room = 9.6 * figure.get_figwidth()  # In characters of the legend's size.
  columns = max(1, min(len(handles), int(room / (longest + 7)), 6))
  if len(handles) == 4 and columns == 3:
    columns = 2
  rows = -(-len(handles) // columns)
  figure.set_figheight(figure.get_figheight() + 0.22 * max(0, rows - 2))
  are_points = all(
    getattr(handle, 'get_linestyle', str)() in ('None', 'none')
    for handle in handles
  )
  figure.legend(
    handles=handles,
    loc='outside upper left',
    ncols=columns,
    borderaxespad=0.2,
    handlelength=1.0 if are_points else 2.8,
    columnspacing=1.4,
  )


def draw_whisker(
  axes: Any,
  x: float,
  interval: Interval,
  *,
  color: str,
  scale: float = 1.0,
  linewidth: float = 1.1,
) -> dict[str, list[float]]:
  """Draws the interval of a mean at `x`; nothing where it has none.

  `scale` is a factor on all its numbers; the line width is in points.

  Returns:
    Its ends, as `record` takes them.
  """
  if interval.ci_low is None:
    return {}
  mean = scale * interval.mean
  # An interval of a skewed resample may exclude the mean: no negative arm.
  low = min(mean, scale * interval.ci_low)
  high = max(mean, scale * interval.ci_high)
  axes.errorbar(
    x,
    mean,
    yerr=[[mean - low], [high - mean]],
    color=color,
    linewidth=linewidth,
    capsize=2.5,
  )
  return {'low': [low], 'high': [high]}


def draw_trends(
  axes: Any,
  trends: Sequence[tuple[str, list[tuple[float, Interval]], dict[str, Any]]],
  *,
  ticks: Iterable[float],
  scale: float = 1.0,
  shift: float = 1.02,
) -> None:
  """Draws and records scores by local epochs, on a logarithmic axis.

  Args:
    axes: The axes to draw in.
    trends: (series as for `record`, [(local epochs, score)], look of the line).
    ticks: Local epochs that are named.
    scale: Factor on the scores.
    shift: Distance, as a ratio, between points of neighbouring trends at equal
      local epochs, so that whiskers do not hide each other.
  """
  for position, (series, scores, look) in enumerate(trends):
    shifted = shift ** (position - (len(trends) - 1) / 2)
    means = [scale * score.mean for _, score in scores]
    axes.plot([shifted * epochs for epochs, _ in scores], means, **look)
    for (epochs, score), mean in zip(scores, means, strict=True):
      ends = draw_whisker(
        axes, shifted * epochs, score, color=look['color'], scale=scale
      )
      record(axes, series, [epochs], [mean], **ends)
  ticks = sorted(set(ticks))
  axes.set_xscale('log', base=2)
  axes.set_xticks(ticks, [f'{epochs:g}' for epochs in ticks])
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  axes.set_xlabel('Local epochs per round')


def whole_numbers() -> ticker.Locator:
  """Returns a locator that ticks at whole numbers only."""
  return ticker.MaxNLocator(nbins=7, integer=True, min_n_ticks=1)


def _inline(svg, name, alternative_text):
  """Makes the ids unique within the page and names the picture."""
  svg = svg[svg.index('<svg') :]
  svg = re.sub(r'<!--.*?-->|<metadata>.*?</metadata>', '', svg, flags=re.S)
  svg = re.sub(r'\bid="', f'id="{name}-', svg)
  svg = re.sub(r'href="#', f'href="#{name}-', svg)
  svg = re.sub(r'url\(#', f'url(#{name}-', svg)
  label = markupsafe.escape(alternative_text)
  opening, rest = svg.split('>', 1)
  opening = re.sub(r' (width|height)="[^"]*"', '', opening)
  return markupsafe.Markup(f'{opening} role="img" aria-label="{label}">{rest}')
