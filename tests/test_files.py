"""Flushing files and directories to the disk."""

import errno

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
