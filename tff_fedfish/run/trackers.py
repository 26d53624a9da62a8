"""Trackers: programs that show the rows of metrics.csv, and what they need.

Each is a class behind a name in `TRACKERS`. It runs in a process of its own
(see `tracker_process`), so that it may block, print, raise or leave threads.
"""

import importlib.util
import os
import pathlib
import pkgutil
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tff_fedfish.errors import UserError

_MAX_PARAMETER_CHARACTERS = 500
"""Limit of MLflow's servers before 2.8."""

# Nothing leaves the machine, and nothing is written that tells of it. What the
# user has set stays.
_WANDB_ENVIRONMENT = {
  'WANDB_MODE': 'offline',
  'WANDB_PROJECT': 'fedfish',
  'WANDB_SILENT': 'true',
  'WANDB_CONSOLE': 'off',
  'WANDB_ERROR_REPORTING': 'false',
  'WANDB_DISABLE_GIT': 'true',
  'WANDB_DISABLE_CODE': 'true',
  'WANDB__DISABLE_META': 'true',
  'WANDB__DISABLE_STATS': 'true',
  'WANDB__DISABLE_MACHINE_INFO': 'true',
  'WANDB__SAVE_REQUIREMENTS': 'false',
  'WANDB_HOST': 'fedfish',
}


class Tracker:
  """A copy of a run's metrics, to be looked at in another program.

  Args:
    directory: Directory of the run for this tracker. Exists.
    run_id: The run's name in the tracker, as an earlier process of the run got
      it. None: it has none yet.
    settings: Values of the config, by 'section.setting'.

  Attributes:
    run_id: The run's name in the tracker. Another one than was given: there is
      no such run any more, and this is a new one.
  """

  package: str
  """Module that must be importable."""
  remedy: str
  """Remedy where the tracker fails, as a sentence."""
  run_id: str

  def __init__(
    self,
    directory: pathlib.Path,
    run_id: str | None,
    settings: Mapping[str, Any],
  ):
    raise NotImplementedError

  def log(self, row: Mapping[str, float | int]) -> None:
    """Adds a row of metrics.csv, without empty cells. Rounds ascend.

    Args:
      row: Values by column, `round` among them. `train/tokens_seen` is their
        sum of `train/num_tokens` so far.
    """
    raise NotImplementedError

  def end(self, is_finished: bool) -> None:
    """Completes the copy.

    Args:
      is_finished: Whether all rounds are done; else the run may be continued.
    """
    raise NotImplementedError


class MlflowTracker(Tracker):
  """A run of MLflow, in `MLFLOW_TRACKING_URI` or else a store of files."""

  package = 'mlflow'
  remedy = 'Correct MLFLOW_TRACKING_URI, or make room on the disk.'

  def __init__(self, directory, run_id, settings):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    self._settings = settings
    uri = os.environ.get('MLFLOW_TRACKING_URI') or directory.as_uri()
    self._client = MlflowClient(uri)
    if run_id is not None:
      try:
        # Continued: until `end` it runs.
        self._client.update_run(run_id, 'RUNNING')
        self.run_id = run_id
        return
      except MlflowException as error:
        if error.error_code != 'RESOURCE_DOES_NOT_EXIST':
          raise
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME') or 'fedfish'
    found = self._client.get_experiment_by_name(name)
    experiment = found and found.experiment_id
    experiment = experiment or self._client.create_experiment(name)
    run = self._client.create_run(experiment, run_name=directory.parent.name)
    self.run_id = run.info.run_id

  def log(self, row):
    """See `Tracker`."""
    from mlflow.entities import Metric, Param

    now, step = int(1000 * time.time()), row['round']
    parameters = []
    # With the first row: a run that was begun but not described is, too. Later
    # MLflow refuses other values, such as of more rounds.
    if not step:
      for name, value in self._settings.items():
        text = str(value)
        if len(text) > _MAX_PARAMETER_CHARACTERS:
          text = text[: _MAX_PARAMETER_CHARACTERS - 3] + '...'
        parameters.append(Param(name, text))
    self._client.log_batch(
      self.run_id,
      [Metric(k, v, now, step) for k, v in row.items() if k != 'round'],
      parameters,
    )

  def end(self, is_finished):
    """See `Tracker`."""
    status = 'FINISHED' if is_finished else 'KILLED'
    self._client.set_terminated(self.run_id, status)


class WandbTracker(Tracker):
  """A run of Weights & Biases, offline unless `WANDB_MODE` is set."""

  package = 'wandb'
  remedy = 'Correct WANDB_MODE, or make room on the disk.'

  def __init__(self, directory, run_id, settings):
    self.run_id = run_id or secrets.token_hex(4)
    environment = _WANDB_ENVIRONMENT | {
      'WANDB_NAME': directory.parent.name,
      # Every process of the run writes a directory of its own.
      'WANDB_RUN_GROUP': self.run_id,
    }
    for name, value in environment.items():
      os.environ.setdefault(name, value)
    # Late: it looks at the environment.
    import wandb

    self._library = wandb
    self._run = wandb.init(
      dir=directory.parent,
      id=self.run_id,
      config=dict(settings),
      resume=None if os.environ['WANDB_MODE'] == 'offline' else 'allow',
    )

  def log(self, row):
    """See `Tracker`."""
    values = {k: v for k, v in row.items() if k != 'round'}
    # At once: else the row waits for the next one.
    self._run.log(values, step=row['round'], commit=True)

  def end(self, is_finished):
    """See `Tracker`."""
    self._run.finish(exit_code=0 if is_finished else 1)
    # Ends the process that it started.
    self._library.teardown()


TRACKERS = {
  'mlflow': f'{__name__}:MlflowTracker',
  'wandb': f'{__name__}:WandbTracker',
}
"""From the value of `--tracker` to 'module:class'."""


def find(name: str) -> type[Tracker]:
  """Returns the class of a tracker."""
  return pkgutil.resolve_name(TRACKERS[name])


def require_packages(names: Iterable[str]) -> None:
  """Checks that this machine has what some trackers need.

  Raises:
    UserError: If not; names the option, and what to do.
  """
  for name in names:
    found = importlib.util.find_spec(find(name).package)
    # A directory of that name, such as of data, has no origin.
    if found is None or found.origin is None:
      raise UserError(
        f'`--tracker {name}` needs packages that {socket.gethostname()!r} '
        'lacks. Install them by `.venv/bin/python -m pip install --no-deps '
        '--require-hashes -r requirements/trackers.lock`, or leave the option '
        'out.'
      )
