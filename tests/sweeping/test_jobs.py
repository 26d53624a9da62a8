"""Runs in processes of their own: exit codes, signals, no orphans."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from waiting import LIMIT_SECONDS, wait_until

from tff_fedfish.cli.main import main
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.runs import Run

_ROOT = pathlib.Path(__file__).parents[2]

# Starts one run, of any command line.
_PARENT = """
import dataclasses, pathlib, sys
from tff_fedfish.cli.main import main
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.runs import Run

class Command(Run):
  def pending_commands(self):
    return [sys.argv[2:]]

if __name__ == '__main__':
  run = Command(
    name='run',
    directory=pathlib.Path(sys.argv[1], 'arms', 'run'),
    config=None,
    evaluations={},
    point={},
  )
  codes = []
  on_end = lambda run, code: codes.append(code)
  code = jobs.run_jobs(main, [run], 1, lambda run: None, on_end)
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
  """Starts a run; returns its parent as soon as a file has the pattern."""
  script = tmp_path / 'parent.py'
  script.write_text(_PARENT)
  process = subprocess.Popen(
    [sys.executable, str(script), str(tmp_path), *command],
    cwd=_ROOT,
    env=os.environ | {'PYTHONPATH': str(_ROOT)},
    stderr=subprocess.PIPE,
    text=True,
  )

  def is_at_work():
    assert process.poll() is None, process.communicate()
    return list(tmp_path.glob(pattern))

  wait_until(is_at_work)
  return process


def _start_training(small_inputs, tmp_path):
  import small_runs

  workdir = tmp_path / 'trained'
  command = ['train', '--config', small_runs.CONFIG, '--workdir', str(workdir)]
  command += small_runs.overrides(
    *small_inputs, training__num_rounds=2000, evaluation__every_num_rounds=0
  )
  # Round 0 is saved once it is scored; before that there is nothing to save.
  pattern = 'trained/checkpoints/round_*'
  return _start(tmp_path, command, pattern), workdir


def test_exit_code_and_output_of_a_failing_command(tmp_path):
  run = Run(
    name='run',
    directory=tmp_path / 'arms' / 'run',
    config=None,
    evaluations={tmp_path / 'never': ['inspect', 'never']},
    point={},
  )
  started, ended = [], []
  code = jobs.run_jobs(
    main, [run], 2, started.append, lambda *end: ended.append(end)
  )
  assert (code, started, ended) == (0, [run], [(run, 2)])
  text = run.log.read_text()
  assert 'configs/run.json' in text and 'never' not in text
  last = text.strip().splitlines()[-1]
  assert f'exit code 2: {last} (all of its' in jobs.failure_line(run, 2)


def test_a_log_that_cannot_be_written_fails_its_run_only(tmp_path, capsys):
  runs = [
    Run(
      name=name,
      directory=tmp_path / 'arms' / name,
      config=None,
      evaluations={},
      point={},
    )
    for name in ('a', 'b')
  ]
  runs[0].log.mkdir(parents=True)
  ended = []
  code = jobs.run_jobs(
    main, runs, 1, lambda run: None, lambda *end: ended.append(end)
  )
  # The other one lacks its config.
  assert (code, ended) == (0, [(runs[0], 1), (runs[1], 2)])
  assert str(runs[0].log) in capsys.readouterr().err


def test_signal_reaches_the_run_once_and_it_ends_cleanly(
  small_inputs, tmp_path
):
  process, workdir = _start_training(small_inputs, tmp_path)
  process.send_signal(signal.SIGTERM)
  process.communicate(timeout=LIMIT_SECONDS)
  assert process.returncode == 143
  log = tmp_path / 'logs' / 'run.log'
  assert 'the same command continues' in log.read_text()
  # The header and round 0 are no rounds of training.
  num_rounds = (workdir / 'metrics.csv').read_text().count('\n') - 2
  assert (workdir / 'checkpoints' / f'round_{num_rounds:08d}').is_dir()


@pytest.mark.slow
def test_second_signal_kills_the_runs(small_inputs, tmp_path):
  process, _ = _start_training(small_inputs, tmp_path)
  (run,) = [
    child
    for child in _children(process.pid)
    if b'spawn_main' in pathlib.Path(f'/proc/{child}/cmdline').read_bytes()
  ]
  # Nothing but SIGKILL ends it now.
  os.kill(run, signal.SIGSTOP)
  try:
    process.send_signal(signal.SIGINT)
    # Until it has heard of the first one, the two would be one.
    while 'to end at once' not in (line := process.stderr.readline()):
      assert line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    wait_until(lambda: not _is_running(run))
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.kill(run, signal.SIGKILL)


def test_run_ends_when_its_parent_is_killed(tmp_path):
  # Grouping begins sooner than training. Large enough to last until then.
  raw = tmp_path / 'raw.json'
  raw.write_text('{"text": "a b c", "url": "http://a/"}\n' * 600_000)
  command = ['group', 'c4', '--input', str(raw)]
  command += ['--output', str(tmp_path / 'out')]
  process = _start(tmp_path, command, 'out/.fedfish-*/job')
  children = _children(process.pid)
  assert children
  process.kill()
  process.communicate(timeout=LIMIT_SECONDS)
  wait_until(lambda: not any(map(_is_running, children)))
  # It was not killed, too, and had not finished: it has cleaned up.
  names = {path.name for path in tmp_path.iterdir()}
  assert names == {'raw.json', 'parent.py', 'logs'}
