"""The Client-Server Barrier of rounds while a run trains."""

import time
from collections.abc import Callable

from tff_fedfish.evaluation import barrier
from tff_fedfish.evaluation.summary import summarize_barriers
from tff_fedfish.run import cohorts
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.round_options import RoundInterrupted
from tff_fedfish.training.parts import (
  MAX_FAILURES_SHOWN,
  BuiltRun,
  FinishedRound,
  RoundPart,
)


class BarrierPart(RoundPart):
  """Trains the clients of a round again, to measure the barrier.

  Its means, in metrics.csv, are those of `fedfish evaluate --barrier` from the
  checkpoint before the round, in process and unless a client failed. Whatever
  runs the rounds, the clients are measured in this process, one after the
  other. A client that raises is left out: what is measured beside the training
  must not end it.
  """

  def __init__(
    self,
    run: BuiltRun,
    should_stop: Callable[[], bool],
    inputs: ClientInputs | None,
  ):
    """Measures nothing yet.

    Args:
      run: The run; its process gives its clients' models.
      should_stop: Is asked before each client.
      inputs: See `cohort`.
    """
    self._run, self._should_stop, self._inputs = run, should_stop, inputs

  def measure(self, done: FinishedRound) -> None:
    """See `RoundPart`."""
    run, start = self._run, time.monotonic()
    every = run.config.evaluation.barrier_every_num_rounds
    if not done.round_num or not run.is_due(done.round_num, every):
      return
    failures = []
    entries = barrier.measure_clients(
      run.process,
      done.state_before,
      run.weights_after(done),
      run.evaluator,
      self._clients(done),
      on_failure=lambda client, error: failures.append((client, error)),
    )
    for client, error in failures[:MAX_FAILURES_SHOWN]:
      failure = round_options.describe_failure(0, error, while_loading=False)
      done.write_line(
        f'Round {done.round_num}: client {client.client_id!r} was left out of '
        f'the barrier, {failure.message}'
      )
    summary = summarize_barriers(entries)
    done.metrics['barrier/loss'] = summary.loss.mean
    done.metrics['barrier/error'] = summary.error.mean
    done.metrics['barrier/num_clients'] = summary.loss.num_clients
    num_non_finite = summary.loss.num_non_finite
    done.metrics['barrier/num_non_finite_clients'] = num_non_finite
    done.metrics['barrier/num_failed_clients'] = len(failures)
    done.timings['barrier_seconds'] = time.monotonic() - start

  def _clients(self, done):
    """Yields the clients that took part in a round."""
    run = self._run
    clients = cohorts.cohort(
      run.config,
      run.participating,
      run.client_rows,
      done.round_num,
      self._inputs,
    )
    left_out = {failure.client_index for failure in done.failures}
    for index, client in enumerate(clients):
      self._require_going_on()
      if index not in left_out:
        yield client

  def _require_going_on(self):
    if self._should_stop():
      raise RoundInterrupted
