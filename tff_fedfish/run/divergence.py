"""Runs that diverge: which models are good, and when a run stops.

Once the weights are too large, no client returns a finite update any more, and
every round leaves the model as it was. `columns.is_non_finite` says it
of one round; here are the rounds of a run.
"""

import collections
import math
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.run import (
  best_round,
  checkpoints,
  columns,
  run_directory,
  store,
  tables,
)

_FIRST_JUDGED_ROUND = 3
# The loss of wide models that were just drawn is 2 % above guessing.
_GUESSING_MARGIN = 1.02

Row = Mapping[str, float | int | None]


class RoundHistory:
  """Sums up rows of metrics.csv: non-finite rounds, the last good checkpoint.

  A model is taken for good unless its own round was non-finite, or the next
  one: a step that is finite but far too large shows only there.

  Args:
    run: The run's directory.
    limit: `training.max_non_finite_rounds`; 0: none.
    rows: Rows of metrics.csv so far.
    patience: `training.patience`.

  Attributes:
    scored: The evaluated rounds.
    num_in_a_row: Non-finite rounds at the end.
    last_round: The last round.
  """

  def __init__(
    self,
    run: str | os.PathLike,
    limit: int,
    rows: Iterable[Row] = (),
    patience: int | None = None,
  ):
    self._run = pathlib.Path(run)
    self._limit, self._patience = limit, patience
    self.scored = best_round.ScoredRounds()
    self.num_in_a_row = 0
    self.last_round = 0
    self._non_finite = set()
    self._totals = collections.Counter()
    for row in rows:
      self.add(row)

  def add(self, row: Row) -> None:
    """Adds the row of the next round."""
    self.last_round = row['round']
    self.scored.add(row)
    for name, value in row.items():
      if isinstance(value, int):
        self._totals[name] += value
    if columns.is_non_finite(row):
      self.num_in_a_row += 1
      self._non_finite.add(self.last_round)
    else:
      self.num_in_a_row = 0

  def total(self, column: str) -> int:
    """Returns the sum of a column of counts over all rounds."""
    return self._totals[column]

  @property
  def has_diverged(self) -> bool:
    """Whether so many rounds were non-finite that the run stops."""
    return 0 < self._limit <= self.num_in_a_row

  @property
  def has_stopped_early(self) -> bool:
    """Whether the last `patience` evaluations have no lower loss."""
    patience = self._patience
    return patience is not None and self.scored.num_without_lower >= patience

  def early_stop_line(self, num_rounds: int) -> str:
    """Returns a line on a run that stopped before its last round, or ''."""
    if not self.has_stopped_early or self.last_round == num_rounds:
      return ''
    num_evaluations = self.scored.num_without_lower
    return (
      f'Stopped early: round {self.last_round} of {num_rounds}, '
      f'{num_evaluations} evaluations without a lower loss; a run with '
      f'`--config.training.patience` None or above {num_evaluations} goes on'
    )

  def line(self, row: Row) -> str:
    """Returns what is said of the last round, which was non-finite."""
    num_rejected = columns.num_rejected_clients(row)
    what = f'{num_rejected} of {row["train/num_clients"]} clients have no'
    if row['train/update_is_non_finite']:
      is_solved = row.get(columns.ONE_SHOT_NAMES[0])
      what = f'the {"solution" if is_solved else "mean of the clients"} is no'
    limit = f', the run stops at {self._limit}' if self._limit else ''
    return (
      f'Round {self.last_round}: non-finite, {what} finite update; the model '
      f'stays as it was ({self.num_in_a_row} in a row{limit}).'
    )

  def good_and_finite(self, *saved_rounds: int) -> tuple[int, int]:
    """Returns the last good round that is saved, and the last finite one.

    Args:
      *saved_rounds: Rounds that count as saved besides those that are.
    """
    rounds = checkpoints.list_rounds(self._run / store.CHECKPOINTS)
    finite = [
      r
      for r in (*rounds, *saved_rounds)
      # A later one is damaged: the run did not continue from it.
      if r <= self.last_round and r not in self._non_finite
    ]
    good = [r for r in finite if r + 1 not in self._non_finite]
    return max(good, default=0), max(finite, default=0)

  def last_good_checkpoint(self) -> pathlib.Path:
    """Returns the path of the last good checkpoint, or of round 0's."""
    good, _ = self.good_and_finite()
    return checkpoints.path_of(self._run / store.CHECKPOINTS, good)

  def require_not_diverged(self) -> None:
    """Raises FailedError if the run stops, or has stopped before."""
    if self.has_diverged:
      raise FailedError(
        f'The run in {str(self._run)!r} stopped after round '
        f'{self.last_round}: {self.num_in_a_row} rounds in a row were '
        'non-finite, and `--config.training.max_non_finite_rounds` is '
        f'{self._limit}. The last good checkpoint is '
        f'{str(self.last_good_checkpoint())!r}. Lower '
        '`--config.server.learning_rate` or '
        '`--config.client_work.learning_rate` in a new --workdir, or raise '
        'that limit to go on.'
      )


