"""Methods minus the baseline, by client learning rate and local epochs."""

from collections.abc import Sequence

import pandas as pd

from tff_fedfish.methods.registry import BASELINE
from tff_fedfish.reporting import figures, match
from tff_fedfish.reporting.comparisons import honest_difference
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.repetitions import client_scores
from tff_fedfish.reporting.runs import HELD_OUT, Run
from tff_fedfish.reporting.style import numbered_look
from tff_fedfish.reporting.words import words_of

_CLIENT_RATE = 'client_work.learning_rate'
_SERVER_RATE = 'server.learning_rate'
# A search may choose them for each method, and none makes another one.
_RATES = (_CLIENT_RATE, _SERVER_RATE)
_CELL = ['rate', 'epochs']


def regime_maps(runs: Sequence[Run]) -> list[figures.Figure]:
  """Returns the maps of the studies that have at least two client rates.

  The runs are not pooled. Methods are compared with the baseline where client
  rate, local epochs, rounds and seeds are equal. A study has no map, but a
  note, if a method has several server rates in one of these cells, or the
  baseline several variants.
  """
  drawn = []
  for setting, study in match.studies(runs).items():
    table = _differences(study)
    if table['rate'].nunique() < 2 or _mixed_cells(study):
      continue
    suffix = f'_{len(drawn) + 1}' if drawn else ''
    drawn.append(_figure(study, table, f'regime_map{suffix}', setting))
  return drawn


def notes(runs: Sequence[Run]) -> list[str]:
  """Returns why a map of the runs, which are not pooled, is not drawn."""
  found = []
  for study in match.studies(runs).values():
    if _differences(study)['rate'].nunique() > 1 and (
      cells := _mixed_cells(study)
    ):
      found.append(
        'The map of who wins is not drawn, as nothing says which of several '
        f'runs counts: {"; ".join(cells)}. Report the runs of one server rate '
        f'for each method, and of one {BASELINE.title}.'
      )
  return found


def _cells(runs) -> dict[tuple, dict[match.Key, list[Run]]]:
  """Returns the runs of each method by (client rate, local epochs, rounds)."""
  by_cell = match.grouped(
    runs, lambda r: (r.setting(_CLIENT_RATE), r.num_local_epochs, r.num_rounds)
  )
  return {
    cell: match.grouped(members, _method) for cell, members in by_cell.items()
  }


def _mixed_cells(runs) -> list[str]:
  """Returns a clause for each method with several runs for one difference."""
  found = []
  for (rate, epochs, _), sides in _cells(runs).items():
    baselines = [key for key, side in sides.items() if side[0].is_baseline]
    if len(baselines) > 1:
      found.append(
        f'{" and ".join(match.method_names(baselines))} at client rate {rate} '
        f'and E = {epochs}'
      )
    for side in sides.values():
      rates = {repr(run.setting(_SERVER_RATE)): None for run in side}
      if len(rates) > 1:
        found.append(
          f'{side[0].method} has {", ".join(rates)} at client rate {rate} and '
          f'E = {epochs}'
        )
  return found


def _differences(runs) -> pd.DataFrame:
  """Returns rows of method, rate, epochs and `Interval` of the difference."""
  methods = list(dict.fromkeys(map(_method, runs)))
  names = dict(zip(methods, match.method_names(methods), strict=True))
  rows = []
  for (rate, epochs, _), sides in _cells(runs).items():
    baseline = next((s for s in sides.values() if s[0].is_baseline), None)
    if baseline is None or epochs is None:
      continue
    for method, side in sides.items():
      if side is baseline:
        continue
      sides_by_seed = match.paired_evaluations(
        side, baseline, HELD_OUT, 0.0, side[0].num_rounds
      )
      scores = (client_scores(found, 0.0) for found in sides_by_seed)
      found = honest_difference(*scores, 'loss_after')
      if found['mean'] is not None:
        interval = Interval(found['mean'], found['ci_low'], found['ci_high'])
        rows.append((names[method], rate, epochs, interval))
  return pd.DataFrame(rows, columns=['method', *_CELL, 'difference'])


def _method(run):
  return tuple(p for p in match.method_of(run) if p[0] not in _RATES)


def _figure(runs, table, name, setting) -> figures.Figure:
  rates = sorted(table['rate'].unique())
  looks = {
    method: numbered_look(number)
    for number, method in enumerate(table['method'].unique())
  }
  unit = f'nats per {words_of(runs).unit}'
  with figures.styled(
    figures.fitting_width(4.4 * min(len(rates), 3)), 3.9 * -(-len(rates) // 3)
  ) as drawing:
    _, panels = figures.facets(
      drawing, len(rates), min(len(rates), 3), sharey=True, sharex=True
    )
    for axes, rate in zip(panels, rates, strict=True):
      axes.axhline(0, color='0.4', linewidth=0.8)
      axes.set_title(f'Client learning rate {rate:g}')
      trends = []
      for method, look in looks.items():
        rows = table[(table['rate'] == rate) & (table['method'] == method)]
        rows = rows.sort_values('epochs')
        scores = list(zip(rows['epochs'], rows['difference'], strict=True))
        trends.append((f'{method}, rate {rate:g}', scores, look))
      figures.draw_trends(axes, trends, ticks=table['epochs'], shift=1.06)
      axes.margins(x=0.15)
    panels[0].set_ylabel(f'Loss minus {BASELINE.title}\n({unit})')
    handles = [figures.handle(m, **look) for m, look in looks.items()]
    figures.add_legend(drawing, handles)
    words = [
      f'{row.method} at rate {row.rate:g} and E = {row.epochs:g}: '
      f'{row.difference.mean:+.3f}'
      for row in table.itertuples()
    ]
    title = 'Where methods win, by client learning rate and local epochs'
    return figures.render(
      drawing,
      name=name,
      title=f'{title}, {setting}' if setting else title,
      caption=(
        f'Held-out loss after the last round minus that of {BASELINE.title} at '
        'the same client learning rate, local epochs and seeds; below 0 the '
        "method is ahead. Each has its own server's learning rate. Whiskers: "
        '95 % intervals, the wider of the bootstrap over clients and seeds and '
        'of the t interval over seeds; two seeds have none.'
      ),
      alternative_text=f'{"; ".join(words)} ({unit}).',
    )
