"""Tests of trackers' processes with trackers that work, fail and hang."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tff_fedfish.run import metrics_files, tracker_process, trackers

_NAMES = ('Recording', 'Raising', 'RaisingOnce', 'Hanging', 'Forgetting')


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
  for name in _NAMES:
    monkeypatch.setitem(trackers.TRACKERS, name, f'own_trackers:{name}')


@pytest.fixture
def workdir(tmp_path):
  """A run of 3 rounds, without a row yet."""
  config = {
    'schema_version': 2,
    'training': {'num_rounds': 3},
    'seeds': {'model_seed': 1, 'privacy_seed': 2},
  }
  (tmp_path / 'config.json').write_text(json.dumps(config))
  return tmp_path


def _open(workdir, resume_after_round=None):
  return metrics_files.MetricsLog(
    workdir,
    resume_after_round,
    metric_names=('train/loss', 'train/num_tokens'),
    timing_names=(),
  )


def _log(workdir, name, *rounds, resume_after_round=None):
  """Logs rounds of 100 r tokens to a tracker; returns the lines it wrote."""
  lines = []
  with _open(workdir, resume_after_round) as log:
    with tracker_process.TrackerProcess(name, workdir) as process:
      for r in rounds:
        row = {'train/loss': 1 / r, 'train/num_tokens': 100 * r} if r else {}
        log.log_round(r, row, {})
        process.wake(lines.append)
  return lines


def _calls(workdir, name):
  text = (workdir / name / 'calls.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _rows(workdir, name):
  return [value for kind, value in _calls(workdir, name) if kind == 'row']


def test_rows_by_hand(workdir, capfd):
  assert _log(workdir, 'Recording', 0, 1, 2, 3) == []
  assert _calls(workdir, 'Recording') == [
    # Without the seed of the noise.
    ['settings', {'training.num_rounds': 3, 'seeds.model_seed': 1}],
    ['row', {'round': 0, 'train/tokens_seen': 0}],
    *(
      [
        'row',
        {
          'round': r,
          'train/loss': 1 / r,
          'train/num_tokens': 100 * r,
          'train/tokens_seen': seen,
        },
      ]
      # 100, 100 + 200, 300 + 300
      for r, seen in ((1, 100), (2, 300), (3, 600))
    ),
    ['end', True],
  ]
  assert json.loads((workdir / 'Recording/fedfish.json').read_text()) == {
    'run_id': 'the run',
    'last_round': 3,
  }
  assert capfd.readouterr() == ('', '')


def test_a_resumed_run_sends_no_row_twice(workdir, capfd):
  _log(workdir, 'Recording', 0, 1, 2)
  # From the checkpoint of round 1: round 2 is repeated.
  _log(workdir, 'Recording', 2, 3, resume_after_round=1)
  rows = _rows(workdir, 'Recording')
  assert [row['round'] for row in rows] == [0, 1, 2, 3]
  assert [row['train/tokens_seen'] for row in rows] == [0, 100, 300, 600]
  ends = [call for call in _calls(workdir, 'Recording') if call[0] == 'end']
  assert ends == [['end', False], ['end', True]]
  assert capfd.readouterr() == ('', '')


def test_a_tracker_that_comes_later_gets_all_rows(workdir):
  with _open(workdir) as log:
    for round_num in (0, 1):
      log.log_round(round_num, {'train/num_tokens': 100 * round_num}, {})
  _log(workdir, 'Recording', 2, resume_after_round=1)
  rows = _rows(workdir, 'Recording')
  assert [row['train/tokens_seen'] for row in rows] == [0, 100, 300]


def test_a_tracker_that_lost_the_run_gets_all_rows(workdir):
  _log(workdir, 'Forgetting', 0, 1)
  _log(workdir, 'Forgetting', 2, resume_after_round=1)
  rounds = [row['round'] for row in _rows(workdir, 'Forgetting')]
  assert rounds == [0, 1, 0, 1, 2]
  assert json.loads((workdir / 'Forgetting/fedfish.json').read_text()) == {
    'run_id': 'the run, new',
    'last_round': 2,
  }


def test_a_tracker_that_fails_says_it_once(workdir, capfd):
  lines = []
  with _open(workdir) as log:
    with tracker_process.TrackerProcess('Raising', workdir) as process:
      for round_num in range(4):
        log.log_round(round_num, {}, {})
        process.wake(lines.append)
        deadline = time.monotonic() + 20
        while round_num and not lines and time.monotonic() < deadline:
          time.sleep(0.05)
          process.wake(lines.append)
  assert lines == [
    'fedfish: warning: `--tracker Raising` failed (OSError: [Errno 28] No '
    'space left). The run goes on; rows that are left are tried again. Make '
    'room on the disk.'
  ]
  assert capfd.readouterr() == (
    '',
    'fedfish: warning: `--tracker Raising`: 3 of 4 rows not sent (OSError: '
    '[Errno 28] No space left). Make room on the disk. The same command sends '
    'them.\n',
  )


def test_rows_that_failed_are_sent_later(workdir, capfd):
  _log(workdir, 'RaisingOnce', 0, 1, 2, 3)
  rounds = [row['round'] for row in _rows(workdir, 'RaisingOnce')]
  assert rounds == [0, 1, 2, 3]
  assert capfd.readouterr() == ('', '')


def test_a_tracker_that_hangs_is_killed(workdir, capfd, monkeypatch):
  monkeypatch.setattr(tracker_process, 'PATIENCE_SECONDS', 2)
  start = time.monotonic()
  assert _log(workdir, 'Hanging', 0, 1, 2, 3) == []
  assert time.monotonic() - start < 15
  # What a library prints is not seen.
  assert capfd.readouterr() == (
    '',
    'fedfish: warning: `--tracker Hanging`: 3 of 4 rows not sent (no answer '
    'in 2 s). Look at the file. The same command sends them.\n',
  )


def test_a_process_that_dies_is_noticed(workdir):
  lines = []
  with _open(workdir) as log:
    with tracker_process.TrackerProcess('Recording', workdir) as process:
      os.kill(process._process.pid, signal.SIGKILL)
      process._process.wait()
      log.log_round(0, {}, {})
      process.wake(lines.append)
      process.wake(lines.append)
  assert lines == [
    'fedfish: warning: `--tracker Recording` failed (its process ended with '
    '-9). The run goes on; rows that are left are tried again. Look at the '
    'file.'
  ]


_DRIVER = """
import pathlib, sys, time
from tff_fedfish.run import metrics_files, tracker_process, trackers
name, workdir = sys.argv[1], pathlib.Path(sys.argv[2])
trackers.TRACKERS[name] = f'own_trackers:{name}'
log = metrics_files.MetricsLog(
  workdir, None, metric_names=('train/loss',), timing_names=())
