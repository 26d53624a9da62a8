"""The training loop: rounds, scores, files; resumes by itself."""

import contextlib
import math
import os
import pathlib
import resource
import sys
import time

from models.model_shapes import num_parameters
from tff_fedfish import files
from tff_fedfish.training import (
  checkpoints,
  divergence,
  fingerprints,
  round_metrics,
  round_rates,
  run_checks,
  run_directory,
  run_inputs,
)
from tff_fedfish.training.checkpoint_writer import CheckpointWriter
from tff_fedfish.training.config import TrainConfig
from tff_fedfish.training.interruption import Interruption
from tff_fedfish.training.metrics_files import MetricsLog
from tff_fedfish.training.progress import Progress, Stages

# Of a round; metrics.csv counts them all.
_MAX_FAILURES_SHOWN = 3


def train(config: TrainConfig, workdir: str | os.PathLike) -> int:
  """Runs, or continues, the run of a config.

  Args:
    config: The config.
    workdir: The run's directory.

  Returns:
    0, or 128 + signal where SIGINT or SIGTERM ended the run: the round in hand
    is given up after the client in hand, the last whole one is saved.

  Raises:
    UserError: If config, corpus, vocabulary and directory do not go together.
    FailedError: If a round failed; the rounds before it are saved. Or if
      `training.max_non_finite_rounds` in a row were non-finite, now or before.
    OSError: If a file of the run cannot be written, such as on a full disk.
  """
  workdir = files.require_usable_output(
    workdir, '--workdir', marker=run_directory.CONFIG_NAME
  )
  limit = config.training.max_non_finite_rounds
  stages = Stages()
  with run_directory.lock(workdir):
    checked = run_checks.check_run(config, workdir, stage=stages)
    history = checked.history or divergence.RoundHistory(workdir, limit)
    history.require_not_diverged()
    if checked.inputs is None:
      print(f'The run in {str(workdir)!r} is finished.', file=sys.stderr)
      return 0
    run_checks.print_warnings(config, workdir)
    run_checks.print_unknown_tokens(checked)
    stages.release()
    return _Run(config, workdir, checked, history, stages).run()


