"""Files of a job's output: those that appear whole, and disks that fail."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
from grouping_jobs import make_job, raw_records, write_lines

from pipelines import output_files
from pipelines.group_job import run_group_job
from tff_fedfish.errors import FailedError, UserError

_ROOT = pathlib.Path(__file__).parents[2]


def _names(directory):
  return sorted(path.name for path in directory.iterdir())


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


@pytest.mark.parametrize('option', ['--output', '--write_dropped'])
def test_mount_point(tmp_path, option):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    with pytest.raises(
      UserError,
      match=rf"^`{option}` must be a directory inside a file system, but '.*"
      r"disk' is where one is mounted\. Name a directory below it, such as '.*"
      r"disk/new'\.$",
    ):
      output_files.require_usable(str(disk), option)
    assert output_files.require_usable(str(disk / 'new'), option)


@pytest.mark.parametrize('option', ['--output', '--write_dropped'])
def test_parent_that_cannot_be_written_to(option):
  # Not `tmp_path`, which only its owner may enter.
  with tempfile.TemporaryDirectory() as directory:
    parent = pathlib.Path(directory, 'parent')
    path = parent / 'out'
    path.mkdir(parents=True)
    for place, mode in ((directory, 0o755), (path, 0o777), (parent, 0o555)):
      os.chmod(place, mode)
    # The superuser may write anywhere.
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
      with pytest.raises(
        UserError,
        match=rf"^`{option}` must be writable, but '{parent.resolve()}' is not "
        r'\(Permission denied\)\. Name another directory, or change its ',
      ):
        output_files.require_usable(str(path), option)
    finally:
      os.seteuid(user)
      parent.chmod(0o755)


def test_dropped_records_replace_nothing(tmp_path):
  # What a killed job leaves of an output is no dropped record.
  write_lines(tmp_path / 'groups-00000-of-00001.tfrecord', [b'old'])
  with pytest.raises(UserError, match='`--write_dropped` must be empty or new'):
    output_files.require_usable(str(tmp_path), '--write_dropped')


def test_read_only_disk(tmp_path):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
    with pytest.raises(
      UserError,
      match=r"`--output` must be writable, but '.*disk/out' is not \(Read-only "
      r'file system\)\. Name another directory, or change its permissions\.',
    ):
      output_files.require_usable(str(disk / 'out'))
