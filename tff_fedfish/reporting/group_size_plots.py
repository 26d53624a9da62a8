"""Plots of how large the groups of a corpus are: by rank, and how many.

The same views as in Charles et al. (2023), "Towards Federated Foundation
Models: Scalable Dataset Pipelines for Group-Structured Learning".
"""

import itertools
import math
from collections.abc import Mapping

import numpy as np
from matplotlib import ticker

from tff_fedfish.printing import count
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.group_sizes import percentiles, top_shares

_COLOR = '#0072B2'
_MARK_COLOR = '#D55E00'
_MAX_POINTS = 600
# Fewer groups than this are each drawn as a point.
_MAX_MARKERS = 40
_MARGIN = 1.2


def group_size_figures(
  title: str, measure_to_sizes: Mapping[str, np.ndarray]
) -> list[figures.Figure]:
  """Returns the sizes of the groups against their rank, and as a histogram.

  Args:
    title: What the corpus is, to stand above the plots.
    measure_to_sizes: Sizes int64 [num_groups] of at least one group by
      measure, such as 'num_words'; one panel for each.
  """
  return [
    _figure(
      title,
      measure_to_sizes,
      draw=_draw_ranks,
      describe=_describe_ranks,
      name='group_sizes_by_rank',
      what='Size of the groups against their rank',
      caption='Both axes are logarithmic; the largest group has rank 1.',
    ),
    _figure(
      title,
      measure_to_sizes,
      draw=_draw_histogram,
      describe=_describe_histogram,
      name='group_sizes',
      what='How many groups are how large',
      caption='Both axes are logarithmic; each bar is twice as wide as the one '
      'before it: 1, 2 to 3, 4 to 7, and so on.',
    ),
  ]


def _figure(
  title, measure_to_sizes, *, draw, describe, name, what, caption
) -> figures.Figure:
  num_panels = len(measure_to_sizes)
  with figures.styled(width=5.0 * num_panels, height=4.0) as figure:
    _, grid = figures.facets(figure, num_panels, num_panels)
    figure.suptitle(figures.drawable(title, 90), fontsize=12)
    parts = []
    for axes, (measure, sizes) in zip(
      grid, measure_to_sizes.items(), strict=True
    ):
      noun = measure.removeprefix('num_')
      # A logarithm has no place for nothing.
      shown = np.sort(sizes[sizes > 0])[::-1]
      draw(axes, shown, noun)
      parts.append(describe(sizes, noun))
      if len(shown) < len(sizes):
        num_without = count(len(sizes) - len(shown), 'group')
        caption += f' Not shown: {num_without} without {noun}.'
      for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_show_number)
        axis.set_minor_formatter(ticker.NullFormatter())
    summary = ' '.join(parts)
    return figures.render(
      figure,
      name=name,
      title=what,
      caption=f'{caption} {summary}',
      alternative_text=f'{what}. {summary}',
    )


def _draw_ranks(axes, sizes: np.ndarray, noun: str) -> None:
  """Draws sizes, largest first, at ranks that are evenly spaced as drawn."""
  num_groups = len(sizes)
  ranks = np.unique(
    np.geomspace(1, max(num_groups, 1), _MAX_POINTS).round().astype(np.int64)
  )
  ranks = ranks[ranks <= num_groups]
  marker = 'o' if num_groups <= _MAX_MARKERS else None
  axes.plot(ranks, sizes[ranks - 1], color=_COLOR, marker=marker)
  figures.record(axes, noun, ranks, sizes[ranks - 1])
  _set_log_axis(axes, 'x', 1, max(num_groups, 1))
  _set_log_axis(axes, 'y', *_range(sizes))
  axes.set_xlabel('rank of the group')
  axes.set_ylabel(f'{noun} per group')
  lines = [
    f'{_top(top.label)}: {_show_share(top.share)}'
    for top in top_shares(sizes)
    if top.label.endswith('%') or top.label == '1'
  ]
  if lines:
    axes.text(
      0.97,
      0.97,
      '\n'.join([f'Share of all {noun}', *lines]),
      transform=axes.transAxes,
      ha='right',
      va='top',
      fontsize=9.5,
      linespacing=1.4,
      bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 2.0},
    )


