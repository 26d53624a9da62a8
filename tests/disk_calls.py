"""Records what is flushed to the disk and renamed, in order; fills a disk."""

import errno
import fnmatch
import functools
import os
import pathlib
import stat
from typing import Any

import pytest


def record(
  monkeypatch: pytest.MonkeyPatch, directory: pathlib.Path
) -> list[tuple[Any, ...]]:
  """Returns a list that every `os.fsync`, `os.replace` and `os.rename` joins.

  Entries are ('fsync', path, bytes of the file; None for a directory) and
  ('rename', path, new path), with paths below `directory`.
  """
  calls, fsync = [], os.fsync

  def below(path):
    return os.path.relpath(path, directory)

  def recorded_fsync(file):
    found = os.fstat(file)
    size = found.st_size if stat.S_ISREG(found.st_mode) else None
    path = os.readlink(f'/proc/self/fd/{file}')
    calls.append(('fsync', below(path), size))
    fsync(file)

  def recorded_rename(rename, source, target):
    calls.append(('rename', below(source), below(target)))
    rename(source, target)

  monkeypatch.setattr(os, 'fsync', recorded_fsync)
  for name in ('replace', 'rename'):
    call = functools.partial(recorded_rename, getattr(os, name))
    monkeypatch.setattr(os, name, call)
  return calls


def fill(
  monkeypatch: pytest.MonkeyPatch, pattern: str, *, for_good: bool
) -> list[str]:
  """Fills the disk before the first `os.fsync` of a path of a pattern.

  Args:
    monkeypatch: Undoes it.
    pattern: The path whose call fails.
    for_good: Whether all later calls fail, whatever their path.

  Returns:
    A list that the path of every call that fails joins.
  """
  failed, fsync = [], os.fsync

  def failing_fsync(file):
    path = os.readlink(f'/proc/self/fd/{file}')
    if for_good if failed else fnmatch.fnmatch(path, pattern):
      failed.append(path)
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fsync(file)

  monkeypatch.setattr(os, 'fsync', failing_fsync)
  return failed
