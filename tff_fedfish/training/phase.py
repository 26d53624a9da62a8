"""The rounds of a phase, each followed by the parts of the run."""

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
from tff_fedfish.training.barrier_part import BarrierPart
from tff_fedfish.training.client_states_part import ClientStatesPart
from tff_fedfish.training.features_part import FeaturesPart
from tff_fedfish.training.parts import (
  MAX_FAILURES_SHOWN,
  BuiltRun,
  FinishedRound,
)
from tff_fedfish.training.privacy_part import PrivacyPart
from tff_fedfish.training.record_parts import (
  CheckpointsPart,
  SinksPart,
  TablesPart,
)
from tff_fedfish.training.scores_part import (
  HeldOutScorePart,
  PersonalScorePart,
  score_of,
)
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
    """Makes the parts that the config asks for.

    Args:
      run: The run, at the last round before those to run.
      options: Options of all rounds.
      sinks: What gets the rows, too; they are entered.
      kept_uploads: See `train`.
    """
    self._run, self._options = run, options
    self._kept_uploads = kept_uploads
    self._has_warned = False
    config, features = run.config, run.config.method.features
    evaluation, should_stop = config.evaluation, options.should_stop
    is_personal = config.method.personal(config) is not None
    states = ClientStatesPart(run) if config.kept_slots else None
    self._inputs = None if states is None else states.inputs
    self._saved = CheckpointsPart(run, self._checkpoint_contents)
    self._parts = parts = []
    if evaluation.barrier_every_num_rounds:
      parts.append(BarrierPart(run, should_stop, self._inputs))
    if evaluation.num_clients and is_personal:
      parts.append(PersonalScorePart(run, should_stop, self._inputs))
    elif evaluation.num_clients and run.checked.sample.clients:
      parts.append(HeldOutScorePart(run, should_stop))
    # States and accounts before the row, and the row before the checkpoint.
    if states is not None:
      parts.append(states)
    if features is not None and features.use != 'unused':
      parts.append(FeaturesPart(run))
    if config.local_privacy.adds_noise:
      parts.append(PrivacyPart(run))
    parts.append(TablesPart(run))
    if config.method.solver is not None:
      parts.append(SolvePart(run))
    parts += [self._saved, SinksPart(sinks)]
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
    for part in self._parts:
      part.close()

  def _checkpoint_contents(self, round_num):
    contents = {}
    for part in self._parts:
      contents |= part.checkpoint_contents(round_num)
    return contents

  def _run_rounds(self):
    """Runs rounds until the phase's last, or until the run is to stop."""
    run, position = self._run, self._run.position
    should_stop = self._options.should_stop
    if not run.is_resumed:
      with stage('scoring round 0'):
        self._finish(FinishedRound(round_num=0, state=position.state))
    if should_stop() or position.round_num == run.last_round:
      return
    for part in self._parts:
      part.prepare(should_stop)
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
      while position.round_num < run.last_round and not should_stop():
        self._run_round(position.round_num + 1, progress)

  def _run_round(self, round_num, progress):
    """Runs a round; interrupted, it leaves no trace."""
    for part in self._parts:
      part.before_round(round_num)
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
      done = self._train_clients(round_num, progress.write_line, stack)
      _require_bounds(self._run.config, done)
      seconds = time.monotonic() - begin
      done.timings['seconds'] = seconds
      done.timings['tokens_per_second'] = (
        done.metrics['train/num_tokens'] / seconds
      )
      self._finish(done)
    loss = done.metrics['train/loss']
    warning = divergence.loss_warning(self._run.config, round_num, loss)
    if warning and not self._has_warned:
      self._has_warned = True
      progress.write_line(warning)
    progress.advance(
      num_tokens=done.metrics['train/num_tokens'],
      # The loss of an earlier round is not this one's.
      loss=math.nan if loss is None else loss,
      score=' '.join(
        score_of(done.metrics, self._run.config.data.holds_images)
      ).strip(),
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
    for part in self._parts:
      clients = part.feed(round_num, run.position.state, clients, should_stop)
    on_output = None
    for part in self._parts:
      on_output = on_output or part.on_output(round_num, clients, stack)
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
    for part in self._parts:
      done = part.finish(done)
    return done

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
    for part in self._parts:
      part.measure(done)
    for part in self._parts:
      part.record(done)
    position = self._run.position
    position.round_num, position.state = done.round_num, done.state


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
