"""The Client-Server Barrier of a run's own rounds, measured while it trains.

A round that is due leaves its means in metrics.csv and a row per client in
`barrier/round_00000020.csv`, with the columns of an evaluation's `barrier.csv`
and, in process and unless a client failed, its very numbers: those of `fedfish
evaluate --barrier` from the checkpoint before the round. Whatever runs the
rounds, the clients are measured in this process.
"""

import re
import time
from collections.abc import Callable, Sequence

from tff_fedfish.evaluation import barrier, results
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.run import cohort_data
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.round_options import RoundInterrupted
from tff_fedfish.training.built_run import BuiltRun
from tff_fedfish.training.round_callbacks import (
  MAX_FAILURES_SHOWN,
  FinishedRound,
  RoundCallback,
)

_FILE_NAME = re.compile(r'round_(\d{8,})\.csv')


class Barrier(RoundCallback):
  """Measures the rounds that are due, and keeps their files.

  Attributes:
    clients: Those of the last round that took part in it and have sequences, in
      the order of the draw; None where it was not due.
  """

  def __init__(self, run: BuiltRun, should_stop: Callable[[], bool]):
    """Removes the files of rounds after the run's position.

    Args:
      run: The run.
      should_stop: Asked before each client.
    """
    self._run = run
    self._should_stop = should_stop
    self._directory = run.workdir / 'barrier'
    self._source = cohort_data.InMemorySource(run.client_rows)
    self.clients: Sequence[ClientBarrier] | None = None
    if not run.config.evaluation.barrier_every_num_rounds:
      return
    last_round = run.position.round_num if run.is_resumed else -1
    for path in self._directory.glob('*round_*'):
      match = _FILE_NAME.fullmatch(path.name)
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
    if not self.is_due(done.round_num):
      return
    run, start = self._run, time.monotonic()
    cohort = cohort_data.cohort(
      run.config, run.participating, self._source, done.round_num
    )
    left_out = {failure.client_index for failure in done.failures}
    failures = []

    def taking_part():
      for index, client in enumerate(cohort):
        if self._should_stop():
          raise RoundInterrupted
        if index not in left_out:
          yield client

    def on_failure(client, error):
      failure = round_options.describe_failure(
        cohort.index(client), error, while_loading=False
      )
      failures.append((client.client_id, failure.message))

    self.clients = barrier.measure_clients(
      run.process,
      done.state_before,
      done.state,
      run.evaluator,
      taking_part(),
      on_failure=on_failure,
    )
    for client_id, message in failures[:MAX_FAILURES_SHOWN]:
      done.write_line(
        f'Round {done.round_num}: client {client_id!r} was left out of the '
        f'barrier, {message}'
      )
    # The interval is not read.
    found = results.summarize_barriers(self.clients, num_bootstrap=1, seed=0)
    done.metrics.update(
      {
        'barrier/loss': found['loss']['mean'],
        'barrier/error': found['error']['mean'],
        'barrier/num_clients': found['loss']['num_clients'],
        'barrier/num_non_finite_clients': found['loss']['num_non_finite'],
        'barrier/num_failed_clients': len(failures),
      }
    )
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
