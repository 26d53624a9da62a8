"""Callbacks of the round loop: barrier, held-out score, log, checkpoints.

After a round every callback measures it, in order; then every callback records
it. An interruption while it is measured leaves no trace of the round.
"""

import contextlib
import dataclasses
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.model_shapes import num_parameters
from tff_fedfish.evaluation import evaluation_clients
from tff_fedfish.run import round_metrics, run_directory, server_state
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
from tff_fedfish.run.divergence import RoundHistory
from tff_fedfish.run.metrics_files import MetricsLog
from tff_fedfish.runtime.round_options import ClientFailure
from tff_fedfish.training import barrier_rounds
from tff_fedfish.training.built_run import BuiltRun

MAX_FAILURES_SHOWN = 3
"""Failures of a round that are printed; metrics.csv counts all of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRound:
  """A round, and the measurements that callbacks add to it."""

  round_num: int
  """0 is the start."""
  state_before: Any
  """The state that the round was run from, learning rates included. None: the
  start."""
  state: Any
  """The state after it."""
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


class Barrier(RoundCallback):
  """Measures the Client-Server Barrier of the rounds that are due."""

  def __init__(
    self, rounds: barrier_rounds.BarrierRounds, should_stop: Callable[[], bool]
  ):
    """Measures nothing yet."""
    self._rounds = rounds
    self._should_stop = should_stop
    self._clients = None

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    self._clients = None
    if not self._rounds.is_due(done.round_num):
      return
    start = time.monotonic()
    found = self._rounds.measure(
      done.round_num,
      done.state_before,
      done.state,
      failed_clients={failure.client_index for failure in done.failures},
      should_stop=self._should_stop,
    )
    for client_id, message in found.failures[:MAX_FAILURES_SHOWN]:
      done.write_line(
        f'Round {done.round_num}: client {client_id!r} was left out of the '
        f'barrier, {message}'
      )
    done.metrics.update(
      barrier_rounds.barrier_metrics(
        found.clients, num_failed=len(found.failures)
      )
    )
    done.timings['barrier_seconds'] = time.monotonic() - start
    self._clients = found.clients

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    if self._clients is not None:
      self._rounds.write(done.round_num, self._clients)


class HeldOutScore(RoundCallback):
  """Scores held-out clients in the rounds that are due."""

  def __init__(self, run: BuiltRun, should_stop: Callable[[], bool]):
    """Scores nothing yet."""
    self._run = run
    self._should_stop = should_stop

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    run, start = self._run, time.monotonic()
    every = run.config.evaluation.every_num_rounds
    if not run.sample.clients or not _is_due(run, done.round_num, every):
      return
    weights = run.process.get_model_weights(done.state)
    done.metrics.update(
      evaluation_clients.mean_score(
        run.evaluator,
        tuple(weights.trainable),
        run.sample,
        should_stop=self._should_stop,
      )
    )
    done.timings['evaluation_seconds'] = time.monotonic() - start


class Log(RoundCallback):
  """Writes metrics.csv, timings.csv and events, and keeps the history."""

  def __init__(self, run: BuiltRun, log: MetricsLog, history: RoundHistory):
    """Writes nothing yet."""
    self._log = log
    self._history = history
    self._config = run.config
    self._num_weights = num_parameters(run.config.model_shape())
    self._cohort_size = run.config.cohorts.cohort_size or len(run.participating)

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    done.metrics.update(
      round_metrics.communication_metrics(
        done.round_num,
        self._config,
        self._num_weights,
        cohort_size=self._cohort_size,
      )
    )
    done.timings['peak_memory_bytes'] = peak_memory_bytes()

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    self._log.log_round(done.round_num, done.metrics, done.timings)
    self._history.add({'round': done.round_num, **done.metrics})


class Checkpoints(RoundCallback):
  """Saves the rounds that are due, and the last one that was recorded."""

  def __init__(
    self, run: BuiltRun, writer: CheckpointWriter, history: RoundHistory
  ):
    """Saves nothing yet."""
    self._run = run
    self._writer = writer
    self._history = history
    # A round without a row in metrics.csv could not be continued from.
    self._recorded = None
    self._saved_round = None

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    self._recorded = done.round_num, done.state
    every = self._run.config.checkpoints.every_num_rounds
    if _is_due(self._run, done.round_num, every):
      self.save()

  def save(self) -> None:
    """Saves the last recorded round, unless that is done."""
    if self._recorded is None or self._recorded[0] == self._saved_round:
      return
    round_num, state = self._recorded
    # First: three states would be alive if one were still being written.
    self._writer.wait()
    self._writer.save(
      round_num,
      server_state.to_tensors(state, self._run.state_type),
      self._run.contents,
      keep_rounds=self._history.good_and_finite(round_num),
    )
    self._saved_round = round_num

  def wait(self) -> None:
    """Waits until what was saved is on the disk."""
    self._writer.wait()

  @contextlib.contextmanager
  def saving_on_failure(self) -> Iterator[None]:
    """Keeps the rounds that are done when a round fails."""
    try:
      yield
    # Whatever it was, such as no memory for the server's step.
    except Exception:  # pylint: disable=broad-exception-caught
      self.save()
      raise


def checkpoint_writer(run: BuiltRun) -> CheckpointWriter:
  """Returns the writer of a run's checkpoints."""
  settings = run.config.checkpoints
  return CheckpointWriter(
    run.workdir / run_directory.CHECKPOINTS_NAME,
    keep_last=settings.keep_last,
    keep_every_num_rounds=settings.keep_every_num_rounds,
  )


def peak_memory_bytes() -> int:
  """Returns the most memory this process has had resident."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _is_due(run, round_num, every_num_rounds):
  if round_num in (0, run.config.training.num_rounds):
    return True
  return bool(every_num_rounds) and round_num % every_num_rounds == 0
