"""Weightings beside the plain mean, over the seeds of a laboratory."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from tff_fedfish.evaluation.statistics import t_half_width
from tff_fedfish.laboratory.weightings import PLAIN_MEAN, Weighting
from tff_fedfish.reporting import figures
from tff_fedfish.reporting.style import EPOCH_HUES, MARKERS

_FIELDS = [field.name for field in dataclasses.fields(Weighting)]
_CELL = ['local_epochs', 'cohort_size']
_BEST = 'best_loss'
_MEASURES = ('loss', _BEST)
# Means of these stand beside the differences.
_DESCRIBED = ('best_step', 'cosine', 'norm_ratio', 'split_half_cosine')
_DESCRIBED += ('effective_clients', 'null_effective_clients', 'marginal_kl')
_SEEDS = 'seeds.'


def compare(rows: pd.DataFrame) -> pd.DataFrame:
  """Returns each weighting minus the plain mean, in every cell.

  Returns:
    A row for each cell and weighting in laboratory.csv: what varies but for
    seeds, the fields of the weighting, `weighting`, its label, and `num_seeds`;
    of `loss`, after a step of 1, and `best_loss`, after its best step,
    `..._difference`, the mean over seeds in nats, and `..._half_width` of its
    95 % interval, Student's t; NaN with fewer than three seeds.
    `control_difference`: `best_loss` minus that of the same weighting with
    another client's diagonal. Means of what describes the step. Seeds in which
    a loss is not finite are left out.
  """
  varied = _varied(rows)
  seeds = [name for name in rows.columns if name.startswith(_SEEDS)]
  rows = rows.assign(
    weighting=[_label(row) for row in rows[_FIELDS].to_dict('records')]
  )
  keys = [*varied, *_CELL]
  plain = rows[rows['weighting'] == PLAIN_MEAN.label()]
  paired = rows.merge(
    plain[[*keys, *seeds, *_MEASURES]], on=[*keys, *seeds], suffixes=('', '_0')
  )
  pairs = [*keys, *seeds, *(n for n in _FIELDS if n != 'fisher_of')]
  controls = rows[rows['fisher_of'] == 'another'][[*pairs, _BEST]]
  paired = paired.merge(controls, 'left', on=pairs, suffixes=('', '_control'))
  found = []
  for values, group in paired.groupby([*keys, 'weighting'], sort=False):
    row = dict(zip([*keys, 'weighting'], values, strict=True))
    row |= group[_FIELDS].iloc[0].to_dict() | {'num_seeds': len(group)}
    for name, differences in {
      **{m: group[m] - group[f'{m}_0'] for m in _MEASURES},
      'control': group[_BEST] - group[f'{_BEST}_control'],
    }.items():
      differences = differences.to_numpy()
      differences = differences[np.isfinite(differences)]
      # The control itself has none.
      if name == 'control' and row['fisher_of'] == 'another':
        differences = differences[:0]
      row[f'{name}_difference'] = (
        differences.mean() if len(differences) else math.nan
      )
      half_width = t_half_width(differences)
      row[f'{name}_half_width'] = math.nan if half_width is None else half_width
    for name in _DESCRIBED:
      if name in group:
        row[name] = group[name].mean()
    found.append(row)
  return pd.DataFrame(found)


def main_weightings(table: pd.DataFrame) -> list[str]:
  """Returns the labels that have a control, with their variants, in order.

  A page shows these; the table has all.
  """
  controlled = table[table['fisher_of'] == 'another']
  pairs = ['fisher_power', 'plain_mean_fraction']
  chosen = table.merge(controlled[pairs].drop_duplicates(), on=pairs)
  chosen = chosen[chosen['fisher_normalization'] == 'none']
  return list(dict.fromkeys(chosen['weighting']))


def figure(table: pd.DataFrame, unit: str) -> figures.Figure:
  """Returns the plot of the differences after each weighting's best step.

  The table is that of `compare`; a loss is of a `unit`, 'token' or 'image'.
  """
  keys = [name for name in table.columns if '.' in name]
  shown = main_weightings(table)
  looks = _looks(table, shown)
  cells = list(table[_CELL].drop_duplicates().itertuples(index=False))
  groups = list(table[keys].drop_duplicates().itertuples(index=False))
  columns = min(len(cells), 2)
  with figures.styled(10.8, 3.4 * -(-len(cells) // columns)) as drawing:
    _, panels = figures.facets(
      drawing, len(cells), columns, sharey=True, sharex=True
    )
    for axes, cell in zip(panels, cells, strict=True):
      axes.set_title(f'{cell[0]} local epochs, {cell[1]} clients')
      axes.axhline(0, color='0.4', linewidth=0.8)
      axes.set_xticks(range(len(groups)), [_text(keys, g) for g in groups])
      for number, label in enumerate(shown):
        _draw(axes, table, cell, keys, groups, label, number, looks)
    for axes in panels[::columns]:
      axes.set_ylabel(f'loss minus plain mean\n(nats per {unit})')
    figures.add_legend(
      drawing,
      [
        figures.handle(label, linestyle='none', **look)
        for label, look in looks.items()
      ],
    )
    return figures.render(
      drawing,
      name='laboratory',
      title='One round, by weighting',
      caption=(
        "Held-out loss after each weighting's best step minus that of the "
        'plain mean after its own; below 0 the weighting is better. Means over '
        'seeds with 95 % t intervals.'
      ),
      alternative_text=(
        'Differences in held-out loss between weightings and the plain mean.'
      ),
    )


def _draw(axes, table, cell, keys, groups, label, number, looks):
  rows = table[(table['weighting'] == label)]
  rows = rows[(rows[_CELL] == list(cell)).all(axis=1)]
  xs, means, widths = [], [], []
  for position, group in enumerate(groups):
    here = rows[(rows[keys] == list(group)).all(axis=1)] if keys else rows
    for row in here.itertuples():
      xs.append(position + 0.7 * ((number + 0.5) / len(looks) - 0.5))
      means.append(row.best_loss_difference)
      widths.append(row.best_loss_half_width)
  widths = np.nan_to_num(widths)
  axes.errorbar(
    xs, means, yerr=widths, linestyle='none', capsize=2, **looks[label]
  )
  figures.record(
    axes,
    label,
    xs,
    means,
    low=np.subtract(means, widths),
    high=np.add(means, widths),
    points=[_text(keys, group) for group in groups],
  )


def _looks(table, labels) -> dict[str, dict[str, Any]]:
  """Returns a colour for each power and fraction, a marker for each variant."""
  rows = table.drop_duplicates('weighting').set_index('weighting').loc[labels]
  variants = ['plain_mean_tensors', 'fisher_of', 'step_length']
  pairs = rows[['fisher_power', 'plain_mean_fraction']].apply(tuple, axis=1)
  kinds = rows[variants].apply(tuple, axis=1)
  hues = dict(zip(pairs.unique(), itertools.cycle(EPOCH_HUES), strict=False))
  markers = dict(zip(kinds.unique(), itertools.cycle(MARKERS), strict=False))
  return {
    label: dict(
      color=hues[pairs[label]], marker=markers[kinds[label]], markersize=5
    )
    for label in labels
  }


def _varied(rows):
  """Returns the settings that vary, but for seeds."""
  return [n for n in rows.columns if '.' in n and not n.startswith(_SEEDS)]


def _text(keys, values):
  return '\n'.join(
    f'{key.partition(".")[2].replace("_", " ")} {value:g}'
    if isinstance(value, int | float)
    else str(value)
    for key, value in zip(keys, values, strict=True)
  )


def _label(row):
  return Weighting(**row).label()
