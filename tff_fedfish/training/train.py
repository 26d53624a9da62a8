"""`fedfish train` and its dry run: open, check, build, run the rounds left."""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Sequence

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish import files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import client_steps, communication, plan
from tff_fedfish.progress import Stages
from tff_fedfish.run import checkpoints, run_directory
from tff_fedfish.run import trackers as tracker_classes
from tff_fedfish.training import run_checks
from tff_fedfish.training.kept_uploads import KeptUploads


def train(
  config: TrainConfig,
  workdir: str | os.PathLike,
  *,
  kept_uploads: KeptUploads | None = None,
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
    config = run_directory.continued_config(config, workdir)
    checked = run_checks.check_run(config, workdir, stage=stages)
    checked.history.require_not_diverged()
    if checked.is_finished:
      print(f'The run in {str(workdir)!r} is finished.', file=sys.stderr)
      with contextlib.ExitStack() as stack:
        for name in trackers:
          stack.enter_context(tracker_classes.find(name)(name, workdir))
      return 0
    if kept_uploads is not None:
      kept_uploads.require_corpus(checked.identity)
    run_checks.print_warnings(
      config,
      workdir,
      split=checked.split,
      features=run_checks.planned_features(config, checked),
    )
    run_checks.print_unknown_tokens(checked)
    if checked.start is not None:
      print(checked.start.describe(), file=sys.stderr)
    stages.release()
    # Late: errors of config and data must not wait for TensorFlow.
    with stages('importing TensorFlow Federated'):
      from tff_fedfish.training import round_loop
    return round_loop.run_rounds(
      config, workdir, checked, stages, kept_uploads, trackers
    )


def solve(
  uploads: str | os.PathLike,
  workdir: str | os.PathLike | None,
  overrides: Sequence[str],
) -> int:
  """Solves over the uploads of a run, as a run of one round.

  Args:
    uploads: Directory of the run, or its uploads.
    workdir: Directory of the new run. None: beside the other, named after it
      and the method.
    overrides: Settings of `algorithm`, as typed; see `load_config`.

  Returns:
    See `train`.

  Raises:
    UserError: If the run did not keep its uploads, or they do not hold what is
      needed. See also `train`.
  """
  run = pathlib.Path(uploads).resolve()
  source = run / run_directory.CONFIG_NAME
  if run.name == run_directory.UPLOADS_NAME and not source.exists():
    run = run.parent
    source = run / run_directory.CONFIG_NAME
  kept = checkpoints.path_of(run / run_directory.UPLOADS_NAME, 1)
  if not kept.exists():
    raise UserError(
      f'`--uploads` {str(uploads)!r} must be a run with the uploads of its '
      f'first round, but {str(kept)!r} does not exist. Train it with '
      '`--config.algorithm.keeps_uploads=true`.'
    )
  config = config_loading.changed_run_config(
    run_directory.read_config(run),
    source,
    overrides,
    settings={
      'training.num_rounds': 1,
      # No client trains, also not to measure the barrier.
      'evaluation.barrier_every_num_rounds': 0,
      # A copy of the same uploads is kept only where it is asked for.
      'algorithm.keeps_uploads': False,
    },
    may_change=run_directory.MAY_CHANGE - {'training.num_rounds'},
  )
  if config.method.solver is None:
    raise UserError(
      '`--config.algorithm.name` must be a one-shot method, found '
      f'{config.algorithm.name!r}, which has no solver.'
    )
  if workdir is None:
    workdir = run.with_name(f'{run.name}_{config.algorithm.name}')
    print(f'Run: {workdir}')
  if pathlib.Path(workdir).resolve() == run:
    raise UserError(
      f'`--workdir` must be another directory than `--uploads`, {str(run)!r}. '
      'Name a new one.'
    )
  kept_uploads = KeptUploads(run, config)
  print(kept_uploads.note, file=sys.stderr)
  return train(config, workdir, kept_uploads=kept_uploads)


def dry_run(config: TrainConfig, workdir: str | os.PathLike | None) -> None:
  """Describes a run and checks it; writes nothing.

  Args:
    config: The run's config.
    workdir: Its directory, new or to continue. None: not checked.

  Raises:
    UserError: Naming all that the run would refuse.
    FailedError: If the run has stopped as it diverged, and would stop again.
  """
  _describe(config)
  with contextlib.ExitStack() as stack:
    # A directory that does not exist would be created.
    if workdir is not None and os.path.isdir(workdir):
      stack.enter_context(run_directory.lock(workdir))
      config = run_directory.continued_config(config, workdir)
    checked = run_checks.check_run(config, workdir, stage=Stages())
  checked.history.require_not_diverged()
  if checked.start is not None:
    print(checked.start.describe())
  if checked.corpus is not None and config.partition.divides_images:
    _print_label_skew(checked.corpus, checked.split.participating)
  if (states := run_checks.planned_states(config, checked.split)) is not None:
    print(f'Client states on disk: {states}.')
  for line in plan.phase_lines(config):
    print(line)
  features = run_checks.planned_features(config, checked)
  if features is not None:
    print(f'Features on disk: {features}.')
  run_checks.print_warnings(
    config, workdir, split=checked.split, features=features
  )
  run_checks.print_unknown_tokens(checked)


def _print_label_skew(clients, participating):
  """Prints how far the clients' labels are from those of all of them."""
  from tff_fedfish.data.images.label_draws import label_histograms, label_skew

  rows = [clients.client_rows[client_id] for client_id in participating]
  histograms = label_histograms(clients.labels, rows, clients.num_classes)
  print(
    f'Label skew of {len(rows)} clients (EMD in L1): '
    f'{label_skew(histograms):.2f}.'
  )


def _describe(config):
  """Prints the resolved config, the model's size and what a round costs."""
  from rich.console import Console
  from rich.table import Table

  # `print`, not rich: the output is JSON that a program may read.
  print(json.dumps(config_loading.to_json_dict(config), indent=2))
  shape = config.model_shape()
  num_weights = num_parameters(shape)
  round_cost = communication.of_cohorts(
    config.method.traffic(config),
    cohort_size=config.cohort_size or 1,
    num_weights=num_weights,
  )
  num_clients, per = config.cohort_size, 'per round'
  clients = f'{num_clients:,}' if num_clients else 'all that are not held out'
  if num_clients is None:
    # Only the corpus, which is not opened here, says how many there are.
    num_clients, per = 1, 'per client and round'
  rows = 'Images' if config.data.holds_images else 'Tokens'
  num_rows = 'all that there are'
  num_tokens = client_steps.max_tokens_per_client(config)
  if num_tokens is not None:
    num_epochs = config.client_work.num_local_epochs
    num_rows = f'{num_clients * num_tokens:,} ({num_epochs} local epochs)'
  num_up = round_cost.uplink_units
  num_down = round_cost.total_units - num_up
  num_bytes = communication.BYTES_PER_WEIGHT * num_weights
  num_tensors = len(weight_shapes(shape))
  table = Table(show_header=False, box=None, padding=(0, 2))
  table.add_row('Model parameters', f'{num_weights:,} in {num_tensors} tensors')
  table.add_row('Model bytes (float32)', f'{num_bytes:,}')
  table.add_row('Clients per round', clients)
  table.add_row(f'{rows} {per}, at most', num_rows)
  # Phases differ, and have lines of their own.
  if not config.phases:
    table.add_row(
      f'Communication {per}',
      f'{num_up} up, {num_down} down (models per client); '
      f'{round_cost.total_bytes:,} bytes in all',
    )
  table.add_row('Rounds', f'{config.training.num_rounds:,}')
  Console().print(table)
