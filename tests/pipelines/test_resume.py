"""A job that was stopped goes on: the same bytes, and nothing done twice."""

import errno
import fcntl
import os
import pathlib
import subprocess
import sys

import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines
from waiting import wait_until

from pipelines import job as jobs
from pipelines import runs, steps
from pipelines.job import run_group_job
from tff_fedfish.data import places
from tff_fedfish.errors import FailedError, UserError

_ROOT = pathlib.Path(__file__).parents[2]
_FAULT = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture(name='job')
def _job(tmp_path, monkeypatch):
  """A job of four tasks."""
  monkeypatch.setattr(jobs, '_TASK_BYTES', 1)
  return make_job(
    write_lines(tmp_path / f'{n}.json', raw_records(20 + n)) for n in range(4)
  )


@pytest.fixture(name='expected')
def _expected(tmp_path, job):
  run_group_job(job, tmp_path / 'expected')
  return contents(tmp_path / 'expected')


def _count(monkeypatch, name, fails_at=None):
  """Returns a list that gets the numbers of the steps of a kind."""
  done, step = [], getattr(steps, name)

  def run(work, number):
    if len(done) == fails_at:
      raise _FAULT
    found = step(work, number)
    done.append(number)
    return found

  monkeypatch.setattr(steps, name, run)
  return done


@pytest.mark.parametrize(
  'step, num_done', [('read', 1), ('read', 3), ('merge', 0), ('merge', 2)]
)
def test_after_a_failure(tmp_path, monkeypatch, job, expected, step, num_done):
  output = tmp_path / 'out'
  with monkeypatch.context() as patch:
    done = _count(patch, step, num_done)
    with pytest.raises(
      FailedError, match='finished work is kept in .*--resume'
    ):
      run_group_job(job, output)
  (left,) = output.iterdir()
  # A job of other options has nothing to go on with.
  other = tmp_path / 'other'
  left.rename(other)
  read, merged = (_count(monkeypatch, name) for name in ('read', 'merge'))
  output.rmdir()
  other.rename(tmp_path / left.name)
  run_group_job(make_job(job.paths, num_shards=2), other, resume=True)
  assert len(read) == 4
  read.clear()
  merged.clear()
  output.mkdir()
  (tmp_path / left.name).rename(left)
  run_group_job(job, output, resume=True)
  assert contents(output) == expected
  again = read if step == 'read' else merged
  assert not set(again) & set(done)
  assert len(read) == (4 - num_done if step == 'read' else 0)
  assert len(merged) == (3 - num_done if step == 'merge' else 3)


def test_after_a_file_went_away(tmp_path, monkeypatch, job, expected):
  _, path, *_ = map(pathlib.Path, job.paths)
  with monkeypatch.context() as patch:
    _count(patch, 'merge', 0)
    with pytest.raises(FailedError):
      run_group_job(job, tmp_path / 'out')
  for report in (tmp_path / 'out').glob('.fedfish-*/tasks/00000001.*'):
    report.unlink()
  read = steps.read

  def move_and_read(work, number):
    path.rename(tmp_path / 'away')
    return read(work, number)

  with monkeypatch.context() as patch:
    patch.setattr(steps, 'read', move_and_read)
    with pytest.raises(UserError, match='finished work is kept in .*--resume'):
      run_group_job(job, tmp_path / 'out', resume=True)
  (tmp_path / 'away').rename(path)
  read = _count(monkeypatch, 'read')
  run_group_job(job, tmp_path / 'out', resume=True)
  assert read == [1]
  assert contents(tmp_path / 'out') == expected


def test_after_a_failure_of_combined_runs(tmp_path, monkeypatch, job, expected):
  # Four runs, of which two are open at a time.
  monkeypatch.setattr(runs, 'MAX_OPEN', 2)
  with monkeypatch.context() as patch:
    _count(patch, 'merge', 1)
    with pytest.raises(FailedError):
      run_group_job(job, tmp_path / 'out')
  combined = _count(monkeypatch, 'combine')
  run_group_job(job, tmp_path / 'out', resume=True)
  assert sorted(combined) == [0, 1]
  assert contents(tmp_path / 'out') == expected


def test_first_task_leaves_nothing(tmp_path, monkeypatch, job):
  _count(monkeypatch, 'read', 0)
  with pytest.raises(FailedError, match='; nothing was kept. Check disk'):
    run_group_job(job, tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_job_that_is_at_work(tmp_path, monkeypatch, job):
  _count(monkeypatch, 'merge', 0)
  with pytest.raises(FailedError):
    run_group_job(job, tmp_path / 'out')
  (left,) = (tmp_path / 'out').iterdir()
  before = contents(left)
  with open(left / 'job', 'r+b') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="that of '.*' is at work. Wait for"):
      run_group_job(job, tmp_path / 'out', resume=True)
  assert contents(left) == before


@pytest.mark.slow
@pytest.mark.parametrize('num_done', range(5))
def test_kill(tmp_path, num_done):
  paths = [
    write_lines(tmp_path / f'{n}.json', raw_records(300) * 400)
    for n in range(3)
  ]
  raw = [os.fspath(path) for path in paths]
  run_group_job(make_job(raw, num_shards=8), tmp_path / 'expected')
  output = tmp_path / 'out'
  command = [
    *(sys.executable, '-m', 'tff_fedfish', 'group', 'c4', '--num_shards', '8'),
    *('--max_record_bytes', f'{1 << 20}', '--input', *raw),
    *('--output', str(output), '--resume'),
  ]
  process = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.DEVNULL)

  def reports():
    return [
      *output.glob('.fedfish-*/tasks/*.json'),
      *output.glob('.fedfish-*/shards/*.json'),
    ]

  wait_until(lambda: len(reports()) >= num_done or process.poll() is not None)
  process.kill()
  process.wait(timeout=300)
  assert len(reports()) >= num_done
  subprocess.run(command, cwd=_ROOT, check=True, stderr=subprocess.DEVNULL)
  assert contents(output) == contents(tmp_path / 'expected')


def test_runs_of_a_task_that_was_not_done(tmp_path, monkeypatch, job, expected):
  with monkeypatch.context() as patch:
    _count(patch, 'read', 2)
    with pytest.raises(FailedError):
      run_group_job(job, tmp_path / 'out')
  (left,) = (tmp_path / 'out').iterdir()
  (left / 'runs' / 'run.0.arrow').write_bytes(b'half')
  removed, remove = [], places.remove

  def remove_and_say(path):
    removed.append(os.path.basename(path))
    remove(path)

  monkeypatch.setattr(places, 'remove', remove_and_say)
  run_group_job(job, tmp_path / 'out', resume=True)
  assert 'run.0.arrow' in removed
  assert contents(tmp_path / 'out') == expected


def test_another_function_is_another_job(tmp_path, monkeypatch, job):
  module = tmp_path / 'own_of_resume.py'
  monkeypatch.syspath_prepend(tmp_path)
  for number, text in enumerate(
    ('return True', 'return "1" in record["text"]')
  ):
    module.write_text(f'def keep(record):\n  {text}\n')
    sys.modules.pop(module.stem, None)
    own = make_job(job.paths, filter='own_of_resume.keep')
    with monkeypatch.context() as patch:
      read = _count(patch, 'read', 3 - number)
      with pytest.raises(FailedError):
        run_group_job(own, tmp_path / 'out', resume=True)
    # Nothing of the first is taken by the second.
    assert len(read) == 3 - number
