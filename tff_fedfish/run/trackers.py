"""Copies of a run's rows: in TensorBoard, and in MLflow or Weights & Biases."""

import contextlib
import importlib.util
import os
import pathlib
import secrets
import socket
import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.run import divergence
from tff_fedfish.run.tables import read_metrics

# Nothing leaves the machine, and nothing is written that tells of it. What the
# user has set stays.
_WANDB = {'MODE': 'offline', 'PROJECT': 'fedfish', 'HOST': 'fedfish'}
_WANDB |= dict.fromkeys(('ERROR_REPORTING', '_SAVE_REQUIREMENTS'), 'false')
_WANDB |= dict.fromkeys(('SILENT', 'DISABLE_GIT', 'DISABLE_CODE'), 'true')
_WANDB |= dict.fromkeys(('_DISABLE_META', '_DISABLE_STATS'), 'true')
_WANDB |= {'_DISABLE_MACHINE_INFO': 'true', 'CONSOLE': 'off'}


class RowSink(contextlib.AbstractContextManager):
  """Gets the rows of a run in a `with` block; an exception switches it off.

  A subclass has `_start`, `_add(row, timings)` and `_stop`, and says what it is
  and what to do if it fails.
  """

  _label: str
  _advice = ''

  def __init__(self, name: str, workdir: pathlib.Path):
    """Opens nothing yet; `workdir` has config.json and metrics.csv."""
    self._workdir = workdir.resolve()
    self._directory = self._workdir / name
    self._is_on, self._num_tokens = True, 0

  def __enter__(self) -> 'RowSink':
    self._try(self._start)
    return self

  def log(
    self,
    row: Mapping[str, Any],
    write_line: Callable[[str], None],
    timings: Mapping[str, Any] = types.MappingProxyType({}),
  ) -> None:
    """Adds the row of a round; writes a line where that fails."""
    self._try(self._add, row, timings, write_line=write_line)

  def __exit__(self, *_) -> None:
    self._try(self._stop)

  def _values(self, row):
    """Returns the values of the next row, with the sum of tokens so far."""
    self._num_tokens += row.get('train/num_tokens') or 0
    values = {name: value for name, value in row.items() if value is not None}
    return values | {'train/tokens_seen': self._num_tokens}

  def _try(self, action, *arguments, write_line=None):
    if not self._is_on:
      return
    try:
      action(*arguments)
    except Exception as error:  # pylint: disable=broad-exception-caught
      self._is_on = False
      text = ' '.join(f'{type(error).__name__}: {error}'.split())[:400]
      text = (
        f'fedfish: warning: {self._label} failed ({text}) and is off. The run '
        f'goes on{self._advice}.'
      )
      write_line(text) if write_line else print(text, file=sys.stderr)


class TensorBoard(RowSink):
  """Events of every run, which TensorBoard shows; timings are under `timings/`.

  Every start of a run has a file of its own. It says that what earlier files
  have of its rounds is void.
  """

  _label = 'TensorBoard'

  def _start(self):
    # Late: a finished run needs no TensorFlow.
    import tensorflow as tf

    rows = read_metrics(self._workdir / 'metrics.csv')
    for row in rows:
      self._values(row)
    self._library, v1 = tf, tf.compat.v1
    self._writer = tf.summary.create_file_writer(str(self._directory))
    start = v1.Event(
      step=rows[-1]['round'] + 1 if rows else 0,
      wall_time=time.time(),
      session_log=v1.SessionLog(status=v1.SessionLog.START),
    )
    tf.raw_ops.ImportEvent(
      writer=self._writer._resource, event=start.SerializeToString()
    )

  def _add(self, row, timings):
    values = self._values(row)
    step = values.pop('round')
    values |= {f'timings/{name}': value for name, value in timings.items()}
    summary = self._library.compat.v1.Summary()
    for tag, value in values.items():
      summary.value.add(tag=tag, simple_value=value)
    with self._writer.as_default():
      self._library.summary.experimental.write_raw_pb(
        summary.SerializeToString(), step=step
      )
    self._writer.flush()

  def _stop(self):
    self._writer.close()


