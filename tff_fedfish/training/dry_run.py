"""`fedfish train --dry_run`: describes a run and checks it."""

import contextlib
import json
import os

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning import client_steps, communication, plan
from tff_fedfish.progress import Stages
from tff_fedfish.run import run_directory
from tff_fedfish.training import check, resources


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
    checked = check.check_run(config, workdir, stage=Stages())
  checked.history.require_not_diverged()
  if checked.start is not None:
    print(checked.start.describe())
  if checked.corpus is not None and config.partition.divides_images:
    _print_label_skew(checked.corpus, checked.split.participating)
  if (states := resources.planned_states(config, checked.split)) is not None:
    print(f'Client states on disk: {states}.')
  for line in plan.phase_lines(config):
    print(line)
  features = resources.planned_features(config, checked)
  if features is not None:
    print(f'Features on disk: {features}.')
  resources.print_warnings(config, workdir, checked)


def _print_label_skew(clients, participating):
  """Prints how far the clients' labels are from those of all of them."""
  from tff_fedfish.data import label_skew
  from tff_fedfish.data.images.label_draws import label_histograms

  rows = [clients.client_rows[client_id] for client_id in participating]
  histograms = label_histograms(clients.labels, rows, clients.num_classes)
  print(
    f'Label skew of {len(rows)} clients (EMD): '
    f'{label_skew.emd_l1(histograms):.2f} in L1, '
    f"{label_skew.emd_fomo(histograms):.2f} in FedFomo's sum."
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
