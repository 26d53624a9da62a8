"""The best round of a run: the one with the lowest loss of those evaluated.

It follows from the rows of metrics.csv, so that a resumed run finds the one
that an uninterrupted run has.
"""

import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, store, tables

CHOSEN_ON = {
  'validation/loss': 'validation_clients',
  'held_out/loss': 'held_out_clients',
  'personal/loss': 'own_test_rows',
}
"""Columns to choose by, the first that a run has; the clients or rows that they
are measured on."""

_SUFFIX = '@best'


class ScoredRounds:
  """The evaluated rounds of a run, and the best of them so far.

  Of equal losses the first is the best; a loss that is not finite never is.

  Attributes:
    best: The best round; None: there is none.
    superseded: Rounds that were the best before.
    chosen_on: A value of `CHOSEN_ON`; '' where no round was evaluated.
    num_rounds: Evaluated rounds.
    num_without_lower: Evaluations since the best one, or since the first.
  """

  def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
    """Adds rows of metrics.csv."""
    self.best: int | None = None
    self.superseded: set[int] = set()
    self.chosen_on = ''
    self.num_rounds = self.num_without_lower = 0
    self._lowest = math.inf
    for row in rows:
      self.add(row)

  def add(self, row: Mapping[str, Any]) -> None:
    """Adds the row of the next round."""
    column = next((c for c in CHOSEN_ON if row.get(c) is not None), None)
    if column is None:
      return
    self.chosen_on = CHOSEN_ON[column]
    self.num_rounds += 1
    if row[column] < self._lowest:
      if self.best is not None:
        self.superseded.add(self.best)
      self.best, self._lowest = row['round'], row[column]
      self.num_without_lower = 0
    elif self.num_rounds > 1:
      self.num_without_lower += 1


def run_of(checkpoint: str | os.PathLike) -> pathlib.Path | None:
  """Returns the run of 'RUN@best'; None for every other path."""
  name = os.fspath(checkpoint)
  if not name.endswith(_SUFFIX) or os.path.lexists(name):
    return None
  return pathlib.Path(name.removesuffix(_SUFFIX))


def choice(checkpoint: str | os.PathLike) -> dict[str, int | str]:
  """Returns facts of the choice that 'RUN@best' is; {} for another path.

  Returns:
    `best_of_rounds`, the number of evaluated rounds, and `chosen_on`.
  """
  run = run_of(checkpoint)
  if run is None:
    return {}
  scored = _scored_rounds(run)
  facts = {'best_of_rounds': scored.num_rounds}
  return facts | {'chosen_on': scored.chosen_on}


def best_checkpoint(run: pathlib.Path, option: str) -> pathlib.Path:
  """Returns the checkpoint of a run's best round.

  Raises:
    UserError: If it is no run, or there is none.
  """
  directory = run / store.CHECKPOINTS
  rounds = checkpoints.list_rounds(directory)
  if not rounds:
    raise UserError(
      f'`{option}` {str(run) + _SUFFIX!r} must name a run directory before '
      f'{_SUFFIX!r}, but {str(run)!r} holds no checkpoints/round_*. Name a '
      'directory that `fedfish train` wrote.'
    )
  best = _scored_rounds(run).best
  if best in rounds:
    return checkpoints.path_of(directory, best)
  problem = 'no evaluated round has a finite loss'
  if best is not None:
    problem = f'that of round {best} was not kept'
  raise UserError(
    f"`{option}` {str(run) + _SUFFIX!r} needs the checkpoint of the run's best "
    f'round, but {problem}. Train with `--config.checkpoints.keep_best=True`, '
    'or name the run itself.'
  )


def _scored_rounds(run):
  """Returns the rounds up to the last checkpoint: a later row may go again."""
  last = max(checkpoints.list_rounds(run / store.CHECKPOINTS), default=0)
  rows = tables.read_metrics(run / 'metrics.csv')
  return ScoredRounds(row for row in rows if row['round'] <= last)
