"""Files of a job's output: those that appear whole, and disks that fail."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import bucket_file_system  # noqa: F401
import hypothesis
import hypothesis.strategies
import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import output_files
from pipelines.job import run_group_job
from tff_fedfish.cli.main import main
from tff_fedfish.errors import FailedError, UserError

_ROOT = pathlib.Path(__file__).parents[2]


def _names(directory):
  return sorted(path.name for path in directory.iterdir())


_FOREIGN = [
  'grouping-notes.txt',
  'grouping-2024/paper.tex',
  f'grouping-{"0a" * 16}',
  f'grouping-{"0a" * 16}x/paper.tex',
  f'papers/grouping-{"0a" * 16}/paper.tex',
  'index.parquet',
  'train/index.parquet',
  'groups-00000-of-00008.tfrecord',
  'manifest.json',
]


@pytest.mark.parametrize('name', [*_FOREIGN, f'grouping-{"0a" * 16}/paper.tex'])
def test_files_of_others_are_left_alone(tmp_path, capsys, name):
  raw = write_lines(tmp_path / 'raw.json', raw_records(9))
  write_lines(tmp_path / 'out' / name, [b'theirs'])
  before = contents(tmp_path)
  command = ['group', 'c4', '--input', str(raw), '--output', f'{tmp_path}/out']
  assert main(command) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('fedfish: error: `--output` must be empty or new, but')
  assert contents(tmp_path) == before


@pytest.mark.parametrize('name', _FOREIGN)
def test_files_of_others_in_a_store_are_left_alone(
  tmp_path, monkeypatch, capsys, name
):
  monkeypatch.setenv('BUCKET_ROOT', str(tmp_path))
  raw = write_lines(tmp_path / 'raw.json', raw_records(9))
  write_lines(tmp_path / 'a' / 'out' / name, [b'theirs'])
  before = contents(tmp_path)
  output = 'bucket://a/out'
  assert main(['group', 'c4', '--input', str(raw), '--output', output]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line == (
    f"fedfish: error: `--output` must be empty or new, but '{output}' already "
    f'holds {name!r}. Name another directory, or remove it first.'
  )
  # Those that come while the job is at work.
  with pytest.raises(UserError, match='was filled meanwhile'):
    run_group_job(make_job([raw]), output)
  assert contents(tmp_path) == before


def test_staging_of_another_job_in_a_store(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('BUCKET_ROOT', str(tmp_path))
  raw = write_lines(tmp_path / 'raw.json', raw_records(9))
  name = f'grouping-{"0a" * 16}'
  theirs = write_lines(tmp_path / 'out' / name / 'shards' / 'x', [b'theirs'])
  output = 'bucket://out'
  assert main(['group', 'c4', '--input', str(raw), '--output', output]) == 0
  assert capsys.readouterr().err.splitlines()[0] == (
    f"fedfish: note: '{output}/{name}' is of another job for this output. If "
    'none is running, remove it.'
  )
  assert theirs.read_bytes() == b'theirs'
  shutil.rmtree(tmp_path / 'out' / name)
  run_group_job(
    make_job([raw], num_shards=8, max_record_bytes=256 << 20),
    tmp_path / 'local',
  )
  assert contents(tmp_path / 'out') == contents(tmp_path / 'local')


@hypothesis.given(
  hypothesis.strategies.from_regex(
    r'(grouping-[0-9a-f]{30,33}[/x]?|groups-0+-of-0+|[a-z]/)*[a-z.]+',
    fullmatch=True,
  )
)
def test_only_names_of_staging_directories_are_ours(name):
  directory, _, rest = name.partition('/')
  kind, _, number = directory.partition('-')
  is_ours = (kind, len(number)) == ('grouping', 32) and rest != ''
  is_ours &= {*number} <= {*'0123456789abcdef'}
  assert output_files.is_staged(name) == is_ours


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


def test_mount_point(tmp_path):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    with pytest.raises(
      UserError,
      match=r"^`--output` must be a directory inside a file system, but '.*"
      r"disk' is where one is mounted\. Name a directory below it, such as '.*"
      r"disk/new'\.$",
    ):
      output_files.require_usable(str(disk))
    assert output_files.require_usable(str(disk / 'new'))


def test_parent_that_cannot_be_written_to():
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
        match=rf"^`--output` must be writable, but '{parent.resolve()}' is not "
        r'\(Permission denied\)\. Name another directory, or change its ',
      ):
        output_files.require_usable(str(path))
    finally:
      os.seteuid(user)
      parent.chmod(0o755)


def test_read_only_disk(tmp_path):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
    with pytest.raises(
      UserError,
      match=r"`--output` must be writable, but '.*disk/out' is not \(Read-only "
      r'file system\)\. Name another directory, or change its permissions\.',
    ):
      output_files.require_usable(str(disk / 'out'))
