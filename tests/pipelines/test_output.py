"""Outputs: what is refused, used, published, and left alone."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import buckets
import disk_calls
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
from pipelines.run_errors import raise_understood
from tff_fedfish.cli.main import main
from tff_fedfish.data import places
from tff_fedfish.data.verify import verify_corpus
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


@pytest.fixture(params=['local', *buckets.KINDS])
def place(request, tmp_path, monkeypatch):
  """Returns the path of an output, `tmp_path / 'a/out'`."""
  if request.param == 'local':
    return f'{tmp_path}/a/out'
  buckets.mount(monkeypatch, tmp_path, request.param)
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


def test_shards_are_on_disk_before_the_manifest(tmp_path, monkeypatch):
  with output.work_directory(f'{tmp_path}/out', ['shards']) as work:
    _fill(work)
    calls = disk_calls.record(monkeypatch, tmp_path)
  targets = [target for _, _, target in calls]
  *shards, manifest = (f'out/{name}' for name in _NAMES)
  # None: a directory was flushed. The claim has been.
  assert targets[1:] == [*shards, None, manifest, None]
  assert calls[4][:2] == calls[6][:2] == ('fsync', 'out')


@pytest.mark.parametrize(
  'name',
  [
    'notes.txt',
    f'{_WORK}x/paper.tex',
    f'papers/{_WORK}/paper.tex',
    'index.parquet',
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
  'claimed, names, foreign, patterns',
  [
    (None, _NAMES[:3], ['a/index.parquet', 'x'], ['groups-*', 'index.parquet']),
    ('', [], ['index.parquet'], ['.fedfish-publishing']),
    (_NAMES, [], _NAMES, ['.fedfish-publishing']),
    (_NAMES, _NAMES[:3], ['a/x', '.x'], ['.fed', 'groups-*', 'index.parquet']),
    (
      # One part of a split has its manifest, the other not yet.
      [f'{part}/{name}' for part in 'ab' for name in _NAMES],
      ['a/manifest.json', f'b/{_NAMES[1]}'],
      ['b/notes', f'{_WORK}/x', 'c/index.parquet'],
      ['.fed', 'a/manifest.json', 'b/groups-*'],
    ),
  ],
)
def test_partly_published(tmp_path, claimed, names, foreign, patterns):
  place = tmp_path / 'o u$t'
  for name in [*names, *foreign]:
    write_lines(place / name, [b'x'])
  if claimed is not None:
    claim = json.dumps({'files': claimed}) if claimed else ''
    (place / '.fedfish-publishing').write_text(claim)
  before = contents(place)
  with pytest.raises(UserError) as raised:
    output.require_usable(f'{place}')
  assert contents(place) == before
  command = re.fullmatch(
    rf"`--output` must be empty or new, but '{re.escape(str(place))}' holds "
    'files of a job that was stopped, or is at work, while it published them, '
    'or of a copy. If none is at work, remove them: `(.*)`.',
    str(raised.value),
  )[1]
  program, *paths = command.split(f" '{place}'/")
  assert (program, len(paths)) == ('rm -f', len(patterns))
  assert all(map(str.startswith, paths, patterns))
  subprocess.run(command, shell=True, check=True)
  assert contents(place) == dict.fromkeys(foreign, b'x')


@pytest.mark.parametrize('claim', ['[]', '{"files": [1]}'])
def test_claim_of_other_content(tmp_path, claim):
  (tmp_path / output.CLAIM_NAME).write_text(claim)
  with pytest.raises(UserError, match=r'remove them: `rm -f .*-publishing`\.$'):
    output.require_usable(str(tmp_path))


def test_outputs_that_a_job_cannot_use(tmp_path):
  (tmp_path / output.CLAIM_NAME).mkdir()
  with pytest.raises(UserError, match="already holds '.fedfish-publishing/'"):
    output.require_usable(str(tmp_path))
  # Workers are told paths as text.
  with pytest.raises(UserError) as raised:
    output.require_usable(os.fsdecode(b'/o\xff'))
  assert str(raised.value) == (
    "`--output` must have a name in UTF-8, found '/o\\xff'. Rename it."
  )


def test_paths_instead_of_a_command_for_a_store(tmp_path, monkeypatch):
  # Its tool need not be there, and need not know patterns.
  buckets.mount(monkeypatch, tmp_path)
  write_lines(tmp_path / 'c' / _NAMES[0], [])
  paths = re.escape('bucket://c/groups-*-of-00002.tfrecord')
  with pytest.raises(UserError, match=f'remove them: `{paths}`.'):
    output.require_usable('bucket://c')


def test_work_directory_of_another_job(place, tmp_path, capsys):
  raw = write_lines(tmp_path / 'raw.json', raw_records(9))
  theirs = write_lines(tmp_path / 'a' / 'out' / _WORK / 'x', [b'theirs'])
  assert main(['group', 'c4', '--input', str(raw), '--output', place]) == 0
  assert capsys.readouterr().err.splitlines()[0] == (
    f"fedfish: note: '{place}/{_WORK}' is of a job for this output. If none "
    'is running, `--resume` goes on with an equal one, or remove it.'
  )
  assert theirs.read_bytes() == b'theirs'
  assert verify_corpus(place).num_examples == 9


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


def test_failure_behind_the_manifest(place, monkeypatch):
  """A complete corpus is not said to be none."""
  read_bytes, remove = places.read_bytes, places.remove

  def read_until_the_manifest(path):
    if path.endswith(_NAMES[3]):
      raise places.StoreError('it hung up')
    return read_bytes(path)

  def remove_not(path):
    if path.endswith(output.CLAIM_NAME):
      raise places.StoreError('it hung up')
    remove(path)

  monkeypatch.setattr(places, 'read_bytes', read_until_the_manifest)
  monkeypatch.setattr(places, 'remove', remove_not)
  with pytest.raises(FailedError) as raised:
    _publish(place)
  assert str(raised.value) == (
    f'Grouping into {place!r} stopped while it published (it hung up). Run '
    f'`fedfish verify` on {place}: if it says OK, all is complete, and '
    f"'{place}/.fedfish-publishing' may be removed. Else group again, and what "
    'is to be removed is named.'
  )
  work = output.WorkDirectory('work', lambda path: False)
  assert raise_understood(raised.value, place, work) is None
  monkeypatch.undo()


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


@pytest.mark.parametrize('turn', range(2))
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
  assert places.size(f'{place}/{output.CLAIM_NAME}') is None


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
    ('none://out', "'none://out': Unrecognized filesystem"),
  ):
    with pytest.raises(UserError, match=rf"'{place}' is not \({reason}"):
      with output.work_directory(output.require_usable(place)):
        pass


def test_full_disk(tmp_path, small_disk):
  lines = [record | {'text': 'long ' * 1000} for record in raw_records(500)]
  raw = write_lines(tmp_path / 'raw', lines)
  with pytest.raises(
    FailedError,
    match=r"^Grouping into '.*disk' stopped \(\[Errno 28\] No space left on "
    r"device.*\); finished work is kept in '.*', [\d,]+ bytes: the same "
    r'command with `--resume` goes on, or remove it\. Check disk, memory and',
  ):
    run_group_job(make_job([raw]), small_disk)
  [left] = os.listdir(small_disk)
  # With room, the job goes on: also where a disk is mounted.
  remount = ['mount', '-o', 'remount,size=8m', str(small_disk)]
  subprocess.run(remount, check=True)
  assert left.startswith('.fedfish-')
  (manifest,) = run_group_job(make_job([raw]), small_disk, resume=True)
  assert manifest.counts.records_out == 500
  assert not [n for n in os.listdir(small_disk) if n.startswith('.')]


def test_read_only_disk(small_disk):
  subprocess.run(['mount', '-o', 'remount,ro', str(small_disk)], check=True)
  with pytest.raises(UserError, match=r'is not \(Read-only file system\)'):
    _publish(f'{small_disk}/out')


@pytest.mark.slow
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
  assert main(command[3:]) == 0
  assert verify_corpus(tmp_path / 'out').num_examples == 30
  assert left.exists()
