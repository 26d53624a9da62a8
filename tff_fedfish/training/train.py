"""`fedfish train`: opens, checks, builds, runs the rounds that are left."""

import contextlib
import os
import sys
import typing
from collections.abc import Sequence

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.progress import stage
from tff_fedfish.run import run_directory
from tff_fedfish.run.trackers import find as find_tracker
from tff_fedfish.training import check, resources

if typing.TYPE_CHECKING:
  from tff_fedfish.training.solve import KeptUploads


def train(
  config: TrainConfig,
  workdir: str | os.PathLike,
  *,
  kept_uploads: 'KeptUploads | None' = None,
  trackers: Sequence[str] = (),
) -> int:
  """Runs, or continues, the run of a config.

  Args:
    config: The config.
    workdir: The run's directory.
    kept_uploads: Uploads of another run, over which the only round solves.
      None: clients train.
    trackers: Names of `run.trackers.TRACKERS` that are sent metrics.csv. They
      get rows that they lack also of a run that is finished.

  Returns:
    0, or 128 + signal where SIGINT, SIGTERM or SIGHUP ended the run: the round
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
  config = resources.with_threads(config, workdir)
  with run_directory.lock(workdir):
    checked = check.check_run(config, workdir, stage=stage)
    if checked.is_finished:
      print(f'The run in {str(workdir)!r} is finished.', file=sys.stderr)
      num_rounds = config.training.num_rounds
      if line := checked.history.early_stop_line(num_rounds):
        print(line, file=sys.stderr)
      with contextlib.ExitStack() as stack:
        for name in trackers:
          stack.enter_context(find_tracker(name)(name, workdir))
      return 0
    if kept_uploads is not None:
      kept_uploads.require_corpus(checked.identity)
    resources.print_warnings(config, workdir, checked)
    if checked.start is not None:
      print(checked.start.describe(), file=sys.stderr)
    # Late: errors of config and data must not wait for TensorFlow.
    with stage('importing TensorFlow Federated'):
      from tff_fedfish.training import loop
    return loop.run_rounds(config, workdir, checked, kept_uploads, trackers)
