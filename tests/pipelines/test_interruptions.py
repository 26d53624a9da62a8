"""Interrupted anywhere, a job leaves output and dropped records, or neither."""

import contextlib
import inspect
import os
import sys

import bucket_file_system  # noqa: F401
import pytest
from grouping_jobs import contents

from pipelines import dropped_records, output_files, staging

_TRACED = tuple(
  inspect.getsourcefile(module) for module in (dropped_records, staging)
)
_NAMES = 'manifest.json', 'groups-00000-of-00001.tfrecord'
_PARTS = 'train/', 'test/'
_DROPPED = {
  f'new/dropped/dropped-0000{number}-of-00002.jsonl.gz': b'%d' % number
  for number in range(2)
}


@contextlib.contextmanager
def _interrupted(before_line):
  """Raises KeyboardInterrupt before the n-th line of both modules that runs.

  Yields:
    A list that gets the line, if as many run.
  """
  num_left, found = before_line, []

  def trace(frame, event, argument):
    nonlocal num_left
    if frame.f_code.co_filename not in _TRACED:
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
  """Does what a job does with its output and its dropped records."""
  with staging.stage(output.format(root)) as found:
    found.make_directories([dropped_records.DIRECTORY])
    for number in range(2):
      path = dropped_records.name_file(found.path, number)
      output_files.write_bytes(path, b'%d' % number)
    for name in _names(parts):
      path = f'{found.path}/{len(found.files)}'
      output_files.write_bytes(path, name.encode())
      found.files[path] = name
    dropped_records.publish(found, 2, str(root / 'new' / 'dropped'))


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
  written = {f'out/{name}': name.encode() for name in _names(parts)} | _DROPPED
  for number in range(1, 1000):
    root = tmp_path / str(number)
    monkeypatch.setenv('BUCKET_ROOT', str(root))
    for name in ('out', 'new/dropped') if exists else ('',):
      (root / name).mkdir(parents=True)
    with _interrupted(number) as found:
      _run(root, output, parts)
    _end_process(root)
    files = contents(root)
    if not found:
      break
    functions.add(found[0].partition(',')[0])
    is_written = any(f'out/{name}' in files for name in manifests)
    dropped = {name for name in files if name.startswith('new/dropped/')}
    assert dropped == ({*_DROPPED} if is_written else set()), found
    if is_written:
      assert files.items() >= written.items(), found
      continue
    assert not any('grouping-' in name for name in files), found
    assert (root / 'new').exists() == exists, found
    # What is left of the output is no obstacle.
    _run(root, output, parts)
    assert contents(root) == written, found
  assert files == written
  # Before, between and after all that gives names.
  assert functions >= {'publish', '_publish', '_stage', '_remove_tree'}


def test_of_others_nothing_is_removed(tmp_path):
  theirs = tmp_path / next(iter(_DROPPED))
  with pytest.raises(KeyError), staging.stage(f'{tmp_path}/out') as found:
    found.make_directories([dropped_records.DIRECTORY])
    for number in range(2):
      path = dropped_records.name_file(found.path, number)
      output_files.write_bytes(path, b'')
    dropped_records.publish(found, 2, str(theirs.parent))
    # Another job's file in the place of ours.
    output_files.write_bytes(str(theirs), b'theirs')
    raise KeyError
  assert contents(tmp_path) == {next(iter(_DROPPED)): b'theirs'}