with log, tracker_process.TrackerProcess(name, workdir) as process:
  for round_num in range(3):
    log.log_round(round_num, {}, {})
    process.wake(print)
  print(process._process.pid, flush=True)
  time.sleep(60)
"""


@pytest.mark.parametrize('signal_num', [signal.SIGKILL, signal.SIGINT])
def test_rows_are_sent_where_the_run_is_killed(workdir, signal_num):
  environment = os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)}
  with subprocess.Popen(
    [sys.executable, '-c', _DRIVER, 'Recording', workdir],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    env=environment,
    start_new_session=True,
  ) as driver:
    pid = int(driver.stdout.readline())
    # As a terminal or a job's end does: to the whole group.
    os.killpg(driver.pid, signal_num)
  deadline = time.monotonic() + 20
  while os.path.exists(f'/proc/{pid}') and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not os.path.exists(f'/proc/{pid}')
  assert [row['round'] for row in _rows(workdir, 'Recording')] == [0, 1, 2]
  assert _calls(workdir, 'Recording')[-1] == ['end', False]


def test_a_process_that_does_not_start(workdir, capfd, monkeypatch):
  monkeypatch.setattr(sys, 'executable', str(workdir / 'none'))
  (line,) = _log(workdir, 'Recording', 0, 1)
  assert 'its process did not start: No such file or directory' in line
  assert '2 of 2 rows not sent' in capfd.readouterr().err


def test_metrics_that_are_gone(workdir, capfd):
  with _open(workdir) as log:
    with tracker_process.TrackerProcess('Recording', workdir) as process:
      log.log_round(0, {}, {})
      process.wake(print)
      while process._last_sent < 0:
        process.wake(print)
      (workdir / 'metrics.csv').unlink()
  assert capfd.readouterr().err == ''


def test_a_directory_that_is_damaged(workdir, capfd):
  place = workdir / 'Recording'
  place.write_text('')
  _log(workdir, 'Recording', 0)
  assert capfd.readouterr().err == (
    'fedfish: warning: `--tracker Recording`: 1 of 1 rows not sent '
    f"({place} is a file). Move '{place}' away. The same command sends them.\n"
  )
  place.unlink()
  place.mkdir()
  state = place / 'fedfish.json'
  for text in (
    '{',
    '[]',
    '{"run_id": "x"}',
    '{"run_id": "x", "last_round": {}}',
  ):
    state.write_text(text)
    _log(workdir, 'Recording', 1, resume_after_round=0)
    message = capfd.readouterr().err
    assert f'2 of 2 rows not sent ({state} is damaged: ' in message
    assert f"). Move '{place}' away. The same command" in message
  state.unlink()
  _log(workdir, 'Recording', 1, resume_after_round=0)
  assert [row['round'] for row in _rows(workdir, 'Recording')] == [0, 1]
