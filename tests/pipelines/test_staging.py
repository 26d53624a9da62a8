"""Staging directories: of a job that is alive, was killed, or lost a worker."""

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from bucket_file_system import BucketFileSystem
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import output_files
from pipelines import staging as staging_module
from pipelines.group_job import run_group_job
from pipelines.remote_files import StoreError
from pipelines.staging import require_shared, stage
from tff_fedfish.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]


def _names(directory):
  return sorted(path.name for path in directory.iterdir())


def _keep(staging, name, data):
  """Writes a file that gets a name in the output."""
  path = f'{staging.path}/{len(staging.files)}'
  output_files.write_bytes(path, data)
  staging.files[path] = name


def test_stage_becomes_the_output(tmp_path):
  with stage(str(tmp_path / 'a' / 'out')) as staging:
    _keep(staging, 'train/x', b'1')
    output_files.write_bytes(f'{staging.path}/left_over', b'2')
    assert _names(tmp_path / 'a') == [os.path.basename(staging.path)]
  assert contents(tmp_path) == {'a/out/train/x': b'1'}
  assert (tmp_path / 'a' / 'out').stat().st_mode & 0o777 == 0o755


def test_existing_directory_is_filled_not_replaced(tmp_path):
  output = tmp_path / 'out'
  output.mkdir()
  before = output.stat().st_ino
  # What a job leaves that is killed while it fills the directory.
  for name in ('groups-00007-of-00008.tfrecord', 'train/index.parquet'):
    write_lines(output / name, [b'old'])
  assert output_files.require_usable(str(output)) == str(output)
  with stage(str(output)) as staging:
    for name in ('manifest.json', 'train/index.parquet'):
      _keep(staging, name, b'new')
  assert output.stat().st_ino == before
  names = {'manifest.json': b'new', 'train/index.parquet': b'new'}
  assert contents(output) == names
  assert _names(tmp_path) == ['out']


@pytest.mark.parametrize('exists', [True, False])
def test_output_that_is_filled_meanwhile(tmp_path, exists):
  output = tmp_path / 'out'
  if exists:
    output.mkdir()
  with pytest.raises(
    UserError,
    match=r"must stay empty while it is written, but '.*out' was filled "
    r'meanwhile, perhaps by another job\. Name another directory\.',
  ):
    with stage(str(output)) as staging:
      _keep(staging, 'manifest.json', b'ours')
      write_lines(output / 'manifest.json', [b'theirs'])
  assert contents(tmp_path) == {'out/manifest.json': b'theirs'}


def test_failure_leaves_nothing(tmp_path):
  with pytest.raises(KeyError):
    with stage(str(tmp_path / 'out')):
      raise KeyError
  assert _names(tmp_path) == []


@pytest.mark.parametrize('filled', [False, True])
def test_rollback_runs_where_there_is_no_output(tmp_path, filled):
  heard = []
  with contextlib.suppress(UserError), stage(str(tmp_path / 'out')) as staging:
    _keep(staging, 'x', b'')
    staging.rollback.callback(heard.append, 'rollback')
    if filled:
      # Of another job that had the same input.
      write_lines(tmp_path / 'out' / 'x', [b''])
    assert heard == []
  assert heard == ['rollback'] * filled


@pytest.mark.parametrize('option', ['--output', '--write_dropped'])
def test_jobs_that_fill_one_directory_at_a_time(tmp_path, monkeypatch, option):
  output, rename = tmp_path / 'out', os.rename
  output.mkdir()
  refused, threads = [], []

  def second():
    try:
      with stage(str(output), option) as staging:
        for name in ('manifest.json', 'index.parquet'):
          _keep(staging, name, b'second')
    except UserError as error:
      refused.append(str(error))

  def rename_later(source, target):
    if target.parent == output and not threads:
      # The first one has found the directory empty.
      threads.append(threading.Thread(target=second))
      threads[0].start()
      threads[0].join(0.3)
    rename(source, target)

  with stage(str(output), option) as staging:
    for name in ('manifest.json', 'index.parquet'):
      _keep(staging, name, b'first')
    monkeypatch.setattr(os, 'rename', rename_later)
  threads[0].join()
  assert refused == [
    f"`{option}` must stay empty while it is written, but '{output}' was "
    'filled meanwhile, perhaps by another job. Name another directory.'
  ]
  names = {'manifest.json': b'first', 'index.parquet': b'first'}
  assert contents(tmp_path) == {f'out/{name}': names[name] for name in names}


