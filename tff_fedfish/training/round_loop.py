"""The training loop: rounds, each followed by its callbacks."""

import contextlib
import math
import sys
import time

from tff_fedfish.progress import Progress, Stages
from tff_fedfish.run import (
  cohort_data,
  round_metrics,
  round_rates,
  run_directory,
)
from tff_fedfish.run.divergence import RoundHistory
from tff_fedfish.run.metrics_files import MetricsLog
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  use_round_options,
)
from tff_fedfish.training import barrier_rounds, engine, round_callbacks
from tff_fedfish.training.built_run import BuiltRun
from tff_fedfish.training.interruption import Interruption


def run_rounds(run: BuiltRun, history: RoundHistory, stages: Stages) -> int:
  """Runs the rounds that are left.

  Args:
    run: The run.
    history: Which of its rounds were finite.
    stages: Shows what takes long before the first round.

  Returns:
    The exit code, see `train`.

  Raises:
    FailedError: See `train`.
    OSError: See `train`.
  """
  barriers = barrier_rounds.BarrierRounds(
    run.config,
    run.workdir,
    process=run.process,
    participating=run.participating,
    client_rows=run.client_rows,
    evaluator=run.evaluator,
  )
  if not run.is_resumed:
    run_directory.start(run.config, run.workdir, run.tokenizer, run.corpus)
  log = MetricsLog(
    run.workdir,
    run.position.round_num if run.is_resumed else None,
    metric_names=round_metrics.metric_names(run.config),
    timing_names=round_metrics.timing_names(run.config),
  )
  if run.is_resumed:
    # Only now: a run that cannot be continued is left as it is.
    run_directory.start(run.config, run.workdir, run.tokenizer, run.corpus)
  barriers.remove_after(run.position.round_num if run.is_resumed else -1)
  with contextlib.ExitStack() as stack:
    stack.enter_context(log)
    interruption = stack.enter_context(Interruption('client'))
    writer = stack.enter_context(round_callbacks.checkpoint_writer(run))
    workers = engine.build_workers(run.config)
    if workers is not None:
      stack.enter_context(workers)
    options = engine.round_options(
      run.config, workers, lambda: interruption.requested is not None
    )
    checkpoints = round_callbacks.Checkpoints(run, writer, history)
    loop = _RoundLoop(
      run,
      options,
      stack.enter_context(cohort_data.Prefetcher()),
      callbacks=(
        round_callbacks.Barrier(barriers, options.should_stop),
        round_callbacks.HeldOutScore(run, options.should_stop),
        round_callbacks.Log(run, log, history),
        checkpoints,
      ),
    )
    stack.enter_context(checkpoints.saving_on_failure())
    with contextlib.suppress(RoundInterrupted):
      loop.run(history, checkpoints, stages)
    checkpoints.save()
  return _exit_code(run, history, interruption)


class _RoundLoop:
  """Runs rounds, and moves the run's position."""

  def __init__(self, run, options, prefetcher, callbacks):
    self._run = run
    self._options = options
    self._prefetcher = prefetcher
    self._callbacks = callbacks

  def run(self, history, checkpoints, stages):
    """Runs rounds until the last, or until the run is to stop."""
    run, position = self._run, self._run.position
    num_rounds = run.config.training.num_rounds
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
          checkpoints.wait()
          history.require_not_diverged()

  def _run_round(self, round_num, write_line):
    """Runs a round; interrupted, it leaves no trace."""
    run, start = self._run, time.monotonic()
    clients = run.cohort(round_num)
    self._prefetch(round_num + 1)
    # Not kept: a round that is given up leaves the state as it was.
    state = round_rates.with_rates(
      run.process, run.position.state, run.config, round_num
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
      columns=run.config.method.columns(run.config),
    ) | round_rates.rates_by_column(run.config, round_num)
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

  def _finish(self, done):
    for callback in self._callbacks:
      callback.measure(done)
    for callback in self._callbacks:
      callback.record(done)
    position = self._run.position
    position.round_num, position.state = done.round_num, done.state

  def _prefetch(self, round_num):
    # Workers load for themselves, and it is not known which one what.
    if (
      self._options.workers is None
      and round_num <= self._run.config.training.num_rounds
    ):
      self._prefetcher.start(self._run.cohort(round_num))


def _exit_code(run, history, interruption):
  """Says how the run ended; returns its exit code."""
  round_num = run.position.round_num
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
