"""The run that the round loop drives, and what follows each of its rounds.

After a round every callback measures it, in order; then every callback records
it. An interruption while it is measured leaves no trace of the round.
"""

import contextlib
import dataclasses
import pathlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from models.model_shapes import num_parameters
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation import evaluation_clients
from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.planning import communication
from tff_fedfish.run import (
  learning_setup,
  run_directory,
)
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
from tff_fedfish.run.metrics_files import TOKENS_SEEN
from tff_fedfish.run.trackers import Tracker
from tff_fedfish.runtime.round_options import ClientFailure
from tff_fedfish.training.run_checks import CheckedRun

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
  """A round, and the measurements that callbacks add to it."""

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


class RoundCallback:
  """A callback that does nothing."""

  def measure(self, done: FinishedRound) -> None:
    """Adds to the metrics and timings of a round.

    Raises:
      RoundInterrupted: If the run is to stop; the round is given up.
    """

  def record(self, done: FinishedRound) -> None:
    """Writes the round, which counts from now on."""


@dataclasses.dataclass
class HeldOutScore(RoundCallback):
  """Scores the global model on held-out clients in the rounds that are due."""

  run: BuiltRun
  should_stop: Callable[[], bool]

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    run, start = self.run, time.monotonic()
    sample, every = run.checked.sample, run.config.evaluation.every_num_rounds
    if run.config.method.personal(run.config) is not None:
      return
    if not sample.clients or not run.is_due(done.round_num, every):
      return
    fixed = run.process.get_model_weights(done.state).non_trainable
    score = evaluation_clients.mean_score(
      run.evaluator,
      tuple(run.weights_after(done)),
      sample,
      non_trainable=tuple(fixed),
      should_stop=self.should_stop,
    )
    done.metrics.update(score)
    done.timings['evaluation_seconds'] = time.monotonic() - start


@dataclasses.dataclass
class Log(RoundCallback):
  """Writes metrics.csv, timings.csv and events, and keeps the history."""

  run: BuiltRun

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    config = self.run.config
    cohort_size = config.cohorts.cohort_size or len(self.run.participating)
    traffic = communication.until_round(config, done.round_num)
    personal = config.method.personal(config)
    if personal and (column := personal.downloads_column):
      # Clients differ: models that all of them were sent.
      downloads = self.run.checked.history.total(column)
      downloads += done.metrics.get(column, 0)
      traffic = traffic._replace(downlink=downloads / cohort_size)
    num_weights = num_parameters(config.model_shape())
    spent = communication.of_cohorts(
      traffic, cohort_size=cohort_size, num_weights=num_weights
    )
    for name, value in dataclasses.asdict(spent).items():
      done.metrics[f'communication/{name}'] = value
    usage = resource.getrusage(resource.RUSAGE_SELF)
    done.timings['peak_memory_bytes'] = usage.ru_maxrss * 1024

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    checked, metrics = self.run.checked, done.metrics
    num_tokens = checked.history.total('train/num_tokens')
    num_tokens += metrics.get('train/num_tokens') or 0
    checked.log.log_round(
      done.round_num, metrics, done.timings, {TOKENS_SEEN: num_tokens}
    )
    checked.history.add({'round': done.round_num, **metrics})


@dataclasses.dataclass
class Trackers(RoundCallback):
  """Sends the row to trackers."""

  trackers: Sequence[Tracker]

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    # NumPy's scalars, too, are sent as Python's numbers.
    row = {
      name: value.item() if hasattr(value, 'item') else value
      for name, value in done.metrics.items()
    }
    for tracker in self.trackers:
      tracker.log({'round': done.round_num, **row}, done.write_line)


class Checkpoints(RoundCallback):
  """Saves the rounds that are due, and the last one that was recorded.

  Attributes:
    writer: Writes them; to be entered and left.
  """

  def __init__(
    self, run: BuiltRun, contents_of: Callable[[int], dict[str, Any]]
  ):
    """Saves nothing yet.

    Args:
      run: The run.
      contents_of: From a round, what its checkpoint keeps beside the state and
        what every checkpoint of the run keeps.
    """
    self._run = run
    self._contents_of = contents_of
    config, checked = run.config, run.checked
    self.writer = CheckpointWriter(
      run.workdir / run_directory.CHECKPOINTS_NAME,
      keep_last=config.checkpoints.keep_last,
      keep_every_num_rounds=config.checkpoints.keep_every_num_rounds,
    )
    self._contents = run_directory.checkpoint_contents(
      config, checked.identity.fingerprint, checked.tokenizer
    )
    # A round without a row in metrics.csv could not be continued from.
    self._recorded: FinishedRound | None = None
    self._saved_round = None

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    # Without the state before it.
    self._recorded = dataclasses.replace(done, state_before=None)
    every = self._run.config.checkpoints.every_num_rounds
    if self._run.is_due(done.round_num, every):
      self.save()

  def save(self) -> None:
    """Saves the last recorded round, unless that is done."""
    done = self._recorded
    if done is None or done.round_num == self._saved_round:
      return
    # First: three states would be alive if one were still being written.
    self.writer.wait()
    state_type = self._run.process.initialize.type_signature.result
    tensors = learning_setup.to_tensors(done.state, state_type)
    contents = self._contents | self._contents_of(done.round_num)
    if done.weights is not None:
      tensors |= learning_setup.trainable_tensors(done.weights)
      contents |= run_directory.contents_of_widths(
        self._run.config, done.weights
      )
    self.writer.save(
      done.round_num,
      tensors,
      contents,
      keep_rounds=self._run.checked.history.good_and_finite(done.round_num),
    )
    self._saved_round = done.round_num

  @contextlib.contextmanager
  def saving_on_failure(self) -> Iterator[None]:
    """Keeps the rounds that are done when a round fails."""
    try:
      yield
    except Exception:  # Such as no memory for the server's step.
      self.save()
      raise
