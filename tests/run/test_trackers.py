"""Trackers with fakes; with the real libraries in `make test-trackers`."""

import importlib.util
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest
import small_runs
from own_trackers import Absent, Raising, Recording
from waiting import wait_until

from tff_fedfish.run import tables, trackers

_PACKAGES = ('mlflow', 'wandb')


@pytest.fixture
def libraries(monkeypatch):
  """Checks that the packages are there; no variable of them is set."""
  if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
    if os.environ.get('TRACKERS_REQUIRED'):
      pytest.fail('the packages of requirements/trackers.lock are missing')
    pytest.skip('needs `make test-trackers`')
  for name in os.environ:
    if name.startswith(('MLFLOW_', 'WANDB_')):
      monkeypatch.delenv(name)


@pytest.fixture
def workdir(tmp_path):
  """A run of 3 rounds, without a row yet, in a path with a blank."""
  config = {
    'data': {'vocabulary': None, 'directory': 'd' * 600},
    'client_work': {'learning_rate': 0.1},
    'seeds': {'privacy_seed': 7},
    'training': {'num_rounds': 3},
  }
  path = tmp_path / 'a run'
  path.mkdir()
  (path / 'config.json').write_text(json.dumps(config))
  return path


def _log(workdir, name, *rounds, resume_after_round=None):
  """Logs rounds with a loss of 1 / r nats and 10 r tokens."""
  lines = []
  with tables.MetricsLog(
    workdir,
    resume_after_round,
    metric_names=('train/loss', 'train/num_tokens'),
    timing_names=(),
  ) as log:
    with trackers.find(name)(name, workdir) as tracker:
      for r in rounds:
        row = {'train/loss': 1 / r, 'train/num_tokens': 10 * r} if r else {}
        log.log_round(r, row, {})
        tracker.log({'round': r, **row}, lines.append)
  return lines


def _calls(workdir, name):
  """Returns the values of a fake's calls, by kind."""
  calls = {}
  for line in (workdir / name / 'calls.jsonl').read_text().splitlines():
    kind, value = json.loads(line)
    calls.setdefault(kind, []).append(value)
  return calls


_EXPECTED = {
  'train/loss': [(1, 1.0), (2, 0.5), (3, 1 / 3)],
  'train/num_tokens': [(1, 10), (2, 20), (3, 30)],
  # 10, 10 + 20, 30 + 30
  'train/tokens_seen': [(0, 0), (1, 10), (2, 30), (3, 60)],
}


_READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name('fedfish')
runs = client.search_runs([experiment.experiment_id])
print(json.dumps([[
  run.info.status, run.info.run_name, run.data.params,
  {name: [(m.step, m.value)
          for m in client.get_metric_history(run.info.run_id, name)]
   for name in run.data.metrics}] for run in runs]))
