"""A job that is stopped at any line leaves its output, or nothing in its way.

Stopped: interrupted, by an error of the disk or the store, or killed.
"""

import contextlib
import errno
import functools
import itertools
import json
import os
import re
import signal
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
_WRITTEN = {name: name.encode() for name in _NAMES}
_FOREIGN = {f'.fedfish-{"0a" * 16}/x': b'theirs', '.hidden': b'theirs'}


def _interrupt():
  raise KeyboardInterrupt


def _fail():
  raise OSError(errno.EIO, os.strerror(errno.EIO))


def _kill():
  os.kill(os.getpid(), signal.SIGKILL)


def _run(place):
  """Does what a job does with its output."""
  with output.work_directory(output.require_usable(place), ['shards']) as work:
    for i, name in enumerate(_NAMES):
      path = f'{work.path}/shards/{i}'
      places.write_bytes(path, name.encode())
      work.files[path] = name


def _run_until(stop, before_line, place):
  """Runs it, but stops before the n-th line of our modules.

  Returns whether as many run.
  """
  lines = itertools.count(1)
  is_stopped = False

  def trace(frame, event, argument):
    nonlocal is_stopped
    code = frame.f_code
    if (code.co_filename, code.co_name) not in _TRACED:
      return None
    if event == 'line' and next(lines) == before_line:
      is_stopped = True
      sys.settrace(None)
      stop()
    return trace

  previous = sys.gettrace()
  errors = KeyboardInterrupt, OSError, FailedError, UserError
  sys.settrace(trace)
  try:
    with contextlib.suppress(*errors):
      _run(place)
  finally:
    sys.settrace(previous)
  return is_stopped


def _run_in_a_child(before_line, place):
  """Does what `_run_until` does, in a process that is killed."""
  child = os.fork()
  if not child:
    with contextlib.suppress(BaseException):
      os._exit(_run_until(_kill, before_line, place))
    os._exit(1)
  status = os.waitpid(child, 0)[1]
  assert status in (0, signal.SIGKILL)
  return status != 0


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


@pytest.mark.parametrize(
  'kind, stop',
  [
    *(('new', _interrupt), ('new', _fail), ('filled', _kill)),
    *((kind, _interrupt) for kind in buckets.KINDS),
    *((kind, _fail) for kind in buckets.KINDS),
  ],
)
def test_stopped_before_every_line(tmp_path, monkeypatch, kind, stop):
  num_commands = num_left = 0
  run = functools.partial(_run_until, stop)
  if stop is _kill:
    run = _run_in_a_child
  for number in itertools.count(1):
    directory = tmp_path / str(number) / 'out'
    place = str(directory)
    if kind in buckets.KINDS:
      buckets.mount(monkeypatch, directory.parent, kind)
      monkeypatch.setattr(output, '_SETTLE_SECONDS', 0)
      place = 'bucket://out'
    foreign = {} if kind == 'new' else _FOREIGN
    for name, data in foreign.items():
      write_lines(directory / name, [data])
    if not run(number, place):
      break
    claim = directory / output.CLAIM_NAME
    if stop is _kill and claim.exists() and claim.stat().st_size:
      assert json.loads(claim.read_bytes())['files'] == sorted(_NAMES)
    found = contents(directory)
    if all(f'{part}/manifest.json' in found for part in ('train', 'test')):
      with pytest.raises(UserError, match='while it publ|already holds'):
        output.require_usable(place)
    else:
      num_commands += _run_again(place, directory)
      found = contents(directory)
    assert found.items() >= (_WRITTEN | foreign).items(), number
    num_left += found != _WRITTEN | foreign
  assert contents(directory) == _WRITTEN | foreign
  assert number > 40
  if stop is _kill:
    assert num_commands >= 20
  else:
    # It cleans up, but for a claim that it is making, or while it cleans up.
    assert num_commands <= 1
    assert num_left <= 6
