"""Two `fedfish train` in one new directory: one trains, one is refused."""

import errno
import fcntl
import multiprocessing
import os
import pathlib
import resource
import socket
import subprocess
import sys

import pytest
import small_runs

from tff_fedfish.errors import UserError
from tff_fedfish.run import run_directory, tables

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_started_at_once(small_inputs, tmp_path):
  workdir = tmp_path / 'new' / 'run'
  command = [sys.executable, '-m', 'tff_fedfish', 'train']
  command += ['--config', small_runs.CONFIG, '--workdir', str(workdir)]
  processes = [
    subprocess.Popen(
      [
        *command,
        *small_runs.overrides(
          *small_inputs, training__num_rounds=3, algorithm__name=method
        ),
      ],
      cwd=_ROOT,
      stderr=subprocess.PIPE,
      text=True,
    )
    for method in ('fed_avg', 'fed_fish')
  ]
  errors = [process.communicate(timeout=300)[1] for process in processes]
  codes = [process.returncode for process in processes]
  assert sorted(codes) == [0, 2], errors
  refused = codes.index(2)
  assert errors[refused] == (
    f"fedfish: error: `--workdir` '{workdir}' is in use by process "
    f'{processes[1 - refused].pid} on {socket.gethostname()}. Wait until it '
    'ends, or name another directory.\n'
  )
  # The directory holds the other one's run, and all of it.
  config = run_directory.read_config(workdir)
  assert config.algorithm.name == ('fed_avg', 'fed_fish')[1 - refused]
  rows = tables.read_metrics(workdir / 'metrics.csv')
  assert [row['round'] for row in rows] == [0, 1, 2, 3]


class TestLock:
  def test_creates_and_removes_what_stays_empty(self, tmp_path):
    workdir = tmp_path / 'a' / 'b'
    with run_directory.lock(workdir):
      assert workdir.is_dir()
    assert list(tmp_path.iterdir()) == []

  def test_keeps_what_was_there_or_was_filled(self, tmp_path):
    (tmp_path / 'empty').mkdir()
    with run_directory.lock(tmp_path / 'empty'):
      pass
    with run_directory.lock(tmp_path / 'filled'):
      (tmp_path / 'filled' / 'config.json').touch()
    assert sorted(os.listdir(tmp_path)) == ['empty', 'filled']
    assert not os.listdir(tmp_path / 'empty')
    # Who held it is not published with the run.
    assert not (tmp_path / 'filled/.lock').read_bytes()

  def test_refused_while_held_and_nothing_is_removed(self, tmp_path):
    workdir = tmp_path / 'run'
    with run_directory.lock(workdir):
      with pytest.raises(UserError, match=f'in use by process {os.getpid()} '):
        with run_directory.lock(workdir):
          pass
      assert workdir.is_dir()

  def test_a_full_disk(self, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
      with pytest.raises(OSError, match=f'{tmp_path}/new/run/.lock'):
        with run_directory.lock(tmp_path / 'new' / 'run'):
          pass
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not os.listdir(tmp_path)

  def test_kept_by_another_host(self, tmp_path):
    # NFS locks files, not directories, on its server.
    with open(tmp_path / '.lock', 'w') as file:
      file.write('process 7 on another.example')
      file.flush()
      fcntl.flock(file, fcntl.LOCK_EX)
      with pytest.raises(UserError, match='by process 7 on another.example. '):
        with run_directory.lock(tmp_path):
          pass

  def test_a_disk_without_locks(self, tmp_path, monkeypatch, capsys):
    def flock(*_):
      raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, 'flock', flock)
    with run_directory.lock(tmp_path / 'run'):
      pass
    assert capsys.readouterr().err == (
      f"fedfish: note: '{tmp_path}/run/.lock' is on a disk without locks (No "
      'locks available); nothing keeps a second process out\n'
    )

  def test_many_at_once_never_share_it(self, tmp_path):
    # Each removes the directory that it created when it ends, so that the next
    # must not lock a directory that is gone.
    context = multiprocessing.get_context('spawn')
    with context.Pool(4) as pool:
      counts = pool.map(_lock_often, [str(tmp_path / 'run')] * 4)
    assert sum(counts) > 0
    # Who creates it and is refused leaves it to who holds it.
    assert [*tmp_path.glob('run/*')] == []


def _lock_often(workdir):
  """Returns how often the lock was held; fails if it was shared."""
  num_held = 0
  for _ in range(100):
    try:
      with run_directory.lock(workdir):
        # Fails if another process holds the same directory.
        marker = os.open(os.path.join(workdir, 'held'), os.O_CREAT | os.O_EXCL)
        os.close(marker)
        os.unlink(os.path.join(workdir, 'held'))
        num_held += 1
    except UserError:
      pass
  return num_held
