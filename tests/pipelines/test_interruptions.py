"""A job that is stopped at any line leaves its output, or nothing in its way.

Stopped: interrupted, by an error of the disk or the store, or killed.
"""

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import buckets
import pytest
from grouping_jobs import contents, write_lines

from pipelines import output
from tff_fedfish import files
from tff_fedfish.data import places
from tff_fedfish.errors import FailedError, UserError

_TRACED = {
  (module.__file__, function)
  for module, functions in (
    (output, vars(output)),
    (places, ('create', 'move', 'remove', 'remove_directory')),
    (files, ('write_atomically',)),
  )
  for function in functions
}
_NAMES = [
  f'{part}/{name}'
  for part in ('train', 'test')
  for name in ('manifest.json', 'groups-00000-of-00001.tfrecord')
]
_LAST = 'test/manifest.json'
_WRITTEN = {name: name.encode() for name in _NAMES}
_FAULT = OSError(errno.EIO, os.strerror(errno.EIO))
_FOREIGN = {f'.fedfish-{"0a" * 16}/x': b'theirs', '.hidden': b'theirs'}


def _run(place):
  """Does what a job does with its output."""
  with output.work_directory(output.require_usable(place), ['shards']) as work:
    for i, name in enumerate(_NAMES):
      path = f'{work.path}/shards/{i}'
      places.write_bytes(path, name.encode())
      work.files[path] = name


def _run_traced(place, before_line):
  """Runs it; calls a function before every line of our modules."""

  def trace(frame, event, argument):
    code = frame.f_code
    if (code.co_filename, code.co_name) not in _TRACED:
      return None
    if event == 'line':
      before_line()
    return trace

  previous = sys.gettrace()
  errors = KeyboardInterrupt, OSError, FailedError, UserError
  sys.settrace(trace)
  try:
    with contextlib.suppress(*errors):
      _run(place)
  finally:
    sys.settrace(previous)


def _run_until(number, place, error):
  """Runs it, but raises before the n-th line; says whether as many run."""
  lines = itertools.count(1)

  def stop():
    if next(lines) == number:
      sys.settrace(None)
      raise error

  _run_traced(place, stop)
  return next(lines) > number


def _run_again(place, directory):
  """Runs it as a user does: after the command that an error names.

  Returns whether there was one.
  """
  try:
    _run(place)
    return False
  except UserError as error:
    paths = re.search('them: `(?:rm -f )?(.*)`', str(error))[1]
  command = f'rm -f {paths.replace(place, str(directory))}'
  subprocess.run(command, shell=True, check=True)
  _run(place)
  return True


def _finish(place, directory, foreign):
  """Runs it again, and checks what there is then.

  Returns whether files had to be removed, and whether some are left over.
  """
  found, is_mended = contents(directory), False
  if all(f'{part}/manifest.json' in found for part in ('train', 'test')):
    with pytest.raises(UserError, match='while it publ|already holds'):
      output.require_usable(place)
  else:
    is_mended = _run_again(place, directory)
    found = contents(directory)
  expected = _WRITTEN | foreign
  assert found.items() >= expected.items()
  return is_mended, found != expected


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
  """No machine is stopped here, only processes; the disk would take long."""
  monkeypatch.setattr(os, 'fsync', lambda file: None)


@pytest.mark.parametrize('cleans_up', [False, True])
def test_killed_before_every_line(tmp_path, monkeypatch, cleans_up):
  # A killed process leaves the files of that moment.
  move = places.move

  def fail_at_the_last(source, target):
    if target.endswith(_LAST):
      raise _FAULT
    move(source, target)

  if cleans_up:
    monkeypatch.setattr(places, 'move', fail_at_the_last)
  directory = tmp_path / 'out'
  for name, data in _FOREIGN.items():
    write_lines(directory / name, [data])
  states = {}

  def copy():
    state = tuple(sorted(contents(directory).items()))
    if state not in states:
      states[state] = shutil.copytree(directory, tmp_path / f'{len(states)}')

  _run_traced(str(directory), copy)
  monkeypatch.undo()
  assert contents(directory) == _FOREIGN | ({} if cleans_up else _WRITTEN)
  num_mended = 0
  for killed in states.values():
    claim = killed / output.CLAIM_NAME
    if claim.exists() and claim.stat().st_size:
      assert json.loads(claim.read_bytes())['files'] == sorted(_NAMES)
    # With a manifest, shards are a corpus.
    for manifest in killed.glob('*/manifest.json'):
      assert len(list(manifest.parent.iterdir())) == 2
    num_mended += _finish(str(killed), killed, _FOREIGN)[0]
  # The claim, empty and not; one, two, three of the files.
  assert num_mended >= 5


@pytest.mark.parametrize(
  'error', [KeyboardInterrupt(), _FAULT], ids=['interrupted', 'failed']
)
@pytest.mark.parametrize(
  'kind',
  [pytest.param(k, marks=pytest.mark.slow) for k in ('new', 'objects')]
  + ['files'],
)
def test_stopped_before_every_line(tmp_path, monkeypatch, kind, error):
  num_mended = num_left = 0
  foreign = {} if kind == 'new' else _FOREIGN
  for number in itertools.count(1):
    directory = tmp_path / str(number) / 'out'
    place = str(directory)
    if kind in buckets.KINDS:
      buckets.mount(monkeypatch, directory.parent, kind)
      monkeypatch.setattr(output, '_SETTLE_SECONDS', 0)
      place = 'bucket://out'
    for name, data in foreign.items():
      write_lines(directory / name, [data])
    if not _run_until(number, place, error):
      break
    is_mended, is_left = _finish(place, directory, foreign)
    num_mended += is_mended
    num_left += is_left
  assert contents(directory) == _WRITTEN | foreign
  assert number > 40
  # It cleans up, but for a claim that it is making, or while it cleans up.
  assert num_mended <= 1
  assert num_left <= 7