def loss_warning(
  config: TrainConfig, round_num: int, loss: float | None
) -> str:
  """Returns a warning of a training loss above that of guessing, or ''.

  The first rounds are not judged, nor losses that are no cross-entropies.
  """
  if round_num < _FIRST_JUDGED_ROUND or config.method.features is not None:
    return ''
  shape, is_text = config.model_shape(), not config.data.holds_images
  guessing = math.log(shape.vocabulary_size if is_text else shape.num_classes)
  if loss is None or not loss > _GUESSING_MARGIN * guessing:
    return ''
  rates = ', '.join(
    f'{s.section}.learning_rate {s.learning_rate:g} of {s.optimizer}'
    for s in (config.client_work, config.server)
  )
  return (
    f'fedfish: warning: the training loss {loss:.2f} is above that of guessing '
    f'({guessing:.2f}) after round {round_num}. Likely causes: a learning rate '
    f'that is too high ({rates}), or '
    + ("another vocabulary than the model's." if is_text else 'wrong labels.')
  )


def read_history(
  run: str | os.PathLike,
  limit: int,
  round_num: float = math.inf,
  patience: int | None = None,
) -> RoundHistory:
  """Reads what metrics.csv says of a run's rounds up to `round_num`.

  Raises:
    UserError: If metrics.csv is missing or damaged.
  """
  rows = tables.read_metrics(pathlib.Path(run) / 'metrics.csv')
  rows = [row for row in rows if row['round'] <= round_num]
  return RoundHistory(run, limit, rows, patience)


def diverged_checkpoint(run: str | os.PathLike) -> pathlib.Path | None:
  """Returns the last good checkpoint of a run that diverged.

  It stopped, or is over, and its last rounds are non-finite. None for every
  other run, and for a directory that is none.
  """
  history, num_rounds = _history_of(run)
  if history is None or not history.num_in_a_row:
    return None
  is_over = history.has_diverged or history.has_stopped_early
  is_over = is_over or history.last_round == num_rounds
  return history.last_good_checkpoint() if is_over else None


def has_stopped_early(run: str | os.PathLike, saved_round: int) -> bool:
  """Says whether a run stopped early, and its last round is saved."""
  history, _ = _history_of(run)
  if history is None or history.last_round != saved_round:
    return False
  return history.has_stopped_early


def _history_of(run):
  """Returns the history of a run and its rounds; (None, 0) of no run."""
  try:
    training = run_directory.read_config(run).training
    history = read_history(
      run, training.max_non_finite_rounds, patience=training.patience
    )
  except UserError:
    # `fedfish train` says what is wrong with it.
    return None, 0
  return history, training.num_rounds


def resolve_checkpoint(
  path: str | os.PathLike, option: str = '--checkpoint'
) -> pathlib.Path:
  """Returns the checkpoint that an option means, verified.

  A run's directory stands for its last checkpoint. Where its last rounds are
  non-finite it stands for the last good one; a line on standard error says so.
  'RUN@best' stands for that of its best round.

  Raises:
    UserError: See `checkpoints.resolve_checkpoint`, `best_checkpoint`.
  """
  if (run := best_round.run_of(path)) is not None:
    path = best_round.best_checkpoint(run, option)
  good, (history, _) = None, _history_of(path)
  if history is not None and history.num_in_a_row:
    good = history.last_good_checkpoint()
    print(
      f'fedfish: note: the last rounds of the run in {str(path)!r} are '
      f'non-finite; `{option}` takes its last good checkpoint, {good.name}.',
      file=sys.stderr,
    )
  return checkpoints.resolve_checkpoint(good or path, option)
