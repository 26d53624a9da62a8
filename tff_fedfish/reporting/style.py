"""How a run looks in every plot: legible in colour and in grey.

Method is hue (Okabe and Ito's palette, then Tol's, distinct under colour
blindness) and marker fill or bar hatch, as its declaration says or the next
free ones; local epochs are line style, marker shape and shade.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.methods import registry
from tff_fedfish.reporting.runs import Run

EPOCH_HUES = ('#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
"""Colours for local epochs where a plot sets two methods against each other."""

MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '*', 'p', 'h')
"""Marker shapes, in the order in which local epochs take them."""

_FURTHER_HUES = (*EPOCH_HUES, '#882255', '#332288', '#999933')
_FURTHER_HATCHES = (
  *('....', 'xxxx', '\\\\\\\\', '++++', 'oooo'),
  *('----', '||||', '**'),
)
_LINES: tuple[Any, ...] = (
  '-',
  (0, (5, 2)),
  (0, (1.2, 1.6)),
  (0, (6, 2, 1.2, 2)),
)

RC_PARAMS = {
  'font.family': 'DejaVu Sans',  # Ships with matplotlib: no lookup warnings.
  'font.size': 11.0,
  'axes.titlesize': 10.5,
  'axes.labelsize': 11.0,
  'legend.fontsize': 10.0,
  'xtick.labelsize': 10.0,
  'ytick.labelsize': 10.0,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'axes.edgecolor': '#555555',
  'axes.labelcolor': '#222222',
  'xtick.color': '#555555',
  'ytick.color': '#555555',
  'xtick.labelcolor': '#222222',
  'ytick.labelcolor': '#222222',
  'axes.grid': True,
  'axes.axisbelow': True,
  'grid.color': '#e3e3e3',
  'grid.linewidth': 0.8,
  'lines.linewidth': 1.8,
  'lines.markersize': 5.5,
  'hatch.linewidth': 0.8,
  'legend.frameon': False,
  'figure.facecolor': 'white',
  'savefig.facecolor': 'white',
  'savefig.dpi': 160,
  # A directory's name may hold a dollar sign: labels are no formulas.
  'text.parse_math': False,
  'pdf.fonttype': 42,  # TrueType, as publishers ask for.
  'svg.fonttype': 'path',
  'svg.hashsalt': 'fedfish',  # Equal inputs give equal files.
}


@dataclasses.dataclass(frozen=True)
class RunStyle:
  """The look of one run."""

  color: str
  """Hue of the method, '#rrggbb'."""
  marker: str
  line: Any
  """Line style in matplotlib's notation."""
  hatch: str
  """Bar hatch in matplotlib's notation; markers without one are filled."""
  strength: float = 1.0
  """Share of the hue in bars, less for fewer local epochs."""

  @property
  def shade(self) -> str:
    """The hue as in bars."""
    return self.shaded(self.strength)

  def line_arguments(self) -> dict[str, Any]:
    """Returns keyword arguments for `Axes.plot`."""
    return {'linestyle': self.line, **self.marker_arguments()}

  def shaded(self, strength: float) -> str:
    """Returns the hue mixed with white, '#rrggbb'; strength 1 keeps it."""
    channels = (int(self.color[k : k + 2], 16) for k in (1, 3, 5))
    mixed = (round(255 - (255 - channel) * strength) for channel in channels)
    return '#' + ''.join(f'{channel:02x}' for channel in mixed)

  def marker_arguments(self) -> dict[str, Any]:
    """Returns keyword arguments for the markers of `Axes.plot`."""
    return {
      'color': self.color,
      'marker': self.marker,
      'markerfacecolor': 'white' if self.hatch else self.color,
      'markeredgewidth': 1.4,
    }


def run_styles(runs: Sequence[Run]) -> dict[str, RunStyle]:
  """Returns the style of each run by its label.

  It depends on the other runs of the report: two of one method and equal local
  epochs differ in marker and line style.
  """
  names = {run.algorithm for run in runs}
  methods = {name: registry.find_or_none(name) for name in names}
  hues, hatches = (
    _assign({n: m and getattr(m, look) for n, m in methods.items()}, further)
    for look, further in (('hue', _FURTHER_HUES), ('hatch', _FURTHER_HATCHES))
  )
  epochs = local_epochs(runs)
  styles, taken = {}, set()
  for run in runs:
    rank = epochs.index(run.num_local_epochs)
    look = rank
    while (run.algorithm, look) in taken:
      look += 1 if look >= len(epochs) else len(epochs) - look
    taken.add((run.algorithm, look))
    color, hatch = hues[run.algorithm], hatches[run.algorithm]
    strength = 1.0 if len(epochs) == 1 else 0.4 + 0.6 * rank / (len(epochs) - 1)
    styles[run.label] = RunStyle(
      color=color,
      marker=_cycle(MARKERS, look),
      line=_cycle(_LINES, look),
      hatch=hatch,
      strength=strength,
    )
  return styles


def _assign(
  wanted: Mapping[str, str | None], further: Sequence[str]
) -> dict[str, str]:
  """Returns a value per name: the wanted one if free, else a further one."""
  names = sorted(wanted, key=lambda name: (name not in registry.BUILT_IN, name))
  given: dict[str, str] = {}
  for name in names:
    if wanted[name] is not None and wanted[name] not in given.values():
      given[name] = wanted[name]
  free = [value for value in further if value not in given.values()]
  rest = (name for name in names if name not in given)
  return given | {
    name: _cycle(free or further, index) for index, name in enumerate(rest)
  }


def local_epochs(runs: Sequence[Run]) -> list[int | float | None]:
  """Returns the local epochs that occur, ascending; None comes first."""
  return sorted(
    {run.num_local_epochs for run in runs},
    key=lambda epochs: -1 if epochs is None else epochs,
  )


def numbered_look(index: int) -> dict[str, str]:
  """Returns color and marker where no run's style applies, by number."""
  return {'color': _cycle(EPOCH_HUES, index), 'marker': _cycle(MARKERS, index)}


def _cycle(values, index):
  return values[index % len(values)]
