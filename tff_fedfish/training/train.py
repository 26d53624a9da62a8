"""`fedfish train`: opens a run, builds it, runs the rounds that are left."""

import os
import sys

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.progress import Stages
from tff_fedfish.run import divergence, run_directory
from tff_fedfish.training import run_checks


def train(config: TrainConfig, workdir: str | os.PathLike) -> int:
  """Runs, or continues, the run of a config.

  Args:
    config: The config.
    workdir: The run's directory.

  Returns:
    0, or 128 + signal where SIGINT or SIGTERM ended the run: the current round
    is given up after the current client, the last whole one is saved.

  Raises:
    UserError: If config, corpus, vocabulary and directory do not go together.
    FailedError: If a round failed; the rounds before it are saved. Or if
      `training.max_non_finite_rounds` in a row were non-finite, now or before.
    OSError: If a file of the run cannot be written, such as on a full disk.
  """
  workdir = files.require_usable_output(
    workdir, '--workdir', marker=run_directory.CONFIG_NAME
  )
  stages = Stages()
  with run_directory.lock(workdir):
    checked = run_checks.check_run(config, workdir, stage=stages)
    history = checked.history or divergence.RoundHistory(
      workdir, config.training.max_non_finite_rounds
    )
    history.require_not_diverged()
    if checked.inputs is None:
      print(f'The run in {str(workdir)!r} is finished.', file=sys.stderr)
      return 0
    run_checks.print_warnings(config, workdir)
    run_checks.print_unknown_tokens(checked)
    stages.release()
    # Late: errors of config and data must not wait for TensorFlow.
    with stages('importing TensorFlow Federated'):
      from tff_fedfish.training import built_run, round_loop
    run = built_run.build_run(config, workdir, checked, stages)
    return round_loop.run_rounds(run, history, stages)
