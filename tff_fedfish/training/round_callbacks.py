"""The run that the round loop drives, and what follows each of its rounds.

After a round every callback measures it, in order; then every callback records
it. An interruption while it is measured leaves no trace of the round.
"""

import contextlib
import dataclasses
import pathlib
import re
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow_federated as tff

from models.model_shapes import num_parameters
from tff_fedfish import communication
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation import barrier, evaluation_clients, results
from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.mathematics import directions
from tff_fedfish.run import (
  cohort_data,
  learning_setup,
  run_directory,
)
from tff_fedfish.run.checkpoint_writer import CheckpointWriter
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.in_process_context import InProcessContext
from tff_fedfish.runtime.round_options import ClientFailure, RoundInterrupted
from tff_fedfish.training.run_checks import CheckedRun

MAX_FAILURES_SHOWN = 3
"""Failures of a round that are printed; metrics.csv counts all of them."""

_BARRIER_NAME = re.compile(r'round_(\d{8,})\.csv')


@dataclasses.dataclass
class Position:
  """Last round that is done, and the process's state after it."""

  round_num: int
  state: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltRun:
  """Process, state and data of a run: everything that rounds need."""

  config: TrainConfig
  workdir: pathlib.Path
  checked: CheckedRun
  context: InProcessContext
  process: tff.learning.templates.LearningProcess
  evaluator: ClientEvaluator
  position: Position
  """The only part that rounds change: no earlier state is kept alive."""
  participating: Sequence[bytes]
  """Clients that may be drawn."""
  client_rows: ClientRows
  """Their sequences or images, opened in this process."""

  @property
  def is_resumed(self) -> bool:
    """Whether the run continues after a checkpoint."""
    return self.checked.checkpoint is not None

  def is_due(self, round_num: int, every_num_rounds: int) -> bool:
    """Says whether round 0, the last one or one of every N is reached."""
    if round_num in (0, self.config.training.num_rounds):
      return True
    return bool(every_num_rounds) and round_num % every_num_rounds == 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRound:
  """A round, and the measurements that callbacks add to it."""

  round_num: int
  """0 is the start."""
  state: Any
  """The state after it."""
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


class _Replay:
  """The clients that took part in a round, to be trained again."""

  def __init__(self, run, done, should_stop):
    self._cohort = cohort_data.cohort(
      run.config, run.participating, run.client_rows, done.round_num
    )
    self._done, self._should_stop = done, should_stop

  def __iter__(self):
    left_out = {failure.client_index for failure in self._done.failures}
    for index, client in enumerate(self._cohort):
      if self._should_stop():
        raise RoundInterrupted
      if index not in left_out:
        yield client

  def describe(self, client, error) -> tuple[str, str]:
    """Returns whose failure it is, and what it is."""
    failure = round_options.describe_failure(
      self._cohort.index(client), error, while_loading=False
    )
    name = f'Round {self._done.round_num}: client {client.client_id!r}'
    return name, failure.message


class Diagnostics(RoundCallback):
  """Compares a round's mean of the model deltas with the plain one.

  The means are those of the barrier, without its scores: the clients train
  again in this process, and the round itself is as it is without.

  Args:
    run: The run.
    should_stop: Asked before each client.
  """

  def __init__(self, run: BuiltRun, should_stop: Callable[[], bool]):
    self._run = run
    self._should_stop = should_stop

  def measure(self, done: FinishedRound) -> None:
    """Trains the round's clients again, and leaves out those that raise.

    Raises:
      RoundInterrupted: If `should_stop` says so.
    """
    run, start = self._run, time.monotonic()
    every = run.config.evaluation.diagnostics_every_num_rounds
    if not every or not done.round_num or not run.is_due(done.round_num, every):
      return
    clients = _Replay(run, done, self._should_stop)

    def on_failure(client, error):
      name, message = clients.describe(client, error)
      done.write_line(f'{name} was left out of the diagnostics, {message}')

    means = barrier.bare_means(
      run.process,
      done.state_before,
      clients,
      config=run.config,
      on_failure=on_failure,
    )
    if means:
      own, plain = means.own(), means.plain()
      done.metrics['diagnostics/cosine'] = directions.cosine(own, plain)
      done.metrics['diagnostics/norm_ratio'] = directions.norm_ratio(own, plain)
    done.timings['diagnostics_seconds'] = time.monotonic() - start


