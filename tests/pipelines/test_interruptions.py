"""A job that is stopped at any line leaves its output, or nothing in its way.

Stopped: interrupted, by an error of the disk, or killed.
"""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import traceback

import buckets
import pytest
from grouping_jobs import contents, write_lines

from pipelines import output
from tff_fedfish import files
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

_TRACED = {
  (module.__file__, function)
  for module, functions in (
    (output, vars(output)),
    (places, ('write_bytes', 'create', 'move', 'remove', 'remove_directory')),
    (files, ('write_atomically',)),
  )
  for function in functions
}
_NAMES = [
  f'{part}/{name}'
  for part in ('train', 'test')
  for name in ('manifest.json', 'groups-00000-of-00001.tfrecord')
]
_ERRORS = KeyboardInterrupt, OSError, UserError, places.StoreError
_FOREIGN = {f'.fedfish-{"0a" * 16}/x': b'theirs', '.hidden': b'theirs'}


def _kill():
  os.kill(os.getpid(), signal.SIGKILL)


def _interrupt():
  raise KeyboardInterrupt


def _fail():
  raise OSError(errno.EIO, os.strerror(errno.EIO))


@contextlib.contextmanager
def _stopped(stop, before_line):
  """Stops before the n-th line of our modules that runs.

  Yields:
    A list that gets the line's function, if as many run.
  """
  num_left, functions = before_line, []

  def trace(frame, event, argument):
    nonlocal num_left
    code = frame.f_code
    if (code.co_filename, code.co_name) not in _TRACED:
      return None
    if event == 'line':
      num_left -= 1
      if not num_left:
        functions.append(frame.f_code.co_name)
        sys.settrace(None)
        stop()
    return trace

  previous = sys.gettrace()
  sys.settrace(trace)
  try:
    with contextlib.suppress(*_ERRORS):
      yield functions
  finally:
    sys.settrace(previous)


def _run(place):
  """Does what a job does with its output."""
  with output.work_directory(output.require_usable(place), ['shards']) as work:
    for i, name in enumerate(_NAMES):
      path = f'{work.path}/shards/{i}'
      places.write_bytes(path, name.encode())
      work.files[path] = name


def _run_again(place):
  """Runs it as a user does: after the command that an error names.

  Returns whether there was one.
  """
  try:
    _run(place)
    return False
  except UserError as error:
    command = re.search('`(rm -f .*)`', str(error))[1]
  subprocess.run(command, shell=True, check=True)
  _run(place)
  return True


def _in_another_process(function):
  """Returns the wait status of a process that runs a function and exits."""
  child = os.fork()
  if child:
    return os.waitpid(child, 0)[1]
  try:
    function()
    os._exit(0)
  except BaseException:
    traceback.print_exc()
    os._exit(1)


@pytest.mark.parametrize('stop', [_interrupt, _fail])
@pytest.mark.parametrize('kind', ['new', 'store'])
def test_stopped_before_every_line(tmp_path, monkeypatch, kind, stop):
  functions, with_command = set(), set()
  written = {name: name.encode() for name in _NAMES}
  for number in range(1, 2000):
    root = tmp_path / str(number)
    root.mkdir()
    place = f'{root}/out'
    if kind == 'store':
      buckets.mount(monkeypatch, root)
      monkeypatch.setattr(output, '_SETTLE_SECONDS', 0)
      place = 'bucket://out'
    foreign = {} if kind == 'new' else _FOREIGN
    for name, data in foreign.items():
      write_lines(root / 'out' / name, [data])
    with _stopped(stop, number) as found:
      _run(place)
    functions |= {*found}
    after = contents(root / 'out')
    assert after.items() >= foreign.items(), found
    if all(f'{part}/manifest.json' in after for part in ('train', 'test')):
      assert after.items() >= written.items(), found
    elif kind != 'store' and _run_again(place):
      with_command |= {*found}
    elif kind != 'store':
      assert contents(root / 'out') == written | foreign, found
    monkeypatch.undo()
    if not found:
      break
  assert after == written | foreign
  # Before, between and after all that gives names.
  assert functions >= {'_publish', '_claim', '_move_all', 'create', 'remove'}
  assert number > 40
  assert with_command <= {'create'}


def test_killed_before_every_line_of_publication(tmp_path):
  written = {name: name.encode() for name in _NAMES}
  num_commands = 0
  for number in range(1, 2000):
    out = tmp_path / str(number) / 'out'
    for name, data in _FOREIGN.items():
      write_lines(out / name, [data])

    def run(number=number, out=out):
      with _stopped(_kill, number):
        _run(str(out))

    status = _in_another_process(run)
    if status == 0:
      break
    assert status == signal.SIGKILL
    after = contents(out)
    assert after.items() >= _FOREIGN.items()
    if all(f'{part}/manifest.json' in after for part in ('train', 'test')):
      assert after.items() >= written.items()
      with pytest.raises(UserError, match='while it publ|already holds'):
        output.require_usable(str(out))
      continue
    if (claim := out / output.CLAIM_NAME).exists() and claim.stat().st_size:
      assert json.loads(claim.read_bytes())['files'] == sorted(_NAMES)
    num_commands += _run_again(str(out))
    after = contents(out)
    left = {name for name in after if name.startswith('.fedfish-')}
    assert {n: d for n, d in after.items() if n not in left} == written | {
      '.hidden': b'theirs'
    }
  assert num_commands >= 20
