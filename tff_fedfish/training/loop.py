"""A run's rounds, phase by phase."""

import contextlib
import dataclasses
import pathlib
import sys
import typing
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.progress import stage
from tff_fedfish.run import (
  build,
  checkpoints,
  client_data,
  model_state,
  run_directory,
  tables,
  trackers,
)
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import RoundInterrupted, RoundOptions
from tff_fedfish.training import resources
from tff_fedfish.training.check import CheckedRun
from tff_fedfish.training.interruption import Interruption
from tff_fedfish.training.parts import BuiltRun, Position
from tff_fedfish.training.phase import PhaseLoop
from tff_fedfish.training.scores_part import last_score

if typing.TYPE_CHECKING:
  from tff_fedfish.training.solve import KeptUploads


def run_rounds(
  config: TrainConfig,
  workdir: pathlib.Path,
  checked: CheckedRun,
  kept_uploads: 'KeptUploads | None' = None,
  tracker_names: Sequence[str] = (),
) -> int:
  """Builds the learning process and runs the rounds that are left.

  See `train` for the arguments, the exit code and the errors.

  Raises:
    UserError: If the checkpoint does not fit the process, or the process can
      only run in TFF's own context.
  """
  run = _build_run(config, workdir, checked)
  with contextlib.ExitStack() as stack:
    read = {
      'checkpoint': checked.checkpoint,
      'start_from': checked.start and checked.start.checkpoint,
      'uploads': kept_uploads and kept_uploads.directory,
    }
    run_directory.start(
      config, workdir, checked.tokenizer, checked.identity, read
    )
    stack.enter_context(checked.log)
    interruption = stack.enter_context(Interruption('client'))
    sinks = [trackers.TensorBoard('tensorboard', workdir)]
    sinks += [trackers.find(name)(name, workdir) for name in tracker_names]
    for sink in sinks:
      stack.enter_context(sink)
    workers = None
    if config.engine.kind == 'ray':
      workers = stack.enter_context(_ray_workers(config, workdir))
    options = RoundOptions(
      num_partial_sums=config.num_partial_sums,
      # A client that fails is left out.
      tolerates_failures=True,
      quorum=config.engine.quorum,
      should_stop=lambda: interruption.requested is not None,
      workers=workers,
    )
    if workers is not None and kept_uploads is None:
      with stage('starting workers'), contextlib.suppress(RoundInterrupted):
        workers.start(options.should_stop)
    PhaseLoop(run, options, sinks, kept_uploads).run()
    while _has_next_phase(run) and not options.should_stop():
      run = _next_phase(run)
      PhaseLoop(run, options, sinks).run()
  return _exit_code(run, interruption)


def _build_run(config, workdir, checked):
  """Builds the process of the position, and restores or draws its state."""
  rows = row_source(config).training_rows(checked.corpus, checked.tokenizer)
  config = config.in_round(checked.round_num)
  set_in_process_context(deterministic_ops=config.engine.deterministic_ops)
  participating = row_source(config).training_clients(checked.split)
  process, evaluator = _build_process(config, participating)
  if checked.checkpoint is None:
    with stage('drawing the weights'):
      state = process.initialize()
      if checked.start is not None:
        state = build.with_start_weights(process, state, config, checked.start)
  else:
    with stage('restoring'):
      loaded = checkpoints.load_checkpoint(checked.checkpoint, verify=False)
      state_type = process.initialize.type_signature.result
      state = model_state.from_tensors(
        loaded.tensors, state_type, checked.checkpoint
      )
  return BuiltRun(
    config=config,
    workdir=workdir,
    checked=checked,
    process=process,
    evaluator=evaluator,
    position=Position(checked.round_num, state),
    participating=participating,
    client_rows=rows,
    is_resumed=checked.checkpoint is not None,
  )


def _has_next_phase(run):
  """Says whether a run goes on, in another phase."""
  done, phase = run.position.round_num, run.config.phase
  num_rounds = run.config.training.num_rounds
  return phase is not None and done == phase.last_round < num_rounds


def _next_phase(run):
  """Builds the phase after a run's last round, and the state it begins with.

  Nothing is written: it is built again in a run that is resumed there.
  """
  done = run.position.round_num
  config = run.config.in_round(done + 1)
  process, evaluator = _build_process(config, run.participating)
  with stage(f'beginning with phase {config.phase.name!r}'):
    state = config.method.begin_phase(config, process, run.position.state)
  return dataclasses.replace(
    run,
    config=config,
    process=process,
    evaluator=evaluator,
    position=Position(done, state),
    is_resumed=True,
  )


def _build_process(config, participating):
  """Returns the learning process of a phase, and what scores its model."""
  with stage('building the model and its learning process'):
    process = build.build_learning_process(
      config, num_clients=len(participating)
    )
    if config.evaluation.barrier_every_num_rounds:
      build.require_trained_models(config, process)
    return process, build_evaluator(config)


def _ray_workers(config, workdir):
  engine = config.engine
  return RayWorkers(
    engine.num_workers,
    threads_per_worker=engine.threads_per_worker,
    gpus_per_worker=engine.gpus_per_worker,
    address=engine.ray_address,
    paths=client_data.paths_of_workers(config, workdir),
    deterministic_ops=engine.deterministic_ops,
  )


def _exit_code(run, interruption):
  """Says how the run ended; returns its exit code."""
  history, round_num = run.checked.history, run.position.round_num
  num_rounds = run.config.training.num_rounds
  if round_num < num_rounds and not history.has_stopped_early:
    print(
      f'fedfish: stopped after round {round_num} of {num_rounds}; the same '
      'command continues.',
      file=sys.stderr,
    )
    return interruption.exit_code
  resources.print_fraction_read(run.config, history)
  if history.num_in_a_row:
    print(
      f'fedfish: warning: the run ended with {history.num_in_a_row} non-finite '
      'rounds in a row; the last good checkpoint is '
      f'{str(history.last_good_checkpoint())!r}.',
      file=sys.stderr,
    )
  rows = tables.read_metrics(run.workdir / 'metrics.csv')
  if line := last_score(rows, run.config.data.holds_images):
    print(line)
  if line := history.early_stop_line(num_rounds):
    print(line)
  return 0
