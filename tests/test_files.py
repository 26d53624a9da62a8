"""Flushing files and directories to the disk, before they have their names."""

import errno

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
  (tmp_path / 'x').mkdir()
  calls = disk_calls.record(monkeypatch, tmp_path)
  with files.replace_directory_atomically(tmp_path / 'x') as new:
    pass
  (aside,) = [target for _, source, target in calls if source == 'x']
  assert calls == [
    ('fsync', new.name, None),
    ('rename', 'x', aside),
    ('rename', new.name, 'x'),
    ('fsync', '.', None),
  ]
