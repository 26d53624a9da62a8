"""Final scores by local epochs, a figure.

Dhawan et al. (2024), FedFish, compare local epochs E for R rounds each, and for
R E_reference / E rounds, so that all clients compute as much: two budgets
(their Table 3, Figures 3 and 4).
"""

import dataclasses
from collections.abc import Iterator, Sequence

import pandas as pd

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.estimates import MEASURES
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.plots import Plot, plot
from tff_fedfish.reporting.runs import HELD_OUT
from tff_fedfish.reporting.style import Look, method_looks
from tff_fedfish.reporting.words import (
  Words,
  capitalized,
  estimate_columns,
  said_fraction,
)


def plots(findings: Findings, words: Words) -> Iterator[Plot | None]:
  """Yields final loss and accuracy of held-out clients by local epochs."""
  lines = list(_lines(findings.arms))
  final = [
    s
    for s in findings.shown
    if s.subject == HELD_OUT and s.round_num == s.arm.num_rounds
  ]
  ends = {0.0, max((s.fraction for s in final), default=0.0)}
  for measure in MEASURES:
    rows = [
      {
        'series': name,
        'x': s.arm.num_local_epochs,
        'panel': capitalized(said_fraction(s.fraction)),
        **estimate_columns(s, measure),
      }
      for fraction in sorted(ends)
      for name, _, arms in lines
      for s in final
      if s.arm in arms and s.fraction == fraction
    ]
    table = pd.DataFrame(rows)
    if table.empty or table['x'].nunique() < 2:
      continue
    yield plot(
      table.sort_values('x', kind='stable'),
      name=f'local_epochs_{measure}',
      title=f'Final {measure} by local epochs',
      caption='Held-out clients after the last round. Whiskers: 95 % '
      'intervals, over clients where there is one seed.',
      kind='line',
      x='Local epochs per round',
      y=words.label(measure),
      log_x=True,
      looks=_looks(lines),
    )


def _lines(
  arms: Sequence[Arm],
) -> Iterator[tuple[str, bool, Sequence[Arm]]]:
  """Yields a name, whether all its arms compute as much, and the arms.

  Arms of a line differ in local epochs, and in the rates that were chosen for
  each number of them. Of several rates at one number there is no line.
  """
  arms = [arm for arm in arms if arm.num_local_epochs]
  sides = list(keys.grouped(arms, lambda a: keys.side_key(a.first)).values())
  names = keys.names([side[0].first for side in sides], keys.TUNED)
  for name, side in zip(names, sides, strict=True):
    method = name if len(sides) > 1 else side[0].method
    by_rounds = keys.grouped(side, lambda a: f'{a.num_rounds:,} rounds')
    by_compute = keys.grouped(
      side,
      lambda a: f'{a.num_rounds * a.num_local_epochs:,} local epochs in all',
    )
    for budgets, is_compute in ((by_rounds, False), (by_compute, True)):
      for budget, members in budgets.items():
        epochs = [arm.num_local_epochs for arm in members]
        if len(epochs) > 1 and len(set(epochs)) == len(epochs):
          yield f'{method}, {budget}', is_compute, members


def _looks(
  lines: Sequence[tuple[str, bool, Sequence[Arm]]],
) -> dict[str, Look]:
  """Returns looks with the line of the budget."""
  looks = method_looks(
    (name, arms[0].algorithm, None) for name, _, arms in lines
  )
  dashed = {name for name, is_compute, _ in lines if is_compute}
  return {
    name: dataclasses.replace(look, line=(0, (5, 2)) if name in dashed else '-')
    for name, look in looks.items()
  }
