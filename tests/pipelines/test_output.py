"""Outputs: what is refused, used, published, and left alone."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading

import buckets
import pytest
from grouping_jobs import (
  contents,
  make_job,
  raw_records,
  wait_until_read,
  write_lines,
)

from pipelines import output
from pipelines.job import run_group_job
from tff_fedfish.cli.main import main
from tff_fedfish.data import places
from tff_fedfish.errors import FailedError, UserError

_ROOT = __file__.rpartition('/tests/')[0]
_WORK = f'.fedfish-{"0a" * 16}'
_NAMES = (
  *('groups-00000-of-00002.tfrecord', 'groups-00001-of-00002.tfrecord'),
  *('index.parquet', 'manifest.json'),
)
_FILLED = (
  "`--output` must stay empty while it is written, but '{}' was filled "
  'meanwhile, perhaps by another job. Name another directory.'
)


@pytest.fixture(params=['local', 'store'])
def place(request, tmp_path, monkeypatch):
  """Returns the path of an output, `tmp_path / 'a/out'`."""
  if request.param == 'local':
    return f'{tmp_path}/a/out'
  buckets.mount(monkeypatch, tmp_path)
  return 'bucket://a/out'


def _fill(work, names=_NAMES, data=b'ours'):
  """Does what a job does with its work directory."""
  for name in names:
    path = f'{work.path}/shards/{len(work.files)}'
    places.write_bytes(path, data)
    work.files[path] = name


def _publish(place, names=_NAMES, data=b'ours'):
  with output.work_directory(place, ['shards']) as work:
    _fill(work, names, data)


@pytest.mark.parametrize(
  'name',
  [
    'notes.txt',
    'index.txt',
    '.fedfish-notes/paper.tex',
    f'{_WORK}x/paper.tex',
    f'papers/{_WORK}/paper.tex',
    'manifest.json',
    'train/manifest.json',
  ],
)
def test_files_of_others_are_left_alone(place, tmp_path, name):
  write_lines(tmp_path / 'a' / 'out' / name, [b'theirs'])
  with pytest.raises(UserError) as raised:
    output.require_usable(place)
  assert str(raised.value) == (
    f'`--output` must be empty or new, but {place!r} already holds {name!r}. '
    'Name another directory, or remove it first.'
  )
  with pytest.raises(UserError, match='was filled meanwhile'):
    _publish(place)
  assert contents(tmp_path) == {f'a/out/{name}': b'theirs'}


@pytest.mark.parametrize(
  'names, foreign, patterns',
  [
    (['.fedfish-publishing'], [], ['.fedfish-publishing']),
    (
      [_NAMES[0], _NAMES[1]],
      ['groups.tfrecord', f'x/y/{_NAMES[0]}', '.hidden', f'{_WORK}/x'],
      ['groups-*-of-00002.tfrecord'],
    ),
    (
      # Of a split; one of its manifests was written, the other not.
      ['.fedfish-publishing', 'a/index.parquet', f'b/{_NAMES[1]}'],
      ['b/notes'],
      [
        *('.fedfish-publishing', 'a/index.parquet'),
        'b/groups-*-of-00002.tfrecord',
      ],
    ),
  ],
)
def test_parts_of_a_corpus(tmp_path, names, foreign, patterns):
  place = tmp_path / 'o u$t'
  for name in [*names, *foreign]:
    write_lines(place / name, [b'x'])
  before = contents(place)
  with pytest.raises(UserError) as raised:
    output.require_usable(f'{place}')
  words, command = str(raised.value)[:-2].split('`')[2:]
  assert words == (
    f" must be empty or new, but '{place}' holds a part of a corpus, of a job "
    'that was stopped or is still at it. If none is, remove the part: '
  )
  assert command == ' '.join(
    ['rm -f', *(f"'{place}'/{pattern}" for pattern in patterns)]
  )
  assert contents(place) == before
  subprocess.run(command, shell=True, check=True)
  assert contents(place) == dict.fromkeys(foreign, b'x')


def test_corpus_with_a_claim(tmp_path):
  for name in [*_NAMES, output.CLAIM_NAME]:
    write_lines(tmp_path / name, [b'x'])
  with pytest.raises(
    UserError, match=r'only lacks the last step .* `rm -f \S+publishing`\.'
  ):
    output.require_usable(f'{tmp_path}')


@pytest.mark.parametrize(
  'place, command',
  [
    (
      's3://b/o',
      "aws s3 rm --recursive s3://b/o --exclude '*' --include "
      "'.fedfish-publishing' --include 'groups-*-of-00002.tfrecord'",
    ),
    (
      'gs://b/o',
      'gcloud storage rm gs://b/o/.fedfish-publishing '
      'gs://b/o/groups-*-of-00002.tfrecord',
    ),
  ],
)
def test_commands_of_stores(place, command):
  names = [*_NAMES[:2], output.CLAIM_NAME]
  assert output._removal(place, names) == command


def test_work_directory_of_another_job(place, tmp_path, capsys):
  raw = write_lines(tmp_path / 'raw.json', raw_records(9))
  theirs = write_lines(tmp_path / 'a' / 'out' / _WORK / 'x', [b'theirs'])
  command = ['group', 'c4', '--input', str(raw), '--output']
  assert main([*command, place]) == 0
  assert f'{place}/{_WORK}' in capsys.readouterr().err.splitlines()[0]
  assert theirs.read_bytes() == b'theirs'
  shutil.rmtree(theirs.parent)
  assert main([*command, f'{tmp_path}/other']) == 0
  assert contents(tmp_path / 'a' / 'out') == contents(tmp_path / 'other')


def test_published(place, tmp_path):
  names = [f'{part}/{name}' for part in ('train', 'test') for name in _NAMES]
  (tmp_path / 'a' / 'out').mkdir(parents=True)
  before = (tmp_path / 'a' / 'out').stat().st_ino
  with output.work_directory(place, ['shards']) as work:
    _fill(work, names)
    places.write_bytes(f'{work.path}/shards/left_over', b'')
  assert contents(tmp_path) == {f'a/out/{name}': b'ours' for name in names}
  assert (tmp_path / 'a' / 'out').stat().st_ino == before
  assert not (tmp_path / 'a' / 'out' / os.path.basename(work.path)).exists()


def test_failure_leaves_nothing(place, tmp_path):
  (tmp_path / 'a').mkdir()
  with pytest.raises(KeyError):
    with output.work_directory(place, ['shards']) as work:
      _fill(work)
      raise KeyError
  assert contents(tmp_path) == {}
  if '://' not in place:
    assert os.listdir(tmp_path / 'a') == []
    # A worker that outlives its job.
    with pytest.raises(FileNotFoundError):
      places.write_bytes(f'{work.path}/shards/x', b'')


def test_file_that_comes_late_is_not_replaced(tmp_path, monkeypatch):
  move = places.move

  def move_before_another(source, target):
    move(source, target)
    write_lines(tmp_path / 'out' / _NAMES[3], [b'theirs'])

  monkeypatch.setattr(places, 'move', move_before_another)
  with pytest.raises(UserError) as raised:
    _publish(f'{tmp_path}/out')
  assert str(raised.value) == _FILLED.format(tmp_path / 'out')
  assert contents(tmp_path) == {f'out/{_NAMES[3]}': b'theirs'}


@pytest.mark.parametrize('late', ['claim', 'manifest'])
def test_other_job_that_a_store_lets_through(tmp_path, monkeypatch, late):
  buckets.mount(monkeypatch, tmp_path)
  move = places.move
  name = output.CLAIM_NAME if late == 'claim' else _NAMES[3]

  def move_before_another(source, target):
    move(source, target)
    if late == 'claim' or target.endswith(name):
      write_lines(tmp_path / 'out' / name, [b'theirs'])

  monkeypatch.setattr(places, 'move', move_before_another)
  with pytest.raises(UserError, match='was filled meanwhile'):
    _publish('bucket://out')
  # Nobody knows whose shards they are.
  found = contents(tmp_path / 'out')
  assert found.pop(name) == b'theirs'
  assert found == dict.fromkeys(_NAMES[:3], b'ours')


@pytest.mark.parametrize('turn', range(5))
def test_jobs_that_publish_at_the_same_moment(place, turn):
  barrier, refused, published = threading.Barrier(4), [], []

  def run(number):
    with contextlib.suppress(UserError), contextlib.ExitStack() as stack:
      stack.callback(refused.append, number)
      with output.work_directory(place, ['shards']) as work:
        _fill(work, data=b'%d' % number)
        barrier.wait()
      stack.pop_all()
      published.append(number)

  threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert (len(published), len(refused)) == (1, 3)
  found = {path: places.read_bytes(path) for path in places.list_files(place)}
  data = b'%d' % published[0]
  assert found == {f'{place}/{name}': data for name in _NAMES}
  assert not places.exists(f'{place}/{output.CLAIM_NAME}')


def test_claim_names_job_and_files(tmp_path, monkeypatch):
  claims = []

  def move(source, target):
    claims.append(json.loads((tmp_path / output.CLAIM_NAME).read_bytes()))
    os.rename(source, target)

  monkeypatch.setattr(places, 'move', move)
  with output.work_directory(f'{tmp_path}', ['shards']) as work:
    _fill(work)
  assert claims == 4 * [
    {
      'job': os.path.basename(work.path),
      'host': socket.gethostname(),
      'files': list(_NAMES),
    }
  ]


def test_worker_that_does_not_see_the_output(place):
  with output.work_directory(place) as work:
    output.require_shared(work.path)
  with pytest.raises(
    UserError,
    match=r'^`--output` must be a directory that all workers see, but the '
    rf"worker on '{socket.gethostname()}' does not see '{work.path}'\. Name ",
  ):
    output.require_shared(work.path)


def test_outputs_that_cannot_be_written(plain_directory):
  (plain_directory / 'file').write_bytes(b'')
  (plain_directory / 'closed').mkdir(0o500)
  for place, reason in (
    (f'{plain_directory}/file', 'Not a directory'),
    (f'{plain_directory}/file/out', 'Not a directory'),
    (f'{plain_directory}/closed/out', 'Permission denied'),
    ('none://out', ".*'none'.*"),
  ):
    with pytest.raises(UserError, match=rf"'{place}' is not \({reason}"):
      with output.work_directory(output.require_usable(place)):
        pass


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
      match=r"^Grouping into '.*disk' stopped \(\[Errno 28\] No space left on "
      r'device.*\); nothing was kept\. Check the disk and its free space, then',
    ):
      run_group_job(make_job([raw]), disk)
    assert os.listdir(disk) == []
    # With room, the same command succeeds.
    subprocess.run(['mount', '-o', 'remount,size=8m', str(disk)], check=True)
    (manifest,) = run_group_job(make_job([raw]), disk)
    assert manifest.counts.records_out == 500


def test_read_only_disk(tmp_path):
  with _mounted(tmp_path / 'disk', 'size=1m') as disk:
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
    with pytest.raises(UserError, match=r'is not \(Read-only file system\)'):
      _publish(f'{disk}/out')


@pytest.mark.parametrize('num_workers', [1, 2])
def test_a_write_that_fails_is_no_bad_input(tmp_path, num_workers):
  lines = [record | {'text': 'long ' * 1000} for record in raw_records(500)]
  raw = write_lines(tmp_path / 'raw', lines)
  command = [
    *(sys.executable, '-m', 'tff_fedfish', 'group', 'c4', '--input', raw),
    *('--output', tmp_path / 'out', f'--direct_num_workers={num_workers}'),
    *['--direct_running_mode=multi_processing'] * (num_workers > 1),
  ]
  done = subprocess.run(
    list(map(str, command)),
    cwd=_ROOT,
    capture_output=True,
    text=True,
    # As a full disk does, it fails a write in the middle.
    preexec_fn=lambda: resource.setrlimit(
      resource.RLIMIT_FSIZE, (100_000, 100_000)
    ),
  )
  assert done.returncode == 1, done.stderr
  assert re.match(
    rf"fedfish: failed: Grouping into '{tmp_path}/out' stopped \(.*\[Errno 27\]"
    r' File too large.*Check the disk and its free space, then run it again\.$',
    done.stderr.splitlines()[-1],
  )
  assert os.listdir(tmp_path) == ['raw']


def test_kill_in_the_middle(tmp_path):
  # Large enough that the job is still at it when the signal comes.
  raw = write_lines(tmp_path / 'raw.json', raw_records(300) * 1000)
  command = [
    *(sys.executable, '-m', 'tff_fedfish', 'group', 'c4'),
    *('--input', str(raw), '--output', str(tmp_path / 'out')),
  ]
  process = subprocess.Popen(
    command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
  )
  wait_until_read(raw, process, process.pid)
  process.send_signal(signal.SIGKILL)
  process.communicate(timeout=300)
  (left,) = (tmp_path / 'out').iterdir()
  write_lines(raw, raw_records(30))
  again = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
  assert again.returncode == 0, again.stderr
  assert again.stderr.splitlines()[0] == (
    f"fedfish: note: '{left}' is of another job for this output. If none is "
    'running, remove it.'
  )
  shutil.rmtree(left)
  assert main([*command[3:-1], f'{tmp_path}/again']) == 0
  assert contents(tmp_path / 'out') == contents(tmp_path / 'again')
