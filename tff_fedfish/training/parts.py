"""The run that the round loop drives, and the protocol of its parts.

A part is an aspect of a run: what clients keep, scores, files. After a round
every part measures it, in order; then every part records it. An interruption
while it is measured leaves no trace of the round.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation.evaluator import ClientEvaluator
from tff_fedfish.runtime.client_data import ClientLoader
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
  """A round, and the measurements that parts add to it."""

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


class RoundPart:
  """A part that does nothing. A run has it only if its config asks for it.

  Methods that train or score raise RoundInterrupted if the run is to stop; the
  round is given up.
  """

  def prepare(self, should_stop: Callable[[], bool]) -> None:
    """Works before the first round that is left of the phase."""

  def before_round(self, round_num: int) -> None:
    """Raises FailedError if a round cannot be begun."""

  def feed(
    self,
    round_num: int,
    state: Any,
    clients: Sequence[ClientLoader],
    should_stop: Callable[[], bool],
  ) -> Sequence[ClientLoader]:
    """Returns the clients of a round with what they are fed."""
    return clients

  def on_output(
    self,
    round_num: int,
    clients: Sequence[ClientLoader],
    stack: contextlib.ExitStack,
  ) -> Callable[[int, Any], None] | None:
    """Returns the `RoundOptions.on_client_output` of a round, or None.

    One part of a run, at most, has one. The stack is left at the end of the
    round, also of one that is given up.
    """

  def finish(self, done: FinishedRound) -> FinishedRound:
    """Returns a round whose clients have trained, as it is to be measured."""
    return done

  def measure(self, done: FinishedRound) -> None:
    """Adds to the metrics and timings of a round."""

  def record(self, done: FinishedRound) -> None:
    """Writes the round, which counts from now on."""

  def checkpoint_contents(self, round_num: int) -> dict[str, Any]:
    """Returns what the checkpoint of a round keeps beside the state."""
    return {}

  def close(self) -> None:
    """Works after the last checkpoint of the phase."""