class _Run:
  """State that the rounds of one run share."""

  def __init__(self, config, workdir, checked, history, stages):
    # Late: errors of config and data must not wait for TensorFlow.
    with stages('importing TensorFlow Federated'):
      from tff_fedfish.runtime.in_process_context import set_in_process_context
      from tff_fedfish.training import barrier_rounds, learning_setup

      self._context = set_in_process_context()
    inputs = checked.inputs
    self._config = config
    self._stages = stages
    self._participating = run_inputs.training_clients(config, inputs.split)
    self._contents = fingerprints.contents(
      config, inputs.corpus_fingerprint, inputs.tokenizer
    )
    client_rows = run_inputs.training_rows(
      config, inputs.corpus, inputs.tokenizer
    )
    with stages('building the model and its learning process'):
      self._process = learning_setup.build_learning_process(config)
      if config.evaluation.barrier_every_num_rounds:
        learning_setup.require_trained_models(config, self._process)
      self._state_type = self._process.initialize.type_signature.result
      self._evaluator = learning_setup.build_evaluator(config)
    # Before anything is written: the restored state may not fit.
    self._is_resumed = checked.checkpoint is not None
    with stages('restoring' if self._is_resumed else 'drawing the weights'):
      self._round, self._state = self._first_state(checked.checkpoint)
    self._workdir = workdir
    self._history = history
    self._tokenizer = inputs.tokenizer
    self._saved_round = self._round if self._is_resumed else None
    self._is_logged = self._is_resumed
    self._source = _source(config, workdir, client_rows)
    self._barrier_rounds = barrier_rounds.BarrierRounds(
      config,
      workdir,
      process=self._process,
      participating=self._participating,
      client_rows=client_rows,
      evaluator=self._evaluator,
    )
    self._sample = checked.sample

  def run(self) -> int:
    """Runs the rounds that are left."""
    from tff_fedfish.training import cohort_data, engine

    if not self._is_resumed:
      self._start()
    log = MetricsLog(
      self._workdir,
      self._round if self._is_resumed else None,
      metric_names=round_metrics.metric_names(self._config),
      timing_names=round_metrics.timing_names(self._config),
    )
    if self._is_resumed:
      # Only now: a run that cannot be continued is left as it is.
      self._start()
    self._barrier_rounds.remove_after(self._round if self._is_resumed else -1)
    with contextlib.ExitStack() as stack:
      self._log = stack.enter_context(log)
      interruption = stack.enter_context(Interruption('client'))
      self._writer = stack.enter_context(self._checkpoint_writer())
      workers = engine.build_workers(self._config)
      if workers is not None:
        stack.enter_context(workers)
      self._prefetcher = stack.enter_context(cohort_data.Prefetcher())
      self._options = engine.round_options(
        self._config, workers, lambda: interruption.requested is not None
      )
      stack.enter_context(self._saving_on_failure())
      self._run_rounds(interruption)
      self._save_checkpoint()
    num_rounds = self._config.training.num_rounds
    if self._round == num_rounds:
      if self._history.num_in_a_row:
        print(
          f'fedfish: warning: the run ended with {self._history.num_in_a_row} '
          'non-finite rounds in a row; the last good checkpoint is '
          f'{str(self._history.last_good_checkpoint())!r}.',
          file=sys.stderr,
        )
      return 0
    print(
      f'fedfish: stopped after round {self._round} of {num_rounds}; the '
      'same command continues.',
      file=sys.stderr,
    )
    return interruption.exit_code

  def _run_rounds(self, interruption):
    from tff_fedfish.runtime.round_options import RoundInterrupted

    num_rounds = self._config.training.num_rounds
    with contextlib.suppress(RoundInterrupted):
      if not self._is_resumed:
        with self._stages('scoring round 0'):
          self._finish_round(0, self._state, {}, {})
      if interruption.requested:
        return
      with self._stages('tracing the round'):
        self._context.compile(self._process.next)
      with Progress('train', num_rounds, completed=self._round) as progress:
        if self._is_resumed:
          progress.write_line(f'Continuing after round {self._round}.')
        while self._round < num_rounds and not interruption.requested:
          metrics = self._run_round(self._round + 1, progress)
          loss = metrics['train/loss']
          progress.advance(
            num_tokens=metrics['train/num_tokens'],
            # The loss of an earlier round is not this one's.
            loss=math.nan if loss is None else loss,
          )
          if round_metrics.is_non_finite(metrics):
            progress.write_line(self._history.line(metrics))
            # The last good checkpoint may still be being written.
            self._writer.wait()
            self._history.require_not_diverged()

  def _start(self):
    run_directory.start(self._config, self._workdir, self._tokenizer)

  def _first_state(self, checkpoint_path):
    """Returns the round and state to continue from, or round 0's."""
    from tff_fedfish.training import server_state

    if checkpoint_path is None:
      return 0, self._process.initialize()
    checkpoint = checkpoints.load_checkpoint(checkpoint_path, verify=False)
    state = server_state.from_tensors(
      checkpoint.tensors, self._state_type, checkpoint_path
    )
    return checkpoint.round_num, state

  def _run_round(self, round_num, progress):
    """Runs, scores and logs a round; interrupted, it leaves no trace."""
    from tff_fedfish.runtime.round_options import use_round_options

    start = time.monotonic()
    clients = self._cohort(round_num)
    self._prefetch(round_num + 1)
    # Not kept: a round that is given up leaves the state as it was.
    state = round_rates.with_rates(
      self._process, self._state, self._config, round_num
    )
    with use_round_options(self._options) as outcome:
      output = self._process.next(state, clients)
    for failure in outcome.failures[:_MAX_FAILURES_SHOWN]:
      client_id = clients[failure.client_index].client_id
      progress.write_line(
        f'Round {round_num}: client {client_id!r} was left out, '
        f'{failure.message}'
      )
    metrics = round_metrics.train_metrics(
      output.metrics,
      outcome,
      num_clients=len(clients),
      columns=self._config.method.columns(self._config),
    ) | round_rates.rates_by_column(self._config, round_num)
    seconds = time.monotonic() - start
    timings = {
      'seconds': seconds,
      'tokens_per_second': metrics['train/num_tokens'] / seconds,
      'num_lost_workers': outcome.num_lost_workers,
    }
    barrier = None
    if self._barrier_rounds.is_due(round_num):
      start = time.monotonic()
      barrier = self._measure_barrier(
        round_num, state, output.state, outcome.failures, progress
      )
      metrics |= round_metrics.barrier_metrics(
        barrier.clients, num_failed=len(barrier.failures)
      )
      timings['barrier_seconds'] = time.monotonic() - start
    self._finish_round(round_num, output.state, metrics, timings, barrier)
    return metrics

  def _measure_barrier(self, round_num, state, new_state, failures, progress):
    barrier = self._barrier_rounds.measure(
      round_num,
      state,
      new_state,
      failed_clients={failure.client_index for failure in failures},
      should_stop=self._options.should_stop,
    )
    for client_id, message in barrier.failures[:_MAX_FAILURES_SHOWN]:
      progress.write_line(
        f'Round {round_num}: client {client_id!r} was left out of the barrier, '
        f'{message}'
      )
    return barrier

  def _trainable(self, state):
    return tuple(self._process.get_model_weights(state).trainable)

  def _cohort(self, round_num):
    from tff_fedfish.training import cohort_data

    return cohort_data.cohort(
      self._config, self._participating, self._source, round_num
    )

  def _prefetch(self, round_num):
    # Workers load for themselves, and it is not known which one what.
    if (
      self._options.workers is None
      and round_num <= self._config.training.num_rounds
    ):
      self._prefetcher.start(self._cohort(round_num))

  def _finish_round(self, round_num, state, metrics, timings, barrier=None):
    """Scores the model where that is due, logs, and then saves."""
    config, start = self._config, time.monotonic()
    metrics = metrics | round_metrics.communication_metrics(
      round_num,
      config,
      num_parameters(config.model_shape()),
      cohort_size=config.cohorts.cohort_size or len(self._participating),
    )
    if self._sample.clients and self._is_due(
      round_num, config.evaluation.every_num_rounds
    ):
      from tff_fedfish.evaluation import held_out_sample

      metrics |= held_out_sample.mean_score(
        self._evaluator,
        self._trainable(state),
        self._sample,
        should_stop=self._options.should_stop,
      )
      timings = timings | {'evaluation_seconds': time.monotonic() - start}
    timings = timings | {'peak_memory_bytes': peak_memory_bytes()}
    if barrier is not None:
      self._barrier_rounds.write(round_num, barrier.clients)
    self._log.log_round(round_num, metrics, timings)
    self._history.add({'round': round_num, **metrics})
    # From here on the round counts.
    self._round, self._state, self._is_logged = round_num, state, True
    if self._is_due(round_num, config.checkpoints.every_num_rounds):
      self._save_checkpoint()

  def _is_due(self, round_num, every_num_rounds):
    return (
      round_num in (0, self._config.training.num_rounds)
      or every_num_rounds
      and round_num % every_num_rounds == 0
    )

  def _checkpoint_writer(self):
    settings = self._config.checkpoints
    return CheckpointWriter(
      self._workdir / run_directory.CHECKPOINTS_NAME,
      keep_last=settings.keep_last,
      keep_every_num_rounds=settings.keep_every_num_rounds,
    )

  @contextlib.contextmanager
  def _saving_on_failure(self):
    """Keeps the rounds that are done when a round fails."""
    try:
      yield
    # Whatever it was, such as no memory for the server's step.
    except Exception:  # pylint: disable=broad-exception-caught
      self._save_checkpoint()
      raise

  def _save_checkpoint(self):
    from tff_fedfish.training import server_state

    # A round without a row in metrics.csv could not be continued from.
    if self._round == self._saved_round or not self._is_logged:
      return
    # First: three states would be alive if one were still being written.
    self._writer.wait()
    self._writer.save(
      self._round,
      server_state.to_tensors(self._state, self._state_type),
      self._contents,
      keep_rounds=self._history.good_and_finite(self._round),
    )
    self._saved_round = self._round


def _source(config, workdir, client_rows):
  """Returns where rounds find the clients' sequences or images."""
  from tff_fedfish.training import cohort_data

  if config.engine.kind == 'in_process':
    return cohort_data.OpenedSource(client_rows)
  if config.data.holds_images:
    return cohort_data.StoredImages(
      corpus=config.data.corpus,
      directory=str(pathlib.Path(config.data.directory).resolve()),
      **run_inputs.image_options(config),
    )
  return cohort_data.StoredSource(
    corpus=str(pathlib.Path(config.data.directory).resolve()),
    vocabulary=str((workdir / run_directory.VOCABULARY_NAME).resolve()),
    sequence_length=config.data.sequence_length,
    drop_short_block=config.data.drop_short_block,
    merge=run_inputs.merge_of(config),
  )


def peak_memory_bytes() -> int:
  """Returns the most memory this process has had resident."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