class Barrier(RoundCallback):
  """Measures the Client-Server Barrier of rounds while the run trains.

  A round that is due leaves its means in metrics.csv and a row per client in
  `barrier/round_00000020.csv`, with the columns of an evaluation's
  `barrier.csv` and, in process and unless a client failed, its very numbers:
  those of `fedfish evaluate --barrier` from the checkpoint before the round.
  Whatever runs the rounds, the clients are measured in this process.

  Args:
    run: The run. Files of rounds after its position are removed.
    should_stop: Asked before each client.

  Attributes:
    clients: Those of the last round that took part in it and have sequences, in
      the order of the draw; None where it was not due.
  """

  def __init__(self, run: BuiltRun, should_stop: Callable[[], bool]):
    self._run = run
    self._should_stop = should_stop
    self._directory = run.workdir / 'barrier'
    self.clients: Sequence[ClientBarrier] | None = None
    if not run.config.evaluation.barrier_every_num_rounds:
      return
    last_round = run.position.round_num if run.is_resumed else -1
    for path in self._directory.glob('*round_*'):
      match = _BARRIER_NAME.fullmatch(path.name)
      # Of a name that begins with a dot, a process was killed while it wrote.
      if (
        path.name.startswith('.round_') or match and int(match[1]) > last_round
      ):
        path.unlink()

  def is_due(self, round_num: int) -> bool:
    """Says whether a round, 0 being the start, is to be measured."""
    every = self._run.config.evaluation.barrier_every_num_rounds
    return every > 0 and round_num > 0 and self._run.is_due(round_num, every)

  def measure(self, done: FinishedRound) -> None:
    """Trains the round's clients again, one after the other.

    A client that raises is left out: what is measured beside the training must
    not end it.

    Raises:
      RoundInterrupted: If `should_stop` says so.
    """
    self.clients = None
    run, start = self._run, time.monotonic()
    if not self.is_due(done.round_num):
      return
    clients, failures = _Replay(run, done, self._should_stop), []

    def on_failure(client, error):
      failures.append(clients.describe(client, error))

    self.clients = barrier.measure_clients(
      run.process,
      done.state_before,
      done.state,
      run.evaluator,
      clients,
      config=run.config,
      on_failure=on_failure,
    )
    for line in failures[:MAX_FAILURES_SHOWN]:
      done.write_line(f'{line[0]} was left out of the barrier, {line[1]}')
    # The interval is not read.
    found = results.summarize_barriers(self.clients, num_bootstrap=1, seed=0)
    loss = found['loss']
    done.metrics['barrier/loss'] = loss['mean']
    done.metrics['barrier/error'] = found['error']['mean']
    done.metrics['barrier/num_clients'] = loss['num_clients']
    done.metrics['barrier/num_non_finite_clients'] = loss['num_non_finite']
    done.metrics['barrier/num_failed_clients'] = len(failures)
    done.timings['barrier_seconds'] = time.monotonic() - start

  def record(self, done: FinishedRound) -> None:
    """Writes the file of the round; it appears whole or not at all.

    Raises:
      OSError: If it cannot be written, such as on a full disk.
    """
    if self.clients is not None:
      self._directory.mkdir(exist_ok=True)
      path = self._directory / f'round_{done.round_num:08d}.csv'
      results.write_barriers(path, self.clients)


@dataclasses.dataclass
class HeldOutScore(RoundCallback):
  """Scores held-out clients in the rounds that are due."""

  run: BuiltRun
  should_stop: Callable[[], bool]

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    run, start = self.run, time.monotonic()
    sample, every = run.checked.sample, run.config.evaluation.every_num_rounds
    if not sample.clients or not run.is_due(done.round_num, every):
      return
    weights = tuple(run.process.get_model_weights(done.state).trainable)
    score = evaluation_clients.mean_score(
      run.evaluator, weights, sample, should_stop=self.should_stop
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
    spent = communication.after_rounds(
      done.round_num,
      traffic=config.method.traffic(config),
      cohort_size=config.cohorts.cohort_size or len(self.run.participating),
      num_weights=num_parameters(config.model_shape()),
    )
    for name, value in dataclasses.asdict(spent).items():
      done.metrics[f'communication/{name}'] = value
    usage = resource.getrusage(resource.RUSAGE_SELF)
    done.timings['peak_memory_bytes'] = usage.ru_maxrss * 1024

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    checked = self.run.checked
    checked.log.log_round(done.round_num, done.metrics, done.timings)
    checked.history.add({'round': done.round_num, **done.metrics})


class Checkpoints(RoundCallback):
  """Saves the rounds that are due, and the last one that was recorded.

  Attributes:
    writer: Writes them; to be entered and left.
  """

  def __init__(self, run: BuiltRun):
    self._run = run
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
    self._recorded = None
    self._saved_round = None

  def record(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    self._recorded = done.round_num, done.state
    every = self._run.config.checkpoints.every_num_rounds
    if self._run.is_due(done.round_num, every):
      self.save()

  def save(self) -> None:
    """Saves the last recorded round, unless that is done."""
    if self._recorded is None or self._recorded[0] == self._saved_round:
      return
    round_num, state = self._recorded
    # First: three states would be alive if one were still being written.
    self.writer.wait()
    state_type = self._run.process.initialize.type_signature.result
    self.writer.save(
      round_num,
      learning_setup.to_tensors(state, state_type),
      self._contents,
      keep_rounds=self._run.checked.history.good_and_finite(round_num),
    )
    self._saved_round = round_num

  @contextlib.contextmanager
  def saving_on_failure(self) -> Iterator[None]:
    """Keeps the rounds that are done when a round fails."""
    try:
      yield
    except Exception:  # Such as no memory for the server's step.
      self.save()
      raise
