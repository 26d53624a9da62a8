"""The Client-Server Barrier of rounds while a run trains."""

import time
from collections.abc import Callable

from tff_fedfish.evaluation import barrier, statistics, tables
from tff_fedfish.run import cohorts
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.round_options import RoundInterrupted
from tff_fedfish.training.parts import (
  MAX_FAILURES_SHOWN,
  BuiltRun,
  FinishedRound,
)


def measure_barrier(
  run: BuiltRun,
  done: FinishedRound,
  inputs: ClientInputs | None,
  should_stop: Callable[[], bool],
) -> None:
  """Trains the clients of a round again, and adds the barrier to its metrics.

  The means are those of `fedfish evaluate --barrier` from the checkpoint before
  the round, in process and unless a client failed. Whatever runs the rounds,
  the clients are measured in this process, one after the other. A client that
  raises is left out: what is measured beside the training must not end it.

  Args:
    run: The run; its process gives its clients' models.
    done: The round.
    inputs: See `cohort`.
    should_stop: Is asked before each client.

  Raises:
    RoundInterrupted: If the run is to stop.
  """
  start = time.monotonic()
  failures = []
  entries = barrier.measure_clients(
    run.process,
    done.state_before,
    run.weights_after(done),
    run.evaluator,
    _participants(run, done, inputs, should_stop),
    on_failure=lambda client, error: failures.append((client, error)),
  )
  for client, error in failures[:MAX_FAILURES_SHOWN]:
    failure = round_options.describe_failure(0, error, while_loading=False)
    done.write_line(
      f'Round {done.round_num}: client {client.client_id!r} was left out of '
      f'the barrier, {failure.message}'
    )
  summary = statistics.barrier_scores(
    tables.as_table(tables.ClientBarrier, entries)
  )
  done.metrics['barrier/loss'] = summary.loss.mean
  done.metrics['barrier/error'] = summary.error.mean
  done.metrics['barrier/num_clients'] = summary.loss.num_clients
  num_non_finite = summary.loss.num_non_finite
  done.metrics['barrier/num_non_finite_clients'] = num_non_finite
  done.metrics['barrier/num_failed_clients'] = len(failures)
  done.timings['barrier_seconds'] = time.monotonic() - start


def _participants(run, done, inputs, should_stop):
  """Yields the clients that took part in a round."""
  clients = cohorts.cohort(
    run.config, run.participating, run.client_rows, done.round_num, inputs
  )
  left_out = {failure.client_index for failure in done.failures}
  for index, client in enumerate(clients):
    if should_stop():
      raise RoundInterrupted
    if index not in left_out:
      yield client
