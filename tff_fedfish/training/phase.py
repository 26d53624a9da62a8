"""The rounds of a phase: clients train, the round is measured and recorded."""

import contextlib
import dataclasses
import math
import time
import typing
from collections.abc import Sequence

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.progress import Progress, stage
from tff_fedfish.run import (
  build,
  client_data,
  cohorts,
  columns,
  divergence,
  run_directory,
)
from tff_fedfish.run.trackers import RowSink
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  RoundOptions,
  use_round_options,
)
from tff_fedfish.training import record_parts
from tff_fedfish.training.barrier_part import measure_barrier
from tff_fedfish.training.client_states_part import ClientStatesPart
from tff_fedfish.training.features_part import FeaturesPart
from tff_fedfish.training.parts import (
  MAX_FAILURES_SHOWN,
  BuiltRun,
  FinishedRound,
)
from tff_fedfish.training.privacy_part import PrivacyPart
from tff_fedfish.training.record_parts import Checkpoints
from tff_fedfish.training.scores_part import ScoresPart, score_of
from tff_fedfish.training.solve_part import SolvePart

if typing.TYPE_CHECKING:
  from tff_fedfish.training.solve import KeptUploads


class PhaseLoop:
  """Runs the rounds of a phase, and moves the run's position."""

  def __init__(
    self,
    run: BuiltRun,
    options: RoundOptions,
    sinks: Sequence[RowSink],
    kept_uploads: 'KeptUploads | None' = None,
  ):
    """Makes what the config asks for.

    Args:
      run: The run, at the last round before those to run.
      options: Options of all rounds.
      sinks: What gets the rows, too; they are entered.
      kept_uploads: See `train`.
    """
    self._run, self._options, self._sinks = run, options, sinks
    self._kept_uploads = kept_uploads
    self._has_warned = False
    config, features = run.config, run.config.method.features
    self._states = self._inputs = self._features = self._privacy = None
    self._scores = self._solve = None
    if config.kept_models:
      self._states = ClientStatesPart(run)
      self._inputs = self._states.inputs
    if features is not None and features.use != 'unused':
      self._features = FeaturesPart(run)
    if config.local_privacy.adds_noise:
      self._privacy = PrivacyPart(run)
    is_personal = config.method.personal(config) is not None
    has_clients = is_personal or run.checked.sample.clients
    if config.evaluation.num_clients and has_clients:
      self._scores = ScoresPart(run, options.should_stop, self._inputs)
    if config.method.solve is not None:
      self._solve = SolvePart(run)
    self._saved = Checkpoints(run, self._states, self._features)
    self._client_rows = client_data.rows_for_engine(
      config, run.client_rows, run.workdir / run_directory.VOCABULARY_NAME
    )

  def run(self) -> None:
    """Runs the rounds that are left of the phase, and saves the last one.

    Raises:
      FailedError: If a round failed or the run diverged.
      OSError: If a file cannot be written or read.
      UserError: If the process can only run in TFF's own context.
    """
    with self._saved.saving(), contextlib.suppress(RoundInterrupted):
      self._run_rounds()
    if self._states:
      self._states.collect()

  def _run_rounds(self):
    """Runs rounds until the phase's last, or until the run is to stop."""
    run, position = self._run, self._run.position
    should_stop = self._options.should_stop
    if not run.is_resumed:
      with stage('scoring round 0'):
        self._finish(FinishedRound(round_num=0, state=position.state))
    if should_stop() or position.round_num == run.last_round:
      return
    if self._features:
      self._features.prepare(should_stop)
    if self._kept_uploads is None:
      with stage('tracing the round'):
        _require_compiled(run)
    num_tokens = None
    # Images are no tokens.
    if not run.config.data.holds_images:
      num_tokens = run.checked.history.total('train/num_tokens')
    with Progress(
      'train',
      run.config.training.num_rounds,
      completed=position.round_num,
      num_tokens=num_tokens,
    ) as progress:
      if run.is_resumed:
        phase = run.config.phase
        where = '' if phase is None else f', in phase {phase.name!r}'
        progress.write_line(
          f'Continuing after round {position.round_num}{where}.'
        )
      history = run.checked.history
      while position.round_num < run.last_round and not should_stop():
        if history.has_stopped_early:
          break
        self._run_round(position.round_num + 1, progress)

  def _run_round(self, round_num, progress):
    """Runs a round; interrupted, it leaves no trace."""
    if self._states:
      self._states.require_room(round_num)
    self._saved.require_no_failure()
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
      done = self._train_clients(round_num, progress.write_line, stack)
      _require_bounds(self._run.config, done)
      seconds = time.monotonic() - begin
      num_tokens = done.metrics['train/num_tokens']
      speed = num_tokens / seconds
      done.timings.update(seconds=seconds, tokens_per_second=speed)
      self._finish(done)
    loss = done.metrics['train/loss']
    warning = divergence.loss_warning(self._run.config, round_num, loss)
    if warning and not self._has_warned:
      self._has_warned = True
      progress.write_line(warning)
    score = score_of(done.metrics, self._run.config.data.holds_images)
    progress.advance(
      num_tokens=num_tokens,
      # The loss of an earlier round is not this one's.
      loss=math.nan if loss is None else loss,
      score=' '.join(score).strip(),
    )
    if columns.is_non_finite(done.metrics):
      history = self._run.checked.history
      progress.write_line(history.line(done.metrics))
      # The last good checkpoint may still be being written.
      self._saved.writer.wait()
      history.require_not_diverged()

  def _train_clients(self, round_num, write_line, stack):
    """Returns a round as it is to be measured."""
    run, should_stop = self._run, self._options.should_stop
    clients = cohorts.cohort(
      run.config, run.participating, self._client_rows, round_num, self._inputs
    )
    if self._features:
      state = run.position.state
      clients = self._features.feed(round_num, state, clients, should_stop)
    writer = self._states or self._solve
    on_output = writer and writer.on_output(round_num, clients, stack)
    # Not kept: a round that is given up leaves the state as it was.
    state = build.with_rates(
      run.process, run.position.state, run.config, round_num
    )
    done = FinishedRound(
      round_num=round_num,
      state=state,
      state_before=state,
      write_line=write_line,
    )
    if self._kept_uploads is None:
      done = self._next(done, clients, on_output)
    else:
      done.metrics.update(self._kept_uploads.hand_on(clients, on_output))
    return self._solve.finish(done) if self._solve else done

  def _next(self, done, clients, on_output):
    """Returns a round after the learning process has run it."""
    round_num, config = done.round_num, self._run.config
    options = dataclasses.replace(
      self._options,
      on_client_output=on_output,
      on_notice=lambda text: done.write_line(f'Round {round_num}: {text}'),
    )
    with use_round_options(options) as outcome:
      output = self._run.process.next(done.state, clients)
    for failure in outcome.failures[:MAX_FAILURES_SHOWN]:
      client_id = clients[failure.client_index].client_id
      done.write_line(
        f'Round {round_num}: client {client_id!r} was left out, '
        f'{failure.message}'
      )
    metrics = columns.train_metrics(
      output.metrics,
      outcome,
      num_clients=len(clients),
      columns=config.method.columns(config),
    )
    metrics |= columns.rates_by_column(config, round_num)
    metrics |= columns.phase_column(config, round_num)
    done = dataclasses.replace(
      done,
      state=output.state,
      failures=outcome.failures,
      metrics=metrics,
      timings={'num_lost_workers': outcome.num_lost_workers},
    )
    if config.method.features is not None:
      _require_all_clients(config, done, clients)
    return done

  def _finish(self, done):
    """Measures a round, and records it; interrupted before, it leaves no trace.

    A kill may cut the records anywhere: states and accounts come before the
    row, with which the round counts, and the row before the checkpoint.
    """
    run, evaluation = self._run, self._run.config.evaluation
    barrier_every = evaluation.barrier_every_num_rounds
    if barrier_every and done.round_num:
      if run.is_due(done.round_num, barrier_every):
        measure_barrier(run, done, self._inputs, self._options.should_stop)
    if self._scores and run.is_due(done.round_num, evaluation.every_num_rounds):
      self._scores.measure(done)
    if self._states:
      done.timings['client_state_bytes'] = self._states.states.num_bytes
    if self._features:
      self._features.measure(done)
    if self._privacy:
      self._privacy.measure(done)
    record_parts.measure_traffic(run, done)
    if self._states and done.round_num:
      self._states.states.commit()
    if self._privacy:
      self._privacy.record(done)
    record_parts.write_row(run, done)
    if self._solve:
      self._solve.discard_uploads()
    self._saved.record(done)
    record_parts.send_row(done, self._sinks)
    run.position.round_num, run.position.state = done.round_num, done.state


