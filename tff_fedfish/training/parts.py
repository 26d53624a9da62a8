"""The run that the round loop drives, and a round that has finished."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation.evaluator import ClientEvaluator
from tff_fedfish.runtime.round_options import ClientFailure
from tff_fedfish.training.check import CheckedRun

MAX_FAILURES_SHOWN = 3
"""Failures of a round that are printed; metrics.csv counts all of them."""


@dataclasses.dataclass
class Position:
  """Last round that is done, and the process's state after it."""

  round_num: int
  state: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltRun:
  """Process, state and data of a run: everything that rounds need."""

  config: TrainConfig
  """In its phase, where the run has several."""
  workdir: pathlib.Path
  checked: CheckedRun
  process: tff.learning.templates.LearningProcess
  evaluator: ClientEvaluator
  position: Position
  """The only part that rounds change: no earlier state is kept alive."""
  participating: Sequence[bytes]
  """Clients that may be drawn."""
  client_rows: ClientRows
  """Their sequences or images, opened in this process."""
  is_resumed: bool
  """Whether it continues, after a checkpoint or an earlier phase."""

  @property
  def last_round(self) -> int:
    """The last round of the phase, or of the run."""
    num_rounds, phase = self.config.training.num_rounds, self.config.phase
    if phase is None or phase.last_round is None:
      return num_rounds
    return min(num_rounds, phase.last_round)

  @property
  def best_rounds(self) -> tuple[int, ...]:
    """The best round so far, where its checkpoint is kept; (): none."""
    best = self.checked.history.scored.best
    keeps_best = self.config.checkpoints.keep_best and best is not None
    return (best,) if keeps_best else ()

  def is_due(self, round_num: int, every_num_rounds: int) -> bool:
    """Says whether round 0, the last one or one of every N is reached."""
    if round_num in (0, self.config.training.num_rounds):
      return True
    return bool(every_num_rounds) and round_num % every_num_rounds == 0

  def weights_after(self, done: 'FinishedRound') -> Sequence[Any]:
    """Returns the server's weights after a round, in the model's order."""
    if done.weights is not None:
      return done.weights
    return self.process.get_model_weights(done.state).trainable


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRound:
  """A round, and its measurements, which are added one after the other."""

  round_num: int
  """0 is the start."""
  state: Any
  """The state after it."""
  weights: Sequence[np.ndarray] | None = None
  """The solution of a last round, where it is wider than the model that clients
  train, and `state` is the one before the solve. None: `state` holds it."""
  state_before: Any = None
  """The state that the round was run from, learning rates included. None: the
  start."""
  failures: Sequence[ClientFailure] = ()
  metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
  """A row of metrics.csv."""
  timings: dict[str, Any] = dataclasses.field(default_factory=dict)
  """A row of timings.csv."""
  write_line: Callable[[str], None] = print
