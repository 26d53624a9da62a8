"""Jobs in processes of their own: exit codes, signals, no orphans."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from waiting import LIMIT_SECONDS, wait_until

from tff_fedfish.cli.main import main
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.jobs import Job

_ROOT = pathlib.Path(__file__).parents[2]

# Starts one job that takes long, and says when it is at work.
_PARENT = """
import pathlib, sys
from tff_fedfish.cli.main import main
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.jobs import Job

def on_tick(running, ended):
  if running and list(pathlib.Path(sys.argv[1]).glob(sys.argv[2])):
    print('running', flush=True)

if __name__ == '__main__':
  job = Job(
    name='job',
    run=pathlib.Path(sys.argv[1], 'run'),
    num_rounds=1,
    train=sys.argv[4:],
    evaluations={},
    log=pathlib.Path(sys.argv[3]),
  )
  codes = []
  on_end = lambda job, code: codes.append(code)
  code = jobs.run_jobs(main, [job], 1, on_tick, on_end)
  sys.exit(code or max(codes))
"""


def _children(pid: int) -> list[int]:
  path = f'/proc/{pid}/task/{pid}/children'
  return [int(child) for child in pathlib.Path(path).read_text().split()]


def _is_running(pid: int) -> bool:
  try:
    state = pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1]
  except FileNotFoundError:
    return False
  return state.split()[0] != 'Z'


def _start(tmp_path, command, pattern):
  """Starts a job; returns its parent as soon as a file has the pattern."""
  script = tmp_path / 'parent.py'
  script.write_text(_PARENT)
  log = tmp_path / 'job.log'
  process = subprocess.Popen(
    [sys.executable, str(script), str(tmp_path), pattern, str(log), *command],
    cwd=_ROOT,
    env=os.environ | {'PYTHONPATH': str(_ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout.readline() == 'running\n', process.communicate()
  return process, log


def _start_training(small_inputs, tmp_path):
  import small_runs

  workdir = tmp_path / 'run'
  command = ['train', '--config', small_runs.CONFIG, '--workdir', str(workdir)]
  command += small_runs.overrides(
    *small_inputs, training__num_rounds=2000, evaluation__every_num_rounds=0
  )
  # Round 0 is saved once it is scored; before that there is nothing to save.
  pattern = 'run/checkpoints/round_*'
  process, log = _start(tmp_path, command, pattern)
  return process, workdir, log


def test_exit_code_and_output_of_a_failing_command(tmp_path):
  log = tmp_path / 'logs' / 'job.log'
  command = ['inspect', str(tmp_path / 'missing')]
  never = ['inspect', str(tmp_path / 'never')]
  job = Job(
    name='job',
    run=tmp_path,
    num_rounds=1,
    train=command,
    evaluations={tmp_path / 'never': never},
    log=log,
  )
  ticks, ends = [], []
  code = jobs.run_jobs(
    main,
    [job],
    2,
    lambda *sets: ticks.append(sets),
    lambda *end: ends.append(end),
  )
  assert (code, ends) == (0, [(job, 2)])
  assert 'missing' in log.read_text()
  assert 'never' not in log.read_text()
  assert ticks[-1] == (set(), {'job'})


def test_signal_reaches_the_job_once_and_it_ends_cleanly(
  small_inputs, tmp_path
):
  process, workdir, log = _start_training(small_inputs, tmp_path)
  process.send_signal(signal.SIGTERM)
  process.communicate(timeout=LIMIT_SECONDS)
  assert process.returncode == 143
  assert 'the same command continues' in log.read_text()
  # The header and round 0 are no rounds of training.
  num_rounds = (workdir / 'metrics.csv').read_text().count('\n') - 2
  assert (workdir / 'checkpoints' / f'round_{num_rounds:08d}').is_dir()


@pytest.mark.slow
def test_second_signal_ends_the_jobs_at_once(small_inputs, tmp_path):
  process, _, log = _start_training(small_inputs, tmp_path)
  jobs = _children(process.pid)
  process.send_signal(signal.SIGINT)
  # Until it has heard of the first one, the two would be one.
  while 'to abandon' not in (line := process.stderr.readline()):
    assert line
  process.send_signal(signal.SIGINT)
  process.communicate(timeout=LIMIT_SECONDS)
  assert process.returncode not in (0, None)
  # The job is killed at once; multiprocessing's own tracker follows.
  wait_until(lambda: not any(map(_is_running, jobs)))


def test_job_ends_when_its_parent_is_killed(tmp_path):
  # Grouping begins sooner than training. Large enough to last until then.
  raw = tmp_path / 'raw.json'
  raw.write_text('{"text": "a b c", "url": "http://a/"}\n' * 600_000)
  command = ['group', 'c4', '--input', str(raw)]
  command += ['--output', str(tmp_path / 'out')]
  process, log = _start(tmp_path, command, 'out/.fedfish-*/job')
  jobs = _children(process.pid)
  assert jobs
  process.kill()
  process.communicate(timeout=LIMIT_SECONDS)
  wait_until(lambda: not any(map(_is_running, jobs)))
  # It was not killed, too, and had not finished: it has cleaned up.
  names = {path.name for path in tmp_path.iterdir()}
  assert names == {'raw.json', 'parent.py', 'job.log'}
