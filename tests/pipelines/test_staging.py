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

import pytest
from bucket_file_system import BucketFileSystem
from grouping_jobs import (
  contents,
  raw_records,
  wait_until_read,
  write_lines,
)

from pipelines import output_files
from pipelines import staging as staging_module
from pipelines.remote_files import StoreError
from pipelines.staging import require_shared, stage
from tff_fedfish.cli.main import main
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


def test_jobs_that_fill_one_directory_at_a_time(tmp_path, monkeypatch):
  output, rename = tmp_path / 'out', os.rename
  output.mkdir()
  refused, threads = [], []

  def second():
    try:
      with stage(str(output)) as staging:
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

  with stage(str(output)) as staging:
    for name in ('manifest.json', 'index.parquet'):
      _keep(staging, name, b'first')
    monkeypatch.setattr(os, 'rename', rename_later)
  threads[0].join()
  assert refused == [
    f"`--output` must stay empty while it is written, but '{output}' was "
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

  def copy(files, sources, targets):
    # Theirs comes first, and then nothing more.
    write_lines(tmp_path / 'out' / 'manifest.json', [b'theirs'])
    raise OSError('unplugged')

  monkeypatch.setattr(BucketFileSystem, 'copy', copy)
  with pytest.raises(StoreError, match='unplugged'):
    with stage('bucket://out') as staging:
      _keep(staging, 'manifest.json', b'ours')
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
  left = [tmp_path / f'{prefix}-{"0a" * 8}' for prefix in prefixes]
  for path in left:
    path.mkdir()
  assert output_files.find_staging(str(output)) == [str(left[0])]
  with stage(str(output)) as staging:
    _keep(staging, 'x', b'')
  assert _names(tmp_path) == sorted([*(path.name for path in left), name])


def test_parent_that_cannot_be_listed(plain_directory):
  plain_directory.chmod(0o333)
  output = plain_directory / 'out'
  assert output_files.require_usable(str(output)) == str(output)
  with stage(str(output)) as staging:
    _keep(staging, 'x', b'')
  plain_directory.chmod(0o700)
  assert contents(plain_directory) == {'out/x': b''}
  assert _names(plain_directory) == ['out']


def test_kill_in_the_middle(tmp_path):
  # Large enough that the job is still at it when the signal comes.
  lines = raw_records(300) * 1000
  raw = write_lines(tmp_path / 'raw.json', lines)
  output = tmp_path / 'out'
  command = (
    *(sys.executable, '-m', 'tff_fedfish', 'group', 'c4'),
    *('--input', str(raw), '--output', str(output)),
  )
  process = subprocess.Popen(
    command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
  )
  wait_until_read(raw, process, process.pid)
  process.send_signal(signal.SIGKILL)
  process.communicate(timeout=300)
  assert process.returncode == -signal.SIGKILL
  # No manifest, and nothing that looks like an output.
  (left,) = tmp_path.glob('.out.grouping-*')
  assert _names(tmp_path) == [left.name, 'raw.json']
  write_lines(raw, raw_records(30))
  again = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
  assert again.returncode == 0, again.stderr
  assert again.stderr.splitlines()[0] == (
    f"fedfish: note: '{left}' is of another job for this output. If none is "
    'running, remove it.'
  )
  assert _names(tmp_path) == [left.name, 'out', 'raw.json']
  assert main([*command[3:-1], f'{tmp_path}/again']) == 0
  assert contents(output) == contents(tmp_path / 'again')


_KILL_WHILE_NAMES_ARE_GIVEN = """
import os, signal, sys
from tff_fedfish.cli.main import main
rename = os.rename
def rename_one(source, target):
  rename(source, target)
  if os.path.dirname(target) == sys.argv[-1]:
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = rename_one
main(sys.argv[1:])
"""


def test_kill_while_the_output_is_filled(tmp_path, capsys):
  raw = write_lines(tmp_path / 'raw.json', raw_records(30))
  (tmp_path / 'out').mkdir()
  command = ('group', 'c4', '--input', str(raw), '--output', f'{tmp_path}/out')
  done = subprocess.run(
    [sys.executable, '-c', _KILL_WHILE_NAMES_ARE_GIVEN, *command],
    cwd=_ROOT,
    capture_output=True,
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  before = contents(tmp_path)
  assert main(command) == 2
  assert capsys.readouterr().err == (
    f"fedfish: error: `--output` must be empty or new, but '{tmp_path}/out' "
    "already holds 'groups-00000-of-00008.tfrecord'. Name another directory, "
    'or remove it first.\n'
  )
  assert contents(tmp_path) == before


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
