"""How a series looks in every plot: legible in colour and in grey.

Method is hue (Okabe and Ito's palette, then Tol's, distinct under colour
blindness) and marker fill or bar hatch, as its declaration says or the next
free ones. Marker shape and line style are local epochs; the method where these
are equal.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.methods import registry

_HUES = (
  *('#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000'),
  *('#882255', '#332288', '#999933'),
)
_HATCHES = (
  *('....', 'xxxx', '\\\\\\\\', '++++', 'oooo'),
  *('----', '||||', '**'),
)
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '*', 'p', 'h')
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
class Look:
  """The look of one series."""

  color: str
  """'#rrggbb'."""
  marker: str = 'o'
  line: Any = '-'
  """Line style in matplotlib's notation."""
  hatch: str = ''
  """Bar hatch in matplotlib's notation; markers without one are filled."""
  strength: float = 1.0
  """Fraction of the colour in bars."""

  @property
  def shade(self) -> str:
    """The colour as in bars: mixed with white."""
    channels = (int(self.color[k : k + 2], 16) for k in (1, 3, 5))
    mixed = (round(255 - (255 - c) * self.strength) for c in channels)
    return '#' + ''.join(f'{channel:02x}' for channel in mixed)

  def marker_arguments(self) -> dict[str, Any]:
    """Returns keyword arguments of `Axes.plot` for markers."""
    return {
      'color': self.color,
      'marker': self.marker,
      'markerfacecolor': 'white' if self.hatch else self.color,
      'markeredgewidth': 1.4,
    }

  def face(self) -> dict[str, Any]:
    """Returns keyword arguments of `Axes.bar`."""
    return {
      'facecolor': self.shade,
      'edgecolor': 'white' if self.hatch else self.color,
      'hatch': self.hatch,
      'linewidth': 0.6,
    }


PLAIN = Look('#0072B2')
"""The look of a series that has none."""


def method_looks(
  series: Iterable[tuple[str, str, float | None]],
) -> dict[str, Look]:
  """Returns the look of each series.

  It depends on the other series, each (label, `algorithm.name`, local epochs or
  None): two of one method differ in marker, line style and shade.
  """
  series = list(series)
  names = {algorithm for _, algorithm, _ in series}
  methods = {name: registry.find_or_none(name) for name in names}
  hues, hatches = (
    _assign({n: m and getattr(m, look) for n, m in methods.items()}, further)
    for look, further in (('hue', _HUES), ('hatch', _HATCHES))
  )
  # None comes first.
  epochs = sorted({e for *_, e in series}, key=lambda e: -1 if e is None else e)
  is_equal = len(epochs) == 1
  ranks = list(hues) if is_equal else epochs
  labels = {name: [s[0] for s in series if s[1] == name] for name in names}
  looks, taken = {}, set()
  for label, algorithm, own in series:
    look = ranks.index(algorithm if is_equal else own)
    kind = None if is_equal else algorithm
    while (kind, look) in taken:
      look = max(look + 1, len(ranks))
    taken.add((kind, look))
    own_labels = labels[algorithm]
    num_after = len(own_labels) - 1 - own_labels.index(label)
    looks[label] = Look(
      color=hues[algorithm],
      marker=_cycle(_MARKERS, look),
      line=_cycle(_LINES, look),
      hatch=hatches[algorithm],
      strength=1.0 - 0.6 * num_after / max(len(own_labels) - 1, 1),
    )
  return looks


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


def _cycle(values: Sequence, index: int) -> Any:
  return values[index % len(values)]
