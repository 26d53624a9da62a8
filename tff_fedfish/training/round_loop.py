"""The training loop: rounds, each followed by its callbacks."""

import contextlib
import math
import sys
import time

from tff_fedfish.progress import Progress, Stages
from tff_fedfish.run import (
  cohort_data,
  learning_setup,
  round_metrics,
  run_directory,
)
from tff_fedfish.run.metrics_files import MetricsLog
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  RoundOptions,
  use_round_options,
)
from tff_fedfish.training import round_callbacks
from tff_fedfish.training.built_run import BuiltRun
from tff_fedfish.training.interruption import Interruption


def run_rounds(run: BuiltRun, stages: Stages) -> int:
  """Runs the rounds that are left.

  Args:
    run: The run.
    stages: Shows what takes long before the first round.

  Returns:
    The exit code, see `train`.

  Raises:
    FailedError: See `train`.
    OSError: See `train`.
  """
  with contextlib.ExitStack() as stack:
    checked = run.checked
    run_directory.start(
      run.config, run.workdir, checked.tokenizer, checked.identity
    )
    log = MetricsLog(
      run.workdir,
      run.position.round_num if run.is_resumed else None,
      metric_names=round_metrics.metric_names(run.config),
      timing_names=round_metrics.timing_names(run.config),
    )
    stack.enter_context(log)
    interruption = stack.enter_context(Interruption('client'))
    checkpoints = round_callbacks.Checkpoints(run)
    stack.enter_context(checkpoints.writer)
    workers = _build_workers(run.config.engine)
    if workers is not None:
      stack.enter_context(workers)
    # A client that fails is left out.
    options = RoundOptions(
      num_partial_sums=run.config.num_partial_sums,
      tolerates_failures=True,
      quorum=run.config.engine.quorum,
      should_stop=lambda: interruption.requested is not None,
      workers=workers,
    )
    loop = _RoundLoop(
      run,
      options,
      callbacks=(
        round_callbacks.Barrier(run, options.should_stop),
        round_callbacks.HeldOutScore(run, options.should_stop),
        round_callbacks.Log(run, log),
        checkpoints,
      ),
    )
    stack.enter_context(checkpoints.saving_on_failure())
    with contextlib.suppress(RoundInterrupted):
      loop.run(checkpoints, stages)
    checkpoints.save()
  return _exit_code(run, interruption)


def _build_workers(engine):
  """Returns the workers of engine 'ray', to be closed; None in process."""
  if engine.kind == 'in_process':
    return None
  return RayWorkers(
    engine.num_workers,
    threads_per_worker=engine.threads_per_worker,
    gpus_per_worker=engine.gpus_per_worker,
    address=engine.ray_address,
  )


class _RoundLoop:
  """Runs rounds, and moves the run's position."""

  def __init__(self, run, options, callbacks):
    self._run = run
    self._options = options
    self._callbacks = callbacks
    self._source = cohort_data.source_of(
      run.config, run.client_rows, run.workdir / run_directory.VOCABULARY_NAME
    )

  def run(self, checkpoints, stages):
    """Runs rounds until the last, or until the run is to stop."""
    run, position = self._run, self._run.position
    history, num_rounds = run.checked.history, run.config.training.num_rounds
    if not run.is_resumed:
      with stages('scoring round 0'):
        self._finish(
          round_callbacks.FinishedRound(
            round_num=0, state_before=None, state=position.state
          )
        )
    if self._options.should_stop():
      return
    with stages('tracing the round'):
      run.context.compile(run.process.next)
    start = position.round_num
    with Progress('train', num_rounds, completed=start) as progress:
      if run.is_resumed:
        progress.write_line(f'Continuing after round {start}.')
      while position.round_num < num_rounds and not self._options.should_stop():
        metrics = self._run_round(position.round_num + 1, progress.write_line)
        loss = metrics['train/loss']
        progress.advance(
          num_tokens=metrics['train/num_tokens'],
          # The loss of an earlier round is not this one's.
          loss=math.nan if loss is None else loss,
        )
        if round_metrics.is_non_finite(metrics):
          progress.write_line(history.line(metrics))
          # The last good checkpoint may still be being written.
          checkpoints.writer.wait()
          history.require_not_diverged()

  def _run_round(self, round_num, write_line):
    """Runs a round; interrupted, it leaves no trace."""
    run, config, start = self._run, self._run.config, time.monotonic()
    clients = self._cohort(round_num)
    # Not kept: a round that is given up leaves the state as it was.
    state = learning_setup.with_rates(
      run.process, run.position.state, config, round_num
    )
    with use_round_options(self._options) as outcome:
      output = run.process.next(state, clients)
    for failure in outcome.failures[: round_callbacks.MAX_FAILURES_SHOWN]:
      client_id = clients[failure.client_index].client_id
      write_line(
        f'Round {round_num}: client {client_id!r} was left out, '
        f'{failure.message}'
      )
    metrics = round_metrics.train_metrics(
      output.metrics,
      outcome,
      num_clients=len(clients),
      columns=config.method.columns(config),
    ) | round_metrics.rates_by_column(config, round_num)
    seconds = time.monotonic() - start
    self._finish(
      round_callbacks.FinishedRound(
        round_num=round_num,
        state_before=state,
        state=output.state,
        failures=outcome.failures,
        metrics=metrics,
        timings={
          'seconds': seconds,
          'tokens_per_second': metrics['train/num_tokens'] / seconds,
          'num_lost_workers': outcome.num_lost_workers,
        },
        write_line=write_line,
      )
    )
    return metrics

  def _cohort(self, round_num):
    return cohort_data.cohort(
      self._run.config, self._run.participating, self._source, round_num
    )

  def _finish(self, done):
    for callback in self._callbacks:
      callback.measure(done)
    for callback in self._callbacks:
      callback.record(done)
    position = self._run.position
    position.round_num, position.state = done.round_num, done.state


def _exit_code(run, interruption):
  """Says how the run ended; returns its exit code."""
  history, round_num = run.checked.history, run.position.round_num
  num_rounds = run.config.training.num_rounds
  if round_num < num_rounds:
    print(
      f'fedfish: stopped after round {round_num} of {num_rounds}; the same '
      'command continues.',
      file=sys.stderr,
    )
    return interruption.exit_code
  if history.num_in_a_row:
    print(
      f'fedfish: warning: the run ended with {history.num_in_a_row} non-finite '
      'rounds in a row; the last good checkpoint is '
      f'{str(history.last_good_checkpoint())!r}.',
      file=sys.stderr,
    )
  return 0
