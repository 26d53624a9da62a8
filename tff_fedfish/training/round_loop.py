"""The training loop: rounds, each followed by its callbacks."""

import contextlib
import dataclasses
import math
import pathlib
import sys
import time
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.evaluation import client_evaluator
from tff_fedfish.methods.method import load
from tff_fedfish.progress import Progress, stage
from tff_fedfish.run import (
  checkpoints,
  cohort_data,
  learning_setup,
  round_metrics,
  run_directory,
  run_inputs,
)
from tff_fedfish.run import trackers as tracker_classes
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  RoundOptions,
  use_round_options,
)
from tff_fedfish.training import replayed_rounds, round_callbacks
from tff_fedfish.training.feature_store import FeatureStore
from tff_fedfish.training.interruption import Interruption
from tff_fedfish.training.kept_states import KeptStates
from tff_fedfish.training.kept_uploads import KeptUploads
from tff_fedfish.training.personal_score import PersonalScore
from tff_fedfish.training.privacy_accounts import PrivacyAccounts
from tff_fedfish.training.round_callbacks import (
  BuiltRun,
  FinishedRound,
  Position,
)
from tff_fedfish.training.run_checks import CheckedRun
from tff_fedfish.training.server_solve import ServerSolve


def run_rounds(
  config: TrainConfig,
  workdir: pathlib.Path,
  checked: CheckedRun,
  kept_uploads: KeptUploads | None = None,
  trackers: Sequence[str] = (),
) -> int:
  """Builds the learning process and runs the rounds that are left.

  See `train` for the arguments, the exit code and the errors.

  Raises:
    UserError: If the checkpoint does not fit the process, or the process can
      only run in TFF's own context.
  """
  run = _build(config, workdir, checked)
  with contextlib.ExitStack() as stack:
    run_directory.start(config, workdir, checked.tokenizer, checked.identity)
    stack.enter_context(checked.log)
    interruption = stack.enter_context(Interruption('client'))
    tracked = round_callbacks.Trackers(
      [
        stack.enter_context(tracker_classes.find(name)(name, workdir))
        for name in trackers
      ]
    )
    workers, engine = None, config.engine
    if engine.kind == 'ray':
      workers = RayWorkers(
        engine.num_workers,
        threads_per_worker=engine.threads_per_worker,
        gpus_per_worker=engine.gpus_per_worker,
        address=engine.ray_address,
        paths=cohort_data.paths_of_workers(config, workdir),
      )
      stack.enter_context(workers)

    def should_stop():
      return interruption.requested is not None

    # A client that fails is left out.
    options = RoundOptions(
      num_partial_sums=config.num_partial_sums,
      tolerates_failures=True,
      quorum=engine.quorum,
      should_stop=should_stop,
      workers=workers,
    )
    if workers is not None and kept_uploads is None:
      with stage('starting workers'), contextlib.suppress(RoundInterrupted):
        workers.start(should_stop)
    _RoundLoop(run, options, tracked, kept_uploads).run()
    while _has_next_phase(run) and not options.should_stop():
      run = _next_phase(run)
      _RoundLoop(run, options, tracked).run()
  return _exit_code(run, interruption)


def _has_next_phase(run):
  """Says whether the run goes on, in another phase."""
  done, num_rounds = run.position.round_num, run.config.training.num_rounds
  phase = run.config.phase
  return phase is not None and done == phase.last_round < num_rounds


def _next_phase(run):
  """Builds the phase after a run's last round, and the state it begins with.

  Nothing is written: it is built again in a run that is resumed there.
  """
  done = run.position.round_num
  config = run.config.in_round(done + 1)
  process, evaluator = _build_process(config, run.participating)
  with stage(f'beginning with phase {config.phase.name!r}'):
    begin = load(config.phase.begin)
    state = begin(config, process, run.position.state)
  return dataclasses.replace(
    run,
    config=config,
    process=process,
    evaluator=evaluator,
    position=Position(done, state),
    is_resumed=True,
  )


