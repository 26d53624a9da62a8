"""A callback that trains the clients of a round again, to measure them."""

import re
import time
from collections.abc import Callable, Sequence

from tff_fedfish.evaluation import barrier, results
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.run import cohort_data
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.round_options import RoundInterrupted
from tff_fedfish.training.round_callbacks import (
  MAX_FAILURES_SHOWN,
  BuiltRun,
  FinishedRound,
  RoundCallback,
)

_BARRIER_NAME = re.compile(r'round_(\d{8,})\.csv')


class _Replay:
  """The clients that took part in a round, to be trained again."""

  def __init__(self, run, done, should_stop, kept):
    self._cohort = cohort_data.cohort(
      run.config,
      run.participating,
      run.client_rows,
      done.round_num,
      kept,
    )
    self._done, self._should_stop = done, should_stop
    self.failures: list[tuple[bytes, str]] = []

  def __iter__(self):
    left_out = {failure.client_index for failure in self._done.failures}
    for index, client in enumerate(self._cohort):
      self.require_going_on()
      if index not in left_out:
        yield client

  def require_going_on(self) -> None:
    """Raises RoundInterrupted if the run is to stop."""
    if self._should_stop():
      raise RoundInterrupted

  def on_failure(self, client, error) -> None:
    """Keeps what a client raised."""
    failure = round_options.describe_failure(
      self._cohort.index(client), error, while_loading=False
    )
    self.failures.append((client.client_id, failure.message))

  def write_failures(self) -> None:
    """Writes the first of them: a line for each client."""
    for client_id, message in self.failures[:MAX_FAILURES_SHOWN]:
      self._done.write_line(
        f'Round {self._done.round_num}: client {client_id!r} was left out of '
        f'the barrier, {message}'
      )


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
    kept: See `cohort_data.cohort`.

  Attributes:
    clients: Those of the last round that took part in it and have sequences, in
      the order of the draw; None where it was not due.
  """

  def __init__(
    self,
    run: BuiltRun,
    should_stop: Callable[[], bool],
    kept: ClientInputs | None = None,
  ):
    self._run = run
    self._should_stop = should_stop
    self._kept = kept
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
    clients = _Replay(run, done, self._should_stop, self._kept)
    self.clients = barrier.measure_clients(
      run.process,
      done.state_before,
      run.weights_after(done),
      run.evaluator,
      clients,
      on_failure=clients.on_failure,
      before_scoring=clients.require_going_on,
    )
    clients.write_failures()
    # The interval is not read.
    found = results.summarize_barriers(self.clients, num_bootstrap=1, seed=0)
    loss = found['loss']
    done.metrics['barrier/loss'] = loss['mean']
    done.metrics['barrier/error'] = found['error']['mean']
    done.metrics['barrier/num_clients'] = loss['num_clients']
    done.metrics['barrier/num_non_finite_clients'] = loss['num_non_finite']
    done.metrics['barrier/num_failed_clients'] = len(clients.failures)
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