def _top(label: str) -> str:
  return 'largest group' if label == '1' else f'largest {label}'


def _describe_ranks(sizes: np.ndarray, noun: str) -> str:
  shares = [
    f'{_top(top.label)} {_show_share(top.share)}' for top in top_shares(sizes)
  ]
  return (
    f'{count(len(sizes), "group")}, {count(int(sizes.sum()), noun[:-1])}'
    f'{"; shares: " if shares else ""}{", ".join(shares)}.'
  )


def _draw_histogram(axes, sizes: np.ndarray, noun: str) -> None:
  """Draws how many groups have from 2^k to 2^(k+1) - 1."""
  low, high = _range(sizes)
  # Powers of two, so that every bar has at least one whole number.
  edges = 2 ** np.arange(int(high).bit_length() + 1, dtype=np.int64)
  edges = edges[int(low).bit_length() - 1 :]
  counts, _ = np.histogram(sizes, edges)
  axes.bar(
    edges[:-1],
    counts,
    width=np.diff(edges),
    align='edge',
    color=_COLOR,
    edgecolor='white',
    linewidth=0.8,
  )
  bars = [f'{low} to {high - 1}' for low, high in itertools.pairwise(edges)]
  figures.record(axes, noun, edges[:-1], counts, points=bars)
  _set_log_axis(axes, 'x', edges[0], high)
  axes.set_xlim(right=max(axes.get_xlim()[1], _MARGIN * edges[-1]))
  _set_log_axis(axes, 'y', 1, max(counts.max(), 1))
  # From half a group, so that a bar of one is seen.
  axes.set_ylim(bottom=0.5)
  axes.set_xlabel(f'{noun} per group')
  axes.set_ylabel('groups')
  # In the middle of what a whole number takes on a logarithmic axis.
  places = percentiles(sizes, (50, 90))
  for size, label, line in zip(
    places, ('median', '90 % have at most'), ('-', (0, (4, 3))), strict=False
  ):
    axes.axvline(
      math.sqrt(size * (size + 1)),
      color=_MARK_COLOR,
      linestyle=line,
      linewidth=1.4,
      label=f'{label} {size:,}',
    )
    figures.record(axes, f'{noun}: {label}', [size], [None])
  if not places:
    return
  axes.legend(
    loc='lower right',
    bbox_to_anchor=(1.0, 1.0),
    ncols=2,
    handlelength=1.8,
    borderaxespad=0.0,
  )


def _describe_histogram(sizes: np.ndarray, noun: str) -> str:
  low, median, upper, high = percentiles(sizes, (0, 50, 90, 100))
  return (
    f'{noun.capitalize()} per group: from {low:,} to {high:,}, median '
    f'{median:,}, 90 % of the groups have at most {upper:,}.'
  )


def _set_log_axis(axes, which: str, low: float, high: float) -> None:
  """Makes an axis logarithmic, from a power of ten to another one."""
  low = 10.0 ** np.floor(np.log10(low))
  high = max(10.0 ** np.ceil(np.log10(high)), 10.0 * low)
  # The limits come first: there may be no data from which to guess them.
  getattr(axes, f'set_{which}lim')(low / _MARGIN, high * _MARGIN)
  getattr(axes, f'set_{which}scale')('log')


def _range(sizes: np.ndarray) -> tuple[int, int]:
  return (int(sizes.min()), int(sizes.max())) if len(sizes) else (1, 1)


def _show_number(value: float, _: int | None = None) -> str:
  """Returns a tick's label: 1, 10, and so on to 100,000, 1M, 10M."""
  for unit, suffix in ((10**9, 'G'), (10**6, 'M')):
    if value >= unit:
      return f'{value / unit:,.0f}{suffix}'
  return f'{value:,.0f}' if value >= 1 else ''


def _show_share(share: float) -> str:
  return f'{100 * share:.1f} %'
