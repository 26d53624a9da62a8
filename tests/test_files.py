"""Flushing files and directories to the disk, before they have their names."""

import errno
import os

import disk_calls
import pytest

from tff_fedfish import files


def test_directories_that_are_not_flushed(tmp_path):
  files.sync(tmp_path)
  # The file system of processes refuses it, as do some of networks.
  files.sync('/proc/self')


def test_files_that_cannot_be_flushed(tmp_path):
  with pytest.raises(OSError) as error:
    files.sync('/dev/null')
  assert error.value.errno == errno.EINVAL
  with pytest.raises(FileNotFoundError):
    files.sync(tmp_path / 'none')


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
  calls = disk_calls.record(monkeypatch, tmp_path)
  with files.write_atomically(tmp_path / 'x') as file:
    file.write('123')
  (_, new, _), _ = calls
  assert calls == [('fsync', new, 3), ('rename', new, 'x')]


def test_a_directory_is_on_disk_before_and_after_it_has_its_name(
  tmp_path, monkeypatch
):
  calls = disk_calls.record(monkeypatch, tmp_path)
  with files.write_directory_atomically(tmp_path / 'x', marker='m') as new:
    pass
  assert calls == [
    ('fsync', new.name, None),
    ('rename', new.name, 'x'),
    ('fsync', '.', None),
  ]


def _fill(directory):
  (directory / 'old').write_text('old')
  (directory / 'm').write_text('old')
  (directory / 'foreign').write_text('foreign')


def _write(directory, names):
  replaced = ('m', 'a', 'old', 'z')
  with files.write_directory_atomically(
    directory, marker='m', replaced=replaced
  ) as new:
    for name in names:
      (new / name).write_text('new')


def _contents(directory):
  return {path.name: path.read_text() for path in directory.iterdir()}


def test_an_existing_directory_stays_and_gets_its_marker_last(
  tmp_path, monkeypatch
):
  _fill(tmp_path)
  calls = disk_calls.record(monkeypatch, tmp_path)
  _write(tmp_path, 'maz')
  renamed = [(source, target) for _, source, target in calls if target]
  names = ['m', 'old', 'a', 'z', 'm']
  assert [os.path.basename(source) for source, _ in renamed] == names
  assert [target for _, target in renamed[2:]] == ['a', 'z', 'm']
  expected = {'foreign': 'foreign', 'm': 'new', 'a': 'new', 'z': 'new'}
  assert _contents(tmp_path) == expected


def test_an_existing_directory_is_as_it_was_after_an_error(
  tmp_path, monkeypatch
):
  _fill(tmp_path)
  before = _contents(tmp_path)
  with pytest.raises(FileExistsError, match='foreign'):
    _write(tmp_path, ['m', 'a', 'foreign'])
  assert _contents(tmp_path) == before