def _require_compiled(run):
  """Traces the round; raises UserError if it can only run in TFF's context."""
  if set_in_process_context().compile(run.process.next) is None:
    raise UserError(
      f'algorithm.name {run.config.algorithm.name!r} cannot be trained: '
      'its process has no MapReduceForm, or holds variables, lookup tables '
      'or queues. Build it of functions of tensors (docs/engine.md).'
    )


def _require_all_clients(config, done, clients):
  """Raises FailedError unless every client took part in a round."""
  if done.failures:
    first = done.failures[0]
    client_id = clients[first.client_index].client_id
    found = f'client {client_id!r} failed: {first.message}'
  elif num_non_finite := done.metrics['train/num_non_finite_clients']:
    found = f'{num_non_finite} were not finite'
  else:
    return
  raise FailedError(
    f'Round {done.round_num}: algorithm.name {config.algorithm.name!r} '
    f'requires every client in every round, but {found}. The rounds before it '
    'are saved.'
  )


def _require_bounds(config, done):
  """Raises FailedError if a column exceeds what its method can go on with."""
  for column in config.method.columns(config):
    limit, value = column.at_most, done.metrics[column.name]
    # Also where it is no number.
    if limit is not None and not value <= limit:
      raise FailedError(
        f'Round {done.round_num}: {column.name!r} must be at most {limit:g} '
        f'with algorithm.name {config.algorithm.name!r}, found {value:g}. The '
        'rounds before it are saved.'
      )
