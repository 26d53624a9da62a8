"""A run's rounds, phase by phase."""

import contextlib
import pathlib
import sys
import typing
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.progress import Stages
from tff_fedfish.run import client_data, run_directory, trackers
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import RoundInterrupted, RoundOptions
from tff_fedfish.training import start
from tff_fedfish.training.check import CheckedRun
from tff_fedfish.training.interruption import Interruption
from tff_fedfish.training.phase import PhaseLoop

if typing.TYPE_CHECKING:
  from tff_fedfish.training.solve import KeptUploads


def run_rounds(
  config: TrainConfig,
  workdir: pathlib.Path,
  checked: CheckedRun,
  stages: Stages,
  kept_uploads: 'KeptUploads | None' = None,
  tracker_names: Sequence[str] = (),
) -> int:
  """Builds the learning process and runs the rounds that are left.

  See `train` for the arguments, the exit code and the errors.

  Raises:
    UserError: If the checkpoint does not fit the process, or the process can
      only run in TFF's own context.
  """
  run = start.build_run(config, workdir, checked, stages)
  with contextlib.ExitStack() as stack:
    run_directory.start(config, workdir, checked.tokenizer, checked.identity)
    stack.enter_context(checked.log)
    interruption = stack.enter_context(Interruption('client'))
    tracked = [
      stack.enter_context(trackers.find(name)(name, workdir))
      for name in tracker_names
    ]
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
      with stages('starting workers'), contextlib.suppress(RoundInterrupted):
        workers.start(options.should_stop)
    PhaseLoop(run, options, tracked, kept_uploads).run(stages)
    while start.has_next_phase(run) and not options.should_stop():
      run = start.next_phase(run, stages)
      PhaseLoop(run, options, tracked).run(stages)
  return _exit_code(run, interruption)


def _ray_workers(config, workdir):
  engine = config.engine
  return RayWorkers(
    engine.num_workers,
    threads_per_worker=engine.threads_per_worker,
    gpus_per_worker=engine.gpus_per_worker,
    address=engine.ray_address,
    paths=client_data.paths_of_workers(config, workdir),
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
