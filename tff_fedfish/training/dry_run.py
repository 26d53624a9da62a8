"""`fedfish train --dry_run`: what a run is, costs, and would refuse."""

import contextlib
import json
import os

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish import communication
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning import client_steps, disk
from tff_fedfish.progress import Stages
from tff_fedfish.run import run_directory
from tff_fedfish.training import run_checks


def dry_run(config: TrainConfig, workdir: str | os.PathLike | None) -> None:
  """Describes a run and checks it; writes nothing.

  Args:
    config: The run's config.
    workdir: Its directory, new or to continue. None: not checked.

  Raises:
    UserError: Naming all that the run would refuse.
    FailedError: If the run has stopped as it diverged, and would stop again.
  """
  describe(config)
  with contextlib.ExitStack() as stack:
    # A directory that does not exist would be created.
    if workdir is not None and os.path.isdir(workdir):
      stack.enter_context(run_directory.lock(workdir))
    checked = run_checks.check_run(config, workdir, stage=Stages())
  if checked.history is not None:
    checked.history.require_not_diverged()
  if (counting := disk.row_counting(config)) is not None:
    print(f'Counting rows at the start: {counting}.')
  run_checks.print_warnings(config, workdir)
  run_checks.print_unknown_tokens(checked)


def describe(config: TrainConfig) -> None:
  """Prints the resolved config, the model's size and what a round costs.

  Args:
    config: A checked config. Nothing that it names is opened.
  """
  from rich.console import Console
  from rich.table import Table

  # `print`, not rich: the output is JSON that a program may read.
  print(json.dumps(config_loading.to_json_dict(config), indent=2))
  shape = config.model_shape()
  rows = 'Images' if config.data.holds_images else 'Tokens'
  num_weights = num_parameters(shape)
  round_cost = communication.after_rounds(
    1,
    traffic=config.method.traffic(config.algorithm),
    cohort_size=config.cohort_size or 1,
    num_weights=num_weights,
  )
  num_clients, per = config.cohort_size, 'per round'
  if num_clients is None:
    # Only the corpus, which is not opened here, says how many there are.
    num_clients, per = 1, 'per client and round'
  num_tokens = client_steps.max_tokens_per_client(config)
  num_epochs = config.client_work.num_local_epochs
  table = Table(show_header=False, box=None, padding=(0, 2))
  for name, value in (
    (
      'Model parameters',
      f'{num_weights:,} in {len(weight_shapes(shape))} tensors',
    ),
    (
      'Model bytes (float32)',
      f'{communication.BYTES_PER_WEIGHT * num_weights:,}',
    ),
    (
      'Clients per round',
      'all that are not held out'
      if config.cohort_size is None
      else f'{config.cohort_size:,}',
    ),
    (
      f'{rows} {per}, at most',
      'all that there are'
      if num_tokens is None
      else f'{num_clients * num_tokens:,} ({num_epochs} local epochs)',
    ),
    (
      f'Communication {per}',
      f'{round_cost.uplink_units} up, '
      f'{round_cost.total_units - round_cost.uplink_units} down (models '
      f'per client); {round_cost.total_bytes:,} bytes in all',
    ),
    ('Rounds', f'{config.training.num_rounds:,}'),
  ):
    table.add_row(name, value)
  Console().print(table)