"""


class _MlflowRun(NamedTuple):
  status: str
  name: str
  params: dict[str, str]
  metrics: dict[str, list[tuple[int, float]]]


def _mlflow_run(uri):
  """Returns the only run of a store.

  Read in another process: mlflow closes the handlers of logging that TensorFlow
  made, and with them what pytest captures.
  """
  done = subprocess.run(
    [sys.executable, '-c', _READ_MLFLOW, uri],
    capture_output=True,
    text=True,
    check=True,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  ((status, name, params, metrics),) = json.loads(done.stdout)
  metrics = {k: [tuple(pair) for pair in v] for k, v in metrics.items()}
  return _MlflowRun(status, name, params, metrics)


def _wandb_records(path):
  from wandb.proto import wandb_internal_pb2
  from wandb.sdk.internal import datastore

  store, records = datastore.DataStore(), []
  store.open_for_scan(str(path))
  while (data := store.scan_data()) is not None:
    records.append(wandb_internal_pb2.Record())
    records[-1].ParseFromString(data)
  return records


def _wandb_runs(workdir):
  """Returns a (run, metrics, files) per process, in order."""
  found = []
  for path in sorted((workdir / 'wandb').glob('offline-run-*/*.wandb')):
    records, metrics = _wandb_records(path), {}
    (run,) = [r.run for r in records if r.WhichOneof('record_type') == 'run']
    for record in records:
      if record.WhichOneof('record_type') != 'history':
        continue
      for item in record.history.item:
        key = item.key or '.'.join(item.nested_key)
        pair = record.history.step.num, json.loads(item.value_json)
        metrics.setdefault(key, []).append(pair)
    found.append((run, metrics, records))
  return found


def _own(metrics):
  """Returns metrics without those that W&B adds."""
  return {k: v for k, v in metrics.items() if not k.startswith('_')}


@pytest.fixture
def fakes(monkeypatch):
  for kind in (Recording, Raising, Absent):
    monkeypatch.setitem(trackers.TRACKERS, kind.__name__, kind)


def test_rows_by_hand(fakes, workdir, capfd):
  assert _log(workdir, 'Recording', 0, 1, 2, 3) == []
  calls = _calls(workdir, 'Recording')
  ((run_id, settings),) = calls['open']
  assert run_id is None
  # Without the seed of the noise.
  assert 'seeds.privacy_seed' not in settings
  assert settings['training.num_rounds'] == 3
  assert calls['row'] == [
    {'round': 0, 'train/tokens_seen': 0},
    *(
      {
        'round': r,
        'train/loss': 1 / r,
        'train/num_tokens': 10 * r,
        'train/tokens_seen': seen,
      }
      # 10, 10 + 20, 30 + 30
      for r, seen in ((1, 10), (2, 30), (3, 60))
    ),
  ]
  assert calls['end'] == [True]
  assert capfd.readouterr() == ('', '')


def test_a_resumed_run_sends_no_row_twice(fakes, workdir):
  _log(workdir, 'Recording', 0, 1, 2)
  # From the checkpoint of round 1: round 2 is repeated.
  _log(workdir, 'Recording', 2, 3, resume_after_round=1)
  calls = _calls(workdir, 'Recording')
  assert [run_id for run_id, _ in calls['open']] == [None, 'the run']
  assert [row['round'] for row in calls['row']] == [0, 1, 2, 3]
  seen = [row['train/tokens_seen'] for row in calls['row']]
  assert seen == [0, 10, 30, 60]
  assert calls['end'] == [False, True]


def test_a_tracker_that_fails_is_off(fakes, workdir, capfd):
  (line,) = _log(workdir, 'Raising', 0, 1, 2, 3)
  place = workdir / 'Raising'
  assert line == (
    'fedfish: warning: `--tracker Raising` failed (OSError: [Errno 28] No '
    'space left) and is off. The run goes on; the same command sends what is '
    f"missing, or all rows if '{place}' is moved away."
  )
  assert 'end' not in _calls(workdir, 'Raising')
  # It comes back with the rows that it lacks, and so does one that is new.
  trackers.TRACKERS['Raising'] = trackers.TRACKERS['Recording']
  for name in ('Raising', 'Recording'):
    _log(workdir, name, resume_after_round=3)
    rounds = [row['round'] for row in _calls(workdir, name)['row']]
    assert rounds == [0, 1, 2, 3]
  assert capfd.readouterr() == ('', '')


def _scalars(workdir):
  from tensorboard.backend.event_processing import event_accumulator

  events = event_accumulator.EventAccumulator(str(workdir / 'tensorboard'))
  events.Reload()
  return {
    tag: [(event.step, event.value) for event in events.Scalars(tag)]
    for tag in events.Tags()['scalars']
  }


def _log_events(workdir, *rounds, resume_after_round=None):
  """Logs rounds with 10 r tokens and r + 0.5 seconds; returns lines."""
  lines = []
  with (
    tables.MetricsLog(
      workdir,
      resume_after_round,
      metric_names=('train/num_tokens',),
      timing_names=(),
    ) as log,
    trackers.TensorBoard('tensorboard', workdir) as sink,
  ):
    for r in rounds:
      row = {'train/num_tokens': 10 * r} if r else {}
      log.log_round(r, row, {})
      sink.log({'round': r, **row}, lines.append, {'seconds': r + 0.5})
  return lines


def test_tensorboard_forgets_replayed_rounds(workdir, capfd):
  assert _log_events(workdir, 0, 1, 2) == []
  # From the checkpoint of round 0: round 1 alone is repeated.
  assert _log_events(workdir, 1, resume_after_round=0) == []
  assert _scalars(workdir) == {
    'train/num_tokens': [(1, 10.0)],
    'train/tokens_seen': [(0, 0.0), (1, 10.0)],
    'timings/seconds': [(0, 0.5), (1, 1.5)],
  }
  assert len(os.listdir(workdir / 'tensorboard')) == 2
  assert capfd.readouterr() == ('', '')


def test_tensorboard_that_fails_is_off(workdir, capfd):
  (workdir / 'tensorboard').touch()
  assert _log_events(workdir, 0, 1, 2) == []
  (line,) = capfd.readouterr().err.splitlines()
  assert re.fullmatch(
    r'fedfish: warning: TensorBoard failed \(.*\) and is off. The run goes '
    r'on\.',
    line,
  )


def _wandb_services():
  """Returns the processes of W&B's service."""
  found = set()
  for path in pathlib.Path('/proc').glob('[0-9]*/comm'):
    try:
      if path.read_text().startswith('wandb-core'):
        found.add(int(path.parent.name))
    except OSError:
      continue
  return found