def test_output_that_somebody_else_locks(tmp_path, monkeypatch):
  monkeypatch.setattr(staging_module, '_NUM_LOCK_TRIES', 2)
  output = tmp_path / 'out'
  output.mkdir()
  with contextlib.ExitStack() as stack:
    # As `flock out fedfish group ... --output out` does.
    held = os.open(output, os.O_RDONLY)
    stack.callback(os.close, held)
    fcntl.flock(held, fcntl.LOCK_EX)
    with stage(str(output)) as staging:
      _keep(staging, 'manifest.json', b'ours')
  assert contents(tmp_path) == {'out/manifest.json': b'ours'}


def test_file_that_is_met_on_the_way_is_not_replaced(tmp_path, monkeypatch):
  output, rename = tmp_path / 'out', os.rename
  output.mkdir()

  def rename_before_another(source, target):
    rename(source, target)
    if target == output / 'index.parquet':
      # A job whose lock does not reach here, as on NFS.
      write_lines(output / 'manifest.json', [b'theirs'])

  with pytest.raises(UserError, match='was filled meanwhile'):
    with stage(str(output)) as staging:
      for name in ('manifest.json', 'index.parquet'):
        _keep(staging, name, b'ours')
      monkeypatch.setattr(os, 'rename', rename_before_another)
  assert contents(tmp_path) == {'out/manifest.json': b'theirs'}


def test_remote_manifest_of_another_job(tmp_path, monkeypatch):
  monkeypatch.setenv('BUCKET_ROOT', str(tmp_path))
  heard = []

  def copy(files, sources, targets):
    # Theirs comes first, and then nothing more.
    write_lines(tmp_path / 'out' / 'manifest.json', [b'theirs'])
    raise OSError('unplugged')

  monkeypatch.setattr(BucketFileSystem, 'copy', copy)
  with pytest.raises(StoreError, match='unplugged'):
    with stage('bucket://out') as staging:
      _keep(staging, 'manifest.json', b'ours')
      staging.rollback.callback(heard.append, 'rollback')
  assert heard == ['rollback']
  assert contents(tmp_path) == {'out/manifest.json': b'theirs'}


@pytest.mark.parametrize(
  'name', ['x' * 255, '\u00e9' * 127, 'x' + '\u00e9' * 127, 'x\udcff']
)
def test_name_that_is_long_or_not_text(tmp_path, name):
  output = tmp_path / name
  assert output_files.require_usable(str(output)) == str(output)
  other = tmp_path / os.fsdecode(os.fsencode(name)[:-1] + b'\xfe')
  prefixes = []
  for place in (output, other):
    with contextlib.suppress(KeyError), stage(str(place)) as staging:
      prefix = os.path.basename(staging.path).rpartition('-')[0]
      prefix.encode()
      prefixes.append(prefix)
      raise KeyError
  assert prefixes[0] != prefixes[1]
  # What a killed job has left is found, and only that of the same output.
  for prefix in prefixes:
    write_lines(tmp_path / f'{prefix}-abc' / '.lock', [])
  with stage(str(output)) as staging:
    _keep(staging, 'x', b'')
  assert _names(tmp_path) == sorted([f'{prefixes[1]}-abc', name])


def test_staging_is_locked_when_others_find_it(tmp_path, monkeypatch):
  flock = fcntl.flock
  output = str(tmp_path / 'out')

  def flock_later(file, operation):
    monkeypatch.setattr(fcntl, 'flock', flock)
    # Another job of the same output looks around.
    with contextlib.suppress(KeyError), stage(output):
      raise KeyError
    flock(file, operation)

  monkeypatch.setattr(fcntl, 'flock', flock_later)
  with stage(output) as staging:
    _keep(staging, 'x', b'')
  assert contents(tmp_path) == {'out/x': b''}


