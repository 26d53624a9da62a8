"""`fedfish train --dry_run`: describes a run and checks it."""

import contextlib
import json
import os
import pathlib

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning import client_steps, communication, plan
from tff_fedfish.printing import format_bytes, print_facts
from tff_fedfish.progress import stage
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
  with contextlib.ExitStack() as stack:
    # In a directory that is no run the lock file would be new.
    config_name = run_directory.CONFIG_NAME
    if workdir is not None and pathlib.Path(workdir, config_name).exists():
      stack.enter_context(run_directory.lock(workdir))
    checked = check.check_run(config, workdir, stage=stage)
  _describe(config)
  if line := checked.history.early_stop_line(config.training.num_rounds):
    print(f'{line}.')
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
    print(f'Features on disk: {format_bytes(features)}.')
  resources.print_warnings(config, workdir, checked)


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
  print(json.dumps(config_loading.to_json_dict(config), indent=2))
  shape, num_clients = config.model_shape(), config.cohort_size
  num_weights = num_parameters(shape)
  sent = communication.of_cohorts(
    communication.of_client(config),
    cohort_size=num_clients or 1,
    num_weights=num_weights,
  )
  num_up = sent.uplink_units
  num_tokens = client_steps.max_tokens_per_client(config)
  num_tensors = len(weight_shapes(shape))
  clients = f'{num_clients:,}' if num_clients else 'all that are not held out'
  # Only the corpus, which is not opened here, may say how many clients.
  per = 'per round' if num_clients else 'per client and round'
  rows = 'Images' if config.data.holds_images else 'Tokens'
  num_rows = 'all that there are'
  if num_tokens is not None:
    num_epochs = config.client_work.num_local_epochs
    num_rows = (
      f'{(num_clients or 1) * num_tokens:,} ({num_epochs} local epochs)'
    )
  facts = [
    ('Model parameters', f'{num_weights:,} in {num_tensors} tensors'),
    ('Clients per round', clients),
    (f'{rows} {per}, at most', num_rows),
    ('Rounds', f'{config.training.num_rounds:,}'),
  ]
  # Phases differ, and have lines of their own.
  if not config.phases:
    facts.append(
      (
        f'Communication {per}',
        f'{num_up:.4g} up, {sent.total_units - num_up:.4g} down (models per '
        f'client); {sent.uplink_bytes:,} and {sent.downlink_bytes:,} bytes',
      )
    )
  print_facts(facts)