def _build(config, workdir, checked):
  """Builds the process of the position, and restores or draws its state."""
  client_rows = run_inputs.training_rows(
    config, checked.corpus, checked.tokenizer
  )
  round_num = 0
  if checked.checkpoint is not None:
    round_num = checkpoints.read_description(checked.checkpoint)['round']
  config = config.in_round(round_num)
  set_in_process_context()
  participating = run_inputs.training_clients(config, checked.split)
  process, evaluator = _build_process(config, participating)
  if checked.checkpoint is None:
    with stage('drawing the weights'):
      state = process.initialize()
      if checked.start is not None:
        state = learning_setup.with_start_weights(
          process, state, config, checked.start
        )
  else:
    with stage('restoring'):
      loaded = checkpoints.load_checkpoint(checked.checkpoint, verify=False)
      state_type = process.initialize.type_signature.result
      state = learning_setup.from_tensors(
        loaded.tensors, state_type, checked.checkpoint
      )
  return BuiltRun(
    config=config,
    workdir=workdir,
    checked=checked,
    process=process,
    evaluator=evaluator,
    position=Position(round_num, state),
    participating=participating,
    client_rows=client_rows,
    is_resumed=checked.checkpoint is not None,
  )


def _build_process(config, participating):
  """Returns the learning process of a phase, and what scores its model."""
  with stage('building the model and its learning process'):
    process = learning_setup.build_learning_process(
      config, num_clients=len(participating)
    )
    learning_setup.require_declared_process(
      config,
      process,
      with_trained_models=bool(config.evaluation.barrier_every_num_rounds),
    )
    evaluator = client_evaluator.build_evaluator(config)
  return process, evaluator