def test_missing_packages(fakes, tmp_path, monkeypatch, capsys):
  # A directory of data is no package.
  (tmp_path / 'no_such_package').mkdir()
  monkeypatch.syspath_prepend(tmp_path)
  for command in (['train'], ['train', '--dry_run'], ['sweep']):
    arguments = ['--config', 'demo', '--workdir', str(tmp_path / 'run')]
    options = ['--tracker', 'Absent']
    assert small_runs.main([*command, *arguments, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    assert err.startswith(
      'fedfish: error: `--tracker Absent` needs packages that '
    )
    assert err.endswith(
      ' lacks. Install them by `.venv/bin/python -m pip install --no-deps '
      '--require-hashes -r requirements/trackers.lock`, or leave the option '
      'out.\n'
    )
    assert err.count('\n') == 1
  assert not (tmp_path / 'run').exists()


def test_mlflow_continues_its_run(libraries, workdir, capfd):
  assert _log(workdir, 'mlflow', 0, 1, 2) == []
  store = (workdir / 'mlflow').as_uri()
  assert _mlflow_run(store).status == 'KILLED'
  # More rounds, from the checkpoint of round 1.
  path = workdir / 'config.json'
  path.write_text(
    path.read_text().replace('"num_rounds": 3', '"num_rounds": 4')
  )
  assert _log(workdir, 'mlflow', 2, 3, resume_after_round=1) == []
  run = _mlflow_run(store)
  assert (run.name, run.metrics) == ('a run', _EXPECTED)
  assert run.params == {
    'data.vocabulary': 'None',
    # Of 600 characters.
    'data.directory': 'd' * 500,
    'client_work.learning_rate': '0.1',
    # As the run was begun.
    'training.num_rounds': '3',
  }
  assert capfd.readouterr() == ('', '')


def test_mlflow_finds_a_store_that_the_user_names(
  libraries, workdir, tmp_path, monkeypatch, capfd
):
  uri = (tmp_path / 'elsewhere').as_uri()
  monkeypatch.setenv('MLFLOW_TRACKING_URI', uri)
  assert _log(workdir, 'mlflow', 0, 1, 2, 3) == []
  run = _mlflow_run(uri)
  assert (run.status, run.metrics) == ('FINISHED', _EXPECTED)
  assert os.listdir(workdir / 'mlflow') == ['fedfish.json']
  # A store that does not know the run.
  monkeypatch.setenv('MLFLOW_TRACKING_URI', uri + '2')
  assert _log(workdir, 'mlflow', resume_after_round=3) == []
  assert '`--tracker mlflow` failed (Mlflow' in capfd.readouterr().err


def test_wandb_is_offline_and_continues_under_its_name(
  libraries, workdir, capfd
):
  before = _wandb_services()
  assert _log(workdir, 'wandb', 0, 1, 2) == []
  assert _log(workdir, 'wandb', 2, 3, resume_after_round=1) == []
  assert capfd.readouterr() == ('', '')
  (first, rows, _), (second, later, records) = _wandb_runs(workdir)
  assert first.run_id == second.run_id == first.run_group == second.run_group
  assert (first.project, first.display_name) == ('fedfish', 'a run')
  # Round 2 is in the first file only.
  assert {
    name: rows.get(name, []) + _own(later).get(name, []) for name in _own(rows)
  } == _EXPECTED
  config = {u.key: json.loads(u.value_json) for u in first.config.update}
  del config['_wandb']
  assert config == {
    'data.vocabulary': None,
    'data.directory': 'd' * 600,
    'client_work.learning_rate': 0.1,
    'training.num_rounds': 3,
  }
  ends = [r.exit for r in records if r.WhichOneof('record_type') == 'exit']
  assert [end.exit_code for end in ends] == [0]
  # No metadata, list of packages, source or output.
  assert not [p for p in workdir.rglob('files/*') if p.is_file()]
  assert _wandb_services() <= before


_DRIVER = """
import pathlib, sys, time
from tff_fedfish.run import tables, trackers
name, workdir = sys.argv[1], pathlib.Path(sys.argv[2])
log = tables.MetricsLog(
  workdir, None, metric_names=('train/loss',), timing_names=())
with log, trackers.find(name)(name, workdir) as tracker:
  for round_num in range(3):
    row = {'train/loss': 0.5}
    log.log_round(round_num, row, {})
    tracker.log({'round': round_num, **row}, print)
  print('sent', flush=True)
  time.sleep(60)
"""


@pytest.mark.parametrize('name', ['mlflow', 'wandb'])
def test_no_process_outlives_a_run_that_is_killed(libraries, workdir, name):
  before = _wandb_services()
  with subprocess.Popen(
    [sys.executable, '-c', _DRIVER, name, workdir],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    start_new_session=True,
  ) as driver:
    assert driver.stdout.readline() == b'sent\n'
    os.kill(driver.pid, signal.SIGKILL)
  wait_until(lambda: _wandb_services() <= before)
  # W&B may lose rows: docs/trackers.md says so.
  if name == 'mlflow':
    metrics = _mlflow_run((workdir / 'mlflow').as_uri()).metrics
    assert metrics['train/loss'] == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_trackers_of_real_runs(
  libraries, small_inputs, small_run, tmp_path, capfd
):
  workdir = tmp_path / 'run'
  options = ['--tracker', 'mlflow', '--tracker', 'wandb']
  assert (
    small_runs.train(small_inputs, workdir, *options, training__num_rounds=2)
    == 0
  )
  capfd.readouterr()
  # More rounds; round 2 keeps its score, as every_num_rounds is 2.
  assert small_runs.train(small_inputs, workdir, *options) == 0
  assert 'wandb' not in capfd.readouterr().err
  csv = (workdir / 'metrics.csv').read_bytes()
  assert csv == (small_run / 'metrics.csv').read_bytes()
  rows = tables.read_metrics(workdir / 'metrics.csv')
  expected = {
    name: [(r['round'], r[name]) for r in rows if r[name] is not None]
    for name in rows[0]
    if name != 'round'
  }
  expected = {name: values for name, values in expected.items() if values}
  total, seen = 0, []
  for row in rows:
    total += row['train/num_tokens'] or 0
    seen.append((row['round'], total))
  expected['train/tokens_seen'] = seen
  run = _mlflow_run((workdir / 'mlflow').as_uri())
  assert (run.status, run.metrics) == ('FINISHED', expected)
  assert 'seeds.privacy_seed' not in run.params
  assert run.params['algorithm.name'] == 'fed_fish'
  runs = _wandb_runs(workdir)
  found = {
    name: [pair for _, metrics, _ in runs for pair in metrics.get(name, [])]
    for name in expected
  }
  assert found == expected
  assert all(math.isfinite(value) for _, value in found['train/loss'])
