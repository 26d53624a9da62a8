"""`fedfish group` and the processes it starts: signals, workers, their logs."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from grouping_jobs import wait_until_read
from waiting import LIMIT_SECONDS

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def raw(tmp_path):
  """A raw file of three records."""
  path = tmp_path / 'raw.json'
  lines = [{'text': 'one two', 'url': f'http://h{i}/'} for i in range(3)]
  path.write_text('\n'.join(map(json.dumps, lines)))
  return path


def _start(*argv, cwd=_ROOT, **environment):
  return subprocess.Popen(
    [sys.executable, '-P', '-m', 'tff_fedfish', *map(str, argv)],
    cwd=cwd,
    env=os.environ | {'PYTHONPATH': str(_ROOT)} | environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _for_workers(directory, program):
  """Returns a PYTHONPATH by which worker processes run a program first."""
  directory.mkdir()
  (directory / 'sitecustomize.py').write_text(f"""
import os, sys, time
if 'apache_beam.runners.worker.sdk_worker_main' in sys.orig_argv:
  {program}
""")
  return os.pathsep.join([str(_ROOT), str(directory)])


@pytest.mark.parametrize('closed', ['2>&-', '>&-'])
def test_closed_output(raw, tmp_path, closed):
  argv = ['group', 'c4', '--input', raw, '--output', tmp_path / 'out']
  command = shlex.join([sys.executable, '-m', 'tff_fedfish', *map(str, argv)])
  done = subprocess.run(
    f'{command} {closed}', shell=True, cwd=_ROOT, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'out' / 'manifest.json').exists()


class TestInterruption:
  def test_leaves_nothing(self, tmp_path):
    raw = tmp_path / 'raw.json'
    # Large enough that the job is still at it when the signal comes.
    raw.write_text('{"text": "a b c", "url": "http://a/"}\n' * 600_000)
    process = _start('group', 'c4', '--input', raw, '--output', tmp_path / 'o')
    wait_until_read(raw, process, process.pid)
    process.send_signal(signal.SIGTERM)
    shown, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, shown) == (143, '')
    assert errors.splitlines()[-1] == 'fedfish: terminated.'
    assert 'Traceback' not in errors
    assert list(tmp_path.iterdir()) == [raw]

  def test_job_that_does_not_end_is_ended(self):
    program = """
import time
from tff_fedfish.cli import beam_job
beam_job._PATIENCE_SECONDS = 0.3
with beam_job.interruptible(lambda: print('cleaned up', flush=True)):
  try:
    print('begins', flush=True)
    time.sleep(600)
  except KeyboardInterrupt:
    time.sleep(600)
"""
    process = subprocess.Popen(
      [sys.executable, '-c', program],
      cwd=_ROOT,
      stdout=subprocess.PIPE,
      text=True,
    )
    assert process.stdout.readline() == 'begins\n'
    process.send_signal(signal.SIGTERM)
    shown, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, shown) == (143, 'cleaned up\n')

  def test_another_signal_does_not_stop_the_cleaning(self):
    program = """
import sys, time
from tff_fedfish.cli import beam_job
beam_job._PATIENCE_SECONDS = 600

def clean_up():
  print('cleans up', flush=True)
  sys.stdin.readline()
  print('cleaned up', flush=True)

with beam_job.interruptible(clean_up):
  print('begins', flush=True)
  time.sleep(600)
"""
    process = subprocess.Popen(
      [sys.executable, '-c', program],
      cwd=_ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    assert process.stdout.readline() == 'begins\n'
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == 'cleans up\n'
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate('\n', timeout=LIMIT_SECONDS)
    assert (process.returncode, shown) == (130, 'cleaned up\n')
    assert errors == 'fedfish: interrupted.\n'


class TestWorkerProcesses:
  _FLAGS = ('--direct_running_mode=multi_processing', '--direct_num_workers=2')

  @pytest.mark.slow
  def test_end_before_they_connect(self, raw, tmp_path):
    path = _for_workers(
      tmp_path / 'own',
      # The other one would be waited for.
      "sys.exit('no \\x1b[1mlicence') if os.environ['WORKER_ID'] == 'worker_1' "
      'else time.sleep(300)',
    )
    command = ('group', 'c4', '--input', raw, '--output', tmp_path / 'out')
    process = _start(*command, *self._FLAGS, PYTHONPATH=path)
    shown, errors = process.communicate(timeout=300)
    assert (process.returncode, shown) == (1, '')
    assert errors.splitlines() == [
      'Grouping 1 file by host into 8 shards',
      'fedfish: failed: a worker process of the grouping into '
      f"'{tmp_path}/out' ended at its start (exit code 1: SystemExit: no "
      '%1B[1mlicence); nothing was kept. Mend the cause, and run it again.',
    ]
    assert not (tmp_path / 'out').exists()

  @pytest.mark.slow
  def test_proxies_and_files_beside_do_not_stop_them(self, raw, tmp_path):
    (tmp_path / 'queue.py').write_text("print('a helper of mine')\n")
    process = _start(
      *('group', 'c4', '--input', raw, '--output', 'out', *self._FLAGS),
      cwd=tmp_path,
      PYTHONPATH=_for_workers(tmp_path / 'own', 'time.sleep(0.5)'),
      http_proxy='http://127.0.0.1:9',
      no_grpc_proxy='store.example',
    )
    shown, errors = process.communicate(timeout=LIMIT_SECONDS)
    # Only our own words are shown.
    assert process.returncode == 0
    assert re.fullmatch(
      r'Grouping 1 file by host into 8 shards\nGrouped in .*\n', errors
    )
    assert re.search(r'examples stored +3\b', shown)

  @pytest.mark.slow
  def test_killed_worker(self, tmp_path):
    raw = tmp_path / 'raw.json'
    raw.write_text('{"text": "a b c", "url": "http://a/"}\n' * 600_000)
    command = ('group', 'c4', '--input', raw, '--output', tmp_path / 'out')
    process = _start(*command, *self._FLAGS)
    # Any of them may be the one that reads.
    while len(workers := _sdk_workers(process.pid)) < 2:
      assert process.poll() is None, process.communicate()
      time.sleep(0.1)
    wait_until_read(raw, process, *workers)
    for worker in workers:
      os.kill(worker, signal.SIGKILL)
    shown, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, shown) == (1, '')
    assert re.search(
      r"^fedfish: failed: a worker process of the grouping into '.*out' ended "
      r'before its work was done, .* run it again\.$',
      errors,
      re.MULTILINE,
    )
    assert list(tmp_path.iterdir()) == [raw]


def _sdk_workers(parent):
  """Returns the Beam workers among the descendants of a process."""
  found, parents = [], {parent}
  for path in sorted(
    pathlib.Path('/proc').glob('[0-9]*'), key=lambda p: int(p.name)
  ):
    try:
      ppid = int((path / 'stat').read_text().rpartition(')')[2].split()[1])
      command = (path / 'cmdline').read_bytes()
    except OSError:
      continue
    if ppid in parents:
      parents.add(int(path.name))
      if b'python' in command.split(b'\0')[0] and b'sdk_worker_main' in command:
        found.append(int(path.name))
  return found
