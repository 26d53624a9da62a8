"""Staging directories: of a job that is alive, was killed, or cannot write."""

import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import output_files
from pipelines.group_job import run_group_job
from tff_fedfish.errors import FailedError, UserError

_ROOT = pathlib.Path(__file__).parents[2]


def _names(directory):
  return sorted(path.name for path in directory.iterdir())


def test_stage_becomes_the_output(tmp_path):
  with output_files.stage(str(tmp_path / 'a' / 'out')) as staging:
    with output_files.open_to_write(f'{staging}/train/x') as file:
      file.write(b'1')
    assert _names(tmp_path / 'a') == [os.path.basename(staging)]
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
  with output_files.stage(str(output)) as staging:
    for name in ('manifest.json', 'train/index.parquet'):
      with output_files.open_to_write(f'{staging}/{name}') as file:
        file.write(b'new')
  assert output.stat().st_ino == before
  names = {'manifest.json': b'new', 'train/index.parquet': b'new'}
  assert contents(output) == names
  assert _names(tmp_path) == ['out']


@pytest.mark.parametrize(
  'name',
  [
    'manifest.json',
    'notes.txt',
    'photos.tfrecord',
    'raw/groups-00000-of-00001.tfrecord',
    'train/x/index.parquet',
  ],
)
def test_what_is_not_left_over_is_left_alone(tmp_path, name):
  for name_of_ours in ('groups-00000-of-00001.tfrecord', 'index.parquet'):
    write_lines(tmp_path / 'out' / name_of_ours, [b'old'])
  write_lines(tmp_path / 'out' / name, [b'of somebody'])
  with pytest.raises(UserError, match='`--output` must be empty or new, but '):
    output_files.require_usable(str(tmp_path / 'out'))
  assert (tmp_path / 'out' / name).read_bytes() == b'of somebody'


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
    with output_files.stage(str(output)) as staging:
      write_lines(pathlib.Path(staging) / 'manifest.json', [b'ours'])
      write_lines(output / 'manifest.json', [b'theirs'])
  assert contents(tmp_path) == {'out/manifest.json': b'theirs'}


def test_failure_leaves_nothing(tmp_path):
  with pytest.raises(KeyError):
    with output_files.stage(str(tmp_path / 'out')):
      raise KeyError
  assert _names(tmp_path) == []


def test_file_appears_whole_or_not(tmp_path):
  path = tmp_path / 'x'
  with pytest.raises(KeyError):
    with output_files.open_to_write(str(path)) as file:
      file.write(b'half')
      raise KeyError
  assert _names(tmp_path) == []


def test_files_being_written_are_not_listed(tmp_path):
  (tmp_path / 'a').mkdir()
  for name in ('b', 'a/c', 'a/.hidden'):
    (tmp_path / name).touch()
  found = output_files.list_files(str(tmp_path))
  assert found == [f'{tmp_path}/a/c', f'{tmp_path}/b']
  assert output_files.list_files(str(tmp_path / 'none')) == []


def test_living_job_is_left_alone(tmp_path):
  output = str(tmp_path / 'out')
  with output_files.stage(output) as first:
    pathlib.Path(first, 'x').touch()
    with output_files.stage(f'{output}2') as other:
      assert other != first
    with contextlib.suppress(KeyError), output_files.stage(output):
      raise KeyError
    assert pathlib.Path(first, 'x').exists()


def test_abandoned_staging_is_removed(tmp_path):
  abandoned = tmp_path / '.out.grouping-abc'
  abandoned.mkdir()
  (abandoned / '.lock').touch()
  other = tmp_path / '.out2.grouping-abc'
  other.mkdir()
  (other / '.lock').touch()
  with output_files.stage(str(tmp_path / 'out')):
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


@contextlib.contextmanager
def _mounted(path, options):
  path.mkdir()
  command = ['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', str(path)]
  try:
    result = subprocess.run(command, capture_output=True, text=True)
  except FileNotFoundError:
    pytest.skip('needs the command `mount`')
  if result.returncode:
    pytest.skip(f'needs the right to mount a tmpfs: {result.stderr.strip()}')
  try:
    yield path
  finally:
    subprocess.run(['umount', str(path)], check=True)


def test_full_disk(tmp_path):
  lines = [record | {'text': 'long ' * 1000} for record in raw_records(500)]
  raw = write_lines(tmp_path / 'raw', lines)
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    with pytest.raises(
      FailedError,
      match=r"^Grouping into '.*out' stopped \(\[Errno 28\] No space left on "
      r'device.*\); nothing was kept\. Check the disk and its free space, then',
    ):
      run_group_job(make_job([raw]), disk / 'out')
    assert _names(disk) == []
    # With room, the same command succeeds.
    subprocess.run(['mount', '-o', 'remount,size=8m', str(disk)], check=True)
    (manifest,) = run_group_job(make_job([raw]), disk / 'out')
    assert manifest.counts.records_out == 500


# As a full disk does, a limit fails a write in the middle; Python ignores the
# signal that comes with it.
_GROUP_WITH_A_LIMIT = """
import resource
import sys
from tff_fedfish.cli.main import main

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
  'flags',
  [
    (),
    ('--direct_running_mode=multi_processing', '--direct_num_workers=2'),
  ],
  ids=['one_process', 'several'],
)
def test_a_write_that_fails_is_no_bad_input(tmp_path, flags):
  lines = [record | {'text': 'long ' * 1000} for record in raw_records(500)]
  raw = write_lines(tmp_path / 'raw', lines)
  output = tmp_path / 'out'
  argv = ['group', 'c4', '--input', raw, '--output', output, *flags]
  done = subprocess.run(
    [sys.executable, '-c', _GROUP_WITH_A_LIMIT, *map(str, argv)],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1, done.stderr
  line = done.stderr.splitlines()[-1]
  assert line.startswith(f"fedfish: failed: Grouping into '{output}' stopped (")
  assert '[Errno 27] File too large' in line
  assert 'Check the disk and its free space, then run it again.' in line
  assert _names(tmp_path) == ['raw']


def test_mount_point(tmp_path):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    with pytest.raises(
      UserError,
      match=r"must be a directory inside a file system, but '.*disk' is where "
      r"one is mounted\. Name a directory below it, such as '.*disk/corpus'\.",
    ):
      output_files.require_usable(str(disk))
    assert output_files.require_usable(str(disk / 'corpus'))


def test_read_only_disk(tmp_path):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
    with pytest.raises(
      UserError,
      match=r"`--output` must be writable, but '.*disk/out' is not \(Read-only "
      r'file system\)\. Name another directory, or change its permissions\.',
    ):
      output_files.require_usable(str(disk / 'out'))