class Tracker(RowSink):
  """A tracker of experiments.

  A subclass names the `package` that it needs. `_open` continues a run, or
  begins one where the id is None, and returns its id. `fedfish.json` keeps the
  id and the last round sent; the block begins with the rows that are missing.
  """

  package: str

  def __init__(self, name: str, workdir: pathlib.Path):
    """See `RowSink`."""
    super().__init__(name, workdir)
    self._label = f'`--tracker {name}`'
    self._advice = (
      '; the same command sends what is missing, or all rows if '
      f'{str(self._directory)!r} is moved away'
    )
    self._kept = {'run_id': None, 'last_round': -1}

  def _start(self):
    with contextlib.suppress(FileNotFoundError):
      text = (self._directory / 'fedfish.json').read_bytes()
      self._kept = files.parse_json(text)
    self._directory.mkdir(exist_ok=True)
    config = files.parse_json((self._workdir / 'config.json').read_bytes())
    settings = {
      f'{section}.{name}': value
      for section, values in config.items()
      if isinstance(values, dict)
      for name, value in values.items()
      # Known, the noise would hide nothing.
      if name != 'privacy_seed'
    }
    self._num_rounds = settings['training.num_rounds']
    self._keep(run_id=self._open(self._kept['run_id'], settings))
    for row in read_metrics(self._workdir / 'metrics.csv'):
      self._add(row)

  def _add(self, row, timings=None):
    values = self._values(row)
    if row['round'] > self._kept['last_round']:
      self._send(values)
      self._keep(last_round=row['round'])

  def _stop(self):
    last = self._kept['last_round']
    is_over = divergence.has_stopped_early(self._workdir, last)
    self._end(is_over or last == self._num_rounds)

  def _keep(self, **values):
    self._kept |= values
    files.write_json(self._directory / 'fedfish.json', self._kept)


class Mlflow(Tracker):
  """A run of MLflow, in `MLFLOW_TRACKING_URI` or else a store of files."""

  package = 'mlflow'

  def _open(self, run_id, settings):
    os.environ.setdefault('MLFLOW_CONFIGURE_LOGGING', 'false')
    from mlflow.tracking import MlflowClient

    uri = os.environ.get('MLFLOW_TRACKING_URI') or self._directory.as_uri()
    self._settings, self._client = settings, MlflowClient(uri)
    self._run_id = run_id or self._begin()
    self._client.update_run(self._run_id, 'RUNNING')
    return self._run_id

  def _begin(self):
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME') or 'fedfish'
    experiment = self._client.get_experiment_by_name(name)
    number = experiment and experiment.experiment_id
    number = number or self._client.create_experiment(name)
    run = self._client.create_run(number, run_name=self._workdir.name)
    return run.info.run_id

  def _send(self, row):
    from mlflow.entities import Metric, Param

    now, step = int(1000 * time.time()), row.pop('round')
    metrics = [Metric(name, value, now, step) for name, value in row.items()]
    # Once: later MLflow refuses other values, such as of more rounds.
    settings = {} if step else self._settings
    params = [Param(name, str(v)[:500]) for name, v in settings.items()]
    self._client.log_batch(self._run_id, metrics, params)

  def _end(self, is_finished):
    status = 'FINISHED' if is_finished else 'KILLED'
    self._client.set_terminated(self._run_id, status)


class Wandb(Tracker):
  """A run of Weights & Biases, offline unless `WANDB_MODE` is set."""

  package = 'wandb'

  def _open(self, run_id, settings):
    run_id = run_id or secrets.token_hex(4)
    # Every process of the run writes a directory of its own, of one group.
    own = {'NAME': self._workdir.name, 'RUN_GROUP': run_id}
    for name, value in (_WANDB | own).items():
      os.environ.setdefault(f'WANDB_{name}', value)
    import wandb

    self._library = wandb
    self._run = wandb.init(
      dir=self._workdir, id=run_id, config=settings, resume='allow'
    )
    return run_id

  def _send(self, row):
    # At once: else the row waits for the next one.
    self._run.log(row, step=row.pop('round'), commit=True)

  def _end(self, is_finished):
    self._run.finish(exit_code=0 if is_finished else 1)
    # Ends the process that it started.
    self._library.teardown()


TRACKERS = {'mlflow': Mlflow, 'wandb': Wandb}
"""Classes by the value of `--tracker`."""


def find(name: str) -> type[Tracker]:
  """Returns the class of a tracker; UserError where its package is missing."""
  tracker = TRACKERS[name]
  spec = importlib.util.find_spec(tracker.package)
  # A directory of that name, such as of data, has no origin.
  if spec is None or spec.origin is None:
    raise UserError(
      f'`--tracker {name}` needs packages that {socket.gethostname()!r} lacks. '
      'Install them by `.venv/bin/python -m pip install --no-deps '
      '--require-hashes -r requirements/trackers.lock`, or leave the option '
      'out.'
    )
  return tracker