class _RoundLoop:
  """Runs the rounds of a phase, and moves the run's position."""

  def __init__(self, run, options, tracked, kept_uploads=None):
    self._run, self._options = run, options
    self._kept_uploads = kept_uploads
    self._kept, self._server = KeptStates(run), ServerSolve(run)
    self._store = FeatureStore(run)
    self._saved = round_callbacks.Checkpoints(run, self._contents_of)
    should_stop, kept = options.should_stop, self._kept.inputs
    self._callbacks = (
      replayed_rounds.Barrier(run, should_stop, kept),
      round_callbacks.HeldOutScore(run, should_stop),
      PersonalScore(run, should_stop, kept),
      # States and accounts before the row, and the row before the checkpoint.
      self._kept,
      self._store,
      PrivacyAccounts(run),
      round_callbacks.Log(run),
      self._server,
      self._saved,
      tracked,
    )
    self._client_rows = cohort_data.rows_for_engine(
      run.config, run.client_rows, run.workdir / run_directory.VOCABULARY_NAME
    )

  def run(self):
    """Runs the rounds that are left of the phase, and saves the last one."""
    with self._saved.writer, self._saved.saving_on_failure():
      with contextlib.suppress(RoundInterrupted):
        self._run_rounds()
      self._saved.save()
      self._saved.writer.wait()
      self._kept.collect()

  def _contents_of(self, round_num):
    kept = self._kept.checkpoint_contents(round_num)
    return kept | self._store.checkpoint_contents()

  def _run_rounds(self):
    """Runs rounds until the phase's last, or until the run is to stop."""
    run, position = self._run, self._run.position
    history, num_rounds = run.checked.history, run.config.training.num_rounds
    last, phase = num_rounds, run.config.phase
    if phase is not None and phase.last_round is not None:
      last = min(last, phase.last_round)
    if not run.is_resumed:
      with stage('scoring round 0'):
        self._finish(FinishedRound(round_num=0, state=position.state))
    if self._options.should_stop() or position.round_num == last:
      return
    self._store.prepare(self._options.should_stop)
    if self._kept_uploads is None:
      with stage('tracing the round'):
        compiled = set_in_process_context().compile(run.process.next)
      if compiled is None:
        raise UserError(
          f'algorithm.name {run.config.algorithm.name!r} cannot be trained: '
          'its process has no MapReduceForm, or holds variables, lookup tables '
          'or queues. Build it of functions of tensors (docs/engine.md).'
        )
    done, num_tokens = position.round_num, None
    # Images are no tokens.
    if not run.config.data.holds_images:
      num_tokens = history.total('train/num_tokens')
    with Progress(
      'train', num_rounds, completed=done, num_tokens=num_tokens
    ) as progress:
      if run.is_resumed and phase is None:
        progress.write_line(f'Continuing after round {done}.')
      elif run.is_resumed:
        progress.write_line(
          f'Continuing after round {done}, in phase {phase.name!r}.'
        )
      while position.round_num < last and not self._options.should_stop():
        self._kept.require_room()
        # Interrupted, a round leaves no trace.
        with contextlib.ExitStack() as stack:
          metrics = self._run_round(
            position.round_num + 1, progress.write_line, stack
          )
        loss = metrics['train/loss']
        progress.advance(
          num_tokens=metrics['train/num_tokens'],
          # The loss of an earlier round is not this one's.
          loss=math.nan if loss is None else loss,
        )
        if round_metrics.is_non_finite(metrics):
          progress.write_line(history.line(metrics))
          # The last good checkpoint may still be being written.
          self._saved.writer.wait()
          history.require_not_diverged()

  def _run_round(self, round_num, write_line, stack):
    run, config, start = self._run, self._run.config, time.monotonic()
    clients = cohort_data.cohort(
      config,
      run.participating,
      self._client_rows,
      round_num,
      self._kept.inputs,
    )
    clients = self._store.clients(
      round_num, run.position.state, clients, self._options.should_stop
    )
    # Not kept: a round that is given up leaves the state as it was.
    state = learning_setup.with_rates(
      run.process, run.position.state, config, round_num
    )
    on_client_output = self._kept.begin(round_num, clients, stack)
    if on_client_output is None:
      on_client_output = self._server.begin(round_num, clients, stack)
    done = self._server.solve(
      self._train_clients(
        round_num, state, clients, on_client_output, write_line
      )
    )
    metrics = done.metrics
    if config.method.features is not None:
      _require_all_clients(round_num, config, clients, done, metrics)
    _require_bounds(round_num, config, metrics)
    seconds = time.monotonic() - start
    timings = done.timings | {
      'seconds': seconds,
      'tokens_per_second': metrics['train/num_tokens'] / seconds,
    }
    self._finish(dataclasses.replace(done, timings=timings))
    return metrics

  def _train_clients(
    self, round_num, state, clients, on_client_output, write_line
  ):
    """Returns the round up to the server's solve."""
    run, config = self._run, self._run.config
    done = FinishedRound(
      round_num=round_num,
      state=state,
      state_before=state,
      write_line=write_line,
    )
    if self._kept_uploads is not None:
      metrics = self._kept_uploads.hand_on(clients, on_client_output)
      return dataclasses.replace(done, metrics=metrics)
    options = dataclasses.replace(
      self._options,
      on_client_output=on_client_output,
      on_notice=lambda text: write_line(f'Round {round_num}: {text}'),
    )
    with use_round_options(options) as outcome:
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
    )
    metrics |= round_metrics.rates_by_column(config, round_num)
    metrics |= round_metrics.phase_column(config, round_num)
    return dataclasses.replace(
      done,
      state=output.state,
      failures=outcome.failures,
      metrics=metrics,
      timings={'num_lost_workers': outcome.num_lost_workers},
    )

  def _finish(self, done):
    for callback in self._callbacks:
      callback.measure(done)
    for callback in self._callbacks:
      callback.record(done)
    position = self._run.position
    position.round_num, position.state = done.round_num, done.state


def _require_all_clients(round_num, config, clients, done, metrics):
  """Raises FailedError unless every client took part in a round."""
  found = f'{metrics["train/num_non_finite_clients"]} were not finite'
  if done.failures:
    first = done.failures[0]
    client_id = clients[first.client_index].client_id
    found = f'client {client_id!r} failed: {first.message}'
  elif not metrics['train/num_non_finite_clients']:
    return
  raise FailedError(
    f'Round {round_num}: algorithm.name {config.algorithm.name!r} requires '
    f'every client in every round, but {found}. The rounds before it are saved.'
  )


def _require_bounds(round_num, config, metrics):
  """Raises FailedError if a column exceeds what its method can go on with."""
  for column in config.method.columns(config):
    limit, found = column.at_most, metrics[column.name]
    # Also where it is no number.
    if limit is not None and not found <= limit:
      raise FailedError(
        f'Round {round_num}: {column.name!r} must be at most {limit:g} with '
        f'algorithm.name {config.algorithm.name!r}, found {found:g}. The '
        'rounds before it are saved.'
      )


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
