"""Runs in processes of their own: exit codes, signals, no orphans."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from waiting import LIMIT_SECONDS, wait_until

from tff_fedfish.run import run_directory

_ROOT = pathlib.Path(__file__).parents[2]

# Carries out runs whose names are the steps of their commands: 'wait' until a
# signal comes, 'import' without handling signals yet, 'kill' the process, or
# end with an exit code. Runs that begin
# with 1 have diverged. TensorFlow, which has no part in this, is not imported.
_PARENT = """
import os, pathlib, signal, sys, time
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.training.interruption import Interruption

class Steps(Run):
  def pending_commands(self):
    for name in ('TF_NUM_INTRAOP_THREADS', 'CUDA_VISIBLE_DEVICES'):
      print(name, os.environ.get(name), flush=True)
    return self.name.split('-')

  def diverged_checkpoint(self):
    return self.name.startswith('1')

def run_step(step):
  print('step', step, flush=True)
  if step == 'kill':
    os.kill(os.getpid(), signal.SIGKILL)
  if step == 'import':
    time.sleep(60)
  if step != 'wait':
    return int(step)
  with Interruption() as interruption:
    print('waits', flush=True)
    while not interruption.requested:
      time.sleep(0.01)
    # A second signal would end it here.
    time.sleep(0.5)
  print('saved', flush=True)
  return interruption.exit_code

def on_end(run, code):
  print(run.name, code, jobs.failure_line(run, code).rpartition(': ')[0])

if __name__ == '__main__':
  directory = pathlib.Path(sys.argv[1])
  runs = [
    Steps(name=name, directory=directory / 'arms' / name, config=None,
          evaluations={}, point={})
    for name in sys.argv[2:]
  ]
  sys.exit(jobs.run_jobs(run_step, runs, 2, lambda run: None, on_end))
"""


@pytest.fixture
def start(tmp_path):
  """Starts runs in a process; those that wait have begun when it returns."""
  script = tmp_path / 'parent.py'
  script.write_text(_PARENT)

  def begin(*names):
    process = subprocess.Popen(
      [sys.executable, str(script), str(tmp_path), *names],
      env=os.environ | {'PYTHONPATH': str(_ROOT)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

    def are_waiting():
      assert process.poll() is None, process.communicate()
      logs = (_log(tmp_path, name) for name in names if name == 'wait')
      return all(log.exists() and 'waits' in log.read_text() for log in logs)

    wait_until(are_waiting)
    return process

  return begin


def test_a_run_that_an_earlier_sweep_still_saves_is_waited_for(start, tmp_path):
  log = _log(tmp_path, '0')
  log.parent.mkdir()
  log.write_text('an earlier failure\n')
  with run_directory.lock(tmp_path / 'arms' / '0'):
    process = start('0')
    wait_until(lambda: 'note: waiting.' in log.read_text())
    assert 'step' not in log.read_text()
  code, out, errors = _ended(process)
  assert (code, errors) == (0, '') and out.startswith('0 0 ')
  assert log.read_text().startswith('an earlier failure\n')
  assert log.read_text().endswith('step 0\n')


def test_processes_take_the_gpus_in_turn(start, tmp_path, monkeypatch):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '4,7')
  assert _ended(start('0', '0-0'))[0] == 0
  logs = [_log(tmp_path, name).read_text() for name in ('0', '0-0')]
  assert 'CUDA_VISIBLE_DEVICES 4\n' in logs[0]
  assert 'CUDA_VISIBLE_DEVICES 7\n' in logs[1]


def test_a_run_that_is_starting_ends_without_a_traceback(start, tmp_path):
  process = start('import')
  log = _log(tmp_path, 'import')
  wait_until(lambda: log.exists() and 'step import' in log.read_text())
  process.send_signal(signal.SIGINT)
  code, _, errors = _ended(process)
  assert code == 130
  assert 'Traceback' not in errors + log.read_text()


def _log(directory, name):
  return directory / 'logs' / f'{name}.log'


def _ended(process):
  """Returns the exit code and what was printed."""
  out, errors = process.communicate(timeout=LIMIT_SECONDS)
  return process.returncode, out, errors


def _run_process(parent):
  """Returns the process of the run that a process started."""
  path = pathlib.Path(f'/proc/{parent.pid}/task/{parent.pid}/children')
  (run,) = [
    int(child)
    for child in path.read_text().split()
    if b'spawn_main' in pathlib.Path(f'/proc/{child}/cmdline').read_bytes()
  ]
  return run


def _is_running(pid):
  try:
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1]
  except FileNotFoundError:
    return False
  return state.split()[0] != 'Z'


def test_exit_codes_and_logs(start, tmp_path):
  _log(tmp_path, '0').mkdir(parents=True)
  code, out, errors = _ended(start('0-0', '3-0', '0-4-0', '1-0', 'kill', '0'))
  assert (code, errors) == (0, '')
  found = dict(line.split(' ')[:2] for line in out.splitlines())
  # One that has diverged is evaluated; one that is killed has failed, as has
  # one whose log cannot be written.
  codes = {'0-0': '0', '3-0': '3', '0-4-0': '4', '1-0': '0'}
  assert found == codes | {'kill': '1', '0': '1'}
  num_threads = max(1, len(os.sched_getaffinity(0)) // 2)
  # What comes after a failure is not run.
  lines = _log(tmp_path, '0-4-0').read_text().splitlines()
  assert lines[0] == f'TF_NUM_INTRAOP_THREADS {num_threads}'
  assert lines[2:] == ['step 0', 'step 4']
  assert 'the run 3-0 ended with exit code 3: step 3 (all of its' in out
  assert (
    f"exit code 1: [Errno 21] Is a directory: '{_log(tmp_path, '0')}" in out
  )


def test_signal_reaches_the_run_once_and_it_ends_cleanly(start, tmp_path):
  process = start('wait')
  process.send_signal(signal.SIGTERM)
  assert _ended(process)[0] == 143
  assert _log(tmp_path, 'wait').read_text().endswith('saved\n')


def test_second_signal_kills_the_runs(start):
  process = start('wait')
  run = _run_process(process)
  # Nothing but SIGKILL ends it now.
  os.kill(run, signal.SIGSTOP)
  try:
    process.send_signal(signal.SIGINT)
    # Until it has heard of the first one, the two would be one.
    while 'to end at once' not in (line := process.stderr.readline()):
      assert line
    process.send_signal(signal.SIGINT)
    assert _ended(process)[0] == 130
    wait_until(lambda: not _is_running(run))
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.kill(run, signal.SIGKILL)


def test_run_ends_cleanly_when_its_parent_is_killed(start, tmp_path):
  process = start('wait')
  run = _run_process(process)
  process.kill()
  process.communicate(timeout=LIMIT_SECONDS)
  wait_until(lambda: not _is_running(run))
  assert _log(tmp_path, 'wait').read_text().endswith('saved\n')
