"""Interrupted anywhere, a job leaves its output, or nothing."""

import contextlib
import inspect
import os
import sys

import bucket_file_system  # noqa: F401
import pytest
from grouping_jobs import contents

from pipelines import output_files, staging

_TRACED = inspect.getsourcefile(staging)
_NAMES = 'manifest.json', 'groups-00000-of-00001.tfrecord'
_PARTS = 'train/', 'test/'


@contextlib.contextmanager
def _interrupted(before_line):
  """Raises KeyboardInterrupt before the n-th line of the module that runs.

  Yields:
    A list that gets the line, if as many run.
  """
  num_left, found = before_line, []

  def trace(frame, event, argument):
    nonlocal num_left
    if frame.f_code.co_filename != _TRACED:
      return None
    if event == 'line':
      num_left -= 1
      if not num_left:
        found.append(f'{frame.f_code.co_name}, line {frame.f_lineno}')
        sys.settrace(None)
        raise KeyboardInterrupt
    return trace

  previous = sys.gettrace()
  sys.settrace(trace)
  try:
    with contextlib.suppress(KeyboardInterrupt):
      yield found
  finally:
    sys.settrace(previous)


def _run(root, output, parts):
  """Does what a job does with its output."""
  with staging.stage(output.format(root)) as found:
    found.make_directories(['shards'])
    for name in _names(parts):
      path = f'{found.path}/{len(found.files)}'
      output_files.write_bytes(path, name.encode())
      found.files[path] = name


def _end_process(root):
  """Closes directories, and so unlocks them, as the end of a process does."""
  for number in map(int, os.listdir('/proc/self/fd')):
    with contextlib.suppress(OSError):
      if os.readlink(f'/proc/self/fd/{number}').startswith(f'{root}/'):
        os.close(number)


def _names(parts):
  return [f'{part}{name}' for part in parts for name in _NAMES]


@pytest.mark.parametrize('parts', [('',), _PARTS])
@pytest.mark.parametrize(
  ('output', 'exists'),
  [('{}/out', False), ('{}/out', True), ('bucket://out', False)],
)
def test_before_every_line(tmp_path, monkeypatch, output, exists, parts):
  functions = set()
  manifests = [f'{part}manifest.json' for part in parts]
  written = {f'out/{name}': name.encode() for name in _names(parts)}
  for number in range(1, 1000):
    root = tmp_path / str(number)
    monkeypatch.setenv('BUCKET_ROOT', str(root))
    (root / 'out' if exists else root).mkdir(parents=True)
    with _interrupted(number) as found:
      _run(root, output, parts)
    _end_process(root)
    files = contents(root)
    if not found:
      break
    functions.add(found[0].partition(',')[0])
    is_written = any(f'out/{name}' in files for name in manifests)
    if is_written:
      assert files.items() >= written.items(), found
      continue
    assert not any('grouping-' in name for name in files), found
    # What is left of the output is no obstacle.
    _run(root, output, parts)
    assert contents(root) == written, found
  assert files == written
  # Before, between and after all that gives names.
  is_local = output.startswith('{}')
  assert functions >= (
    {'_publish', '_stage', '_remove_tree'}
    if is_local
    else {'_stage_remote', '_rename_all'}
  )