def test_parent_that_cannot_be_listed(plain_directory):
  plain_directory.chmod(0o333)
  output = plain_directory / 'out'
  assert output_files.require_usable(str(output)) == str(output)
  with stage(str(output)) as staging:
    _keep(staging, 'x', b'')
  plain_directory.chmod(0o700)
  assert contents(plain_directory) == {'out/x': b''}
  assert _names(plain_directory) == ['out']


def test_living_job_is_left_alone(tmp_path):
  output = str(tmp_path / 'out')
  with stage(output) as first:
    pathlib.Path(first.path, 'x').touch()
    with stage(f'{output}2') as other:
      assert other != first
    with contextlib.suppress(KeyError), stage(output):
      raise KeyError
    assert pathlib.Path(first.path, 'x').exists()


def test_abandoned_staging_is_removed(tmp_path):
  abandoned = tmp_path / '.out.grouping-abc'
  abandoned.mkdir()
  (abandoned / '.lock').touch()
  other = tmp_path / '.out2.grouping-abc'
  other.mkdir()
  (other / '.lock').touch()
  with stage(str(tmp_path / 'out')) as staging:
    _keep(staging, 'x', b'')
    assert not abandoned.exists()
  assert _names(tmp_path) == ['.out2.grouping-abc', 'out']


def test_kill_in_the_middle(tmp_path):
  # Large enough that the job is still at it when the signal comes.
  lines = raw_records(300) * 1000
  raw = write_lines(tmp_path / 'raw.json', lines)
  output = tmp_path / 'out'
  command = ('group', 'c4', '--input', str(raw), '--output', str(output))
  process = subprocess.Popen(
    [sys.executable, '-m', 'tff_fedfish', *command],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  )
  while not (found := list(tmp_path.glob('.out.grouping-*/.lock'))):
    assert process.poll() is None, process.communicate()
    time.sleep(0.01)
  time.sleep(0.5)
  process.send_signal(signal.SIGKILL)
  process.communicate(timeout=10)
  assert process.returncode == -signal.SIGKILL
  # No manifest, and nothing that looks like an output.
  assert _names(tmp_path) == [found[0].parent.name, 'raw.json']
  with open(found[0], 'rb') as lock:
    # Nobody holds it any more.
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  write_lines(raw, raw_records(30))
  run_group_job(make_job([raw]), output)
  assert _names(tmp_path) == ['out', 'raw.json']
  run_group_job(make_job([raw]), tmp_path / 'again')
  assert contents(output) == contents(tmp_path / 'again')


def test_worker_that_does_not_share_the_disk(tmp_path):
  with stage(str(tmp_path / 'out')) as staging:
    with pytest.raises(
      UserError,
      match=r'^`--output` must be a directory that all workers see, but the '
      rf"worker on '{socket.gethostname()}' does not see "
      r"'.*/\.out\.grouping-\w+'\. Name a directory that is mounted on all ",
    ):
      require_shared(staging.path)
    staging.make_directories(['pieces'])
    require_shared(staging.path)
    _keep(staging, 'x', b'')


def test_worker_that_outlives_its_job_writes_nothing(tmp_path):
  with contextlib.suppress(KeyError), stage(str(tmp_path / 'out')) as staging:
    staging.make_directories(['pieces'])
    raise KeyError
  with pytest.raises(FileNotFoundError):
    output_files.write_bytes(f'{staging.path}/pieces/x', b'')
  assert _names(tmp_path) == []


def test_lock_of_a_killed_job_is_asked_for_as_nfs_wants_it(tmp_path):
  # NFS gives exclusive locks only on files that are open for writing.
  abandoned = tmp_path / '.out.grouping-abc'
  abandoned.mkdir()
  (abandoned / '.lock').touch(mode=0o400)
  opened = []

  def flock(file, operation):
    opened.append(file.mode)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(fcntl, 'flock', flock)
    with stage(str(tmp_path / 'out')) as staging:
      _keep(staging, 'x', b'')
  assert opened == ['rb+', 'wb']
  assert _names(tmp_path) == ['out']
