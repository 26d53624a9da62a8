"""Writes the records that are dropped while raw files are read.

Each reading task writes a file of its own, of JSON lines, beside its report. So
a repeated task writes nothing twice, and the bound is shared by the tasks: what
is written depends on nothing but the input.
"""

import base64
import contextlib
import gzip
import json
import os
import pathlib
import posixpath
import shutil
from typing import Any

from pipelines.input_files import open_stored
from pipelines.output_files import list_files, name_attempt, open_to_write
from pipelines.source import Drop
from pipelines.staging import Staging, stage
from tff_fedfish.errors import FailedError

DIRECTORY = 'dropped'
"""Directory of a staging directory."""


class DroppedRecords:
  """The file of one task, which is there if it has a line."""

  def __init__(self, path: str, max_bytes: int):
    """Opens nothing yet.

    Args:
      path: Where to write, a local path or one that Beam knows.
      max_bytes: How much to write, before compression.
    """
    self._path, self._num_left = path, max_bytes
    self._file = None
    self._stack = contextlib.ExitStack()

  def __enter__(self):
    return self

  def __exit__(self, *error):
    return self._stack.__exit__(*error)

  def write(self, file_name: str, record_num: int, drop: Drop) -> bool:
    """Writes a line; returns False if there is no room for it.

    Args:
      file_name: The raw file, as in the manifest.
      record_num: 1-based number of the line, row or post in it.
      drop: What was dropped.
    """
    value = {'reason': drop.reason, 'file': file_name, 'line': record_num}
    if drop.byte is not None:
      value['byte'] = drop.byte
    line = json.dumps(value | _show(drop)).encode() + b'\n'
    if len(line) > self._num_left:
      return False
    if self._file is None:
      file = self._stack.enter_context(open_to_write(self._path))
      # The same bytes at any time.
      self._file = self._stack.enter_context(
        gzip.GzipFile('', 'wb', 6, file, mtime=0)
      )
    self._file.write(line)
    self._num_left -= len(line)
    return True


def _show(drop: Drop) -> dict[str, Any]:
  """Returns the record as text, or what is known of it."""
  record = drop.record
  try:
    if isinstance(record, bytes):
      return {'record': record.decode()}
    if record is not None:
      # Bytes and times of a table are no JSON.
      return {'record': json.dumps(record, ensure_ascii=False, default=str)}
  except UnicodeDecodeError:
    return {'record_base64': base64.b64encode(record).decode()}
  except (ValueError, RecursionError):
    pass  # Too many digits or brackets.
  start = drop.excerpt.decode('utf-8', 'backslashreplace')
  return {'record': start, 'is_whole': False}


def name_file(staging: str, task_num: int) -> str:
  """Returns a path for an attempt at the file of a task."""
  directory = posixpath.join(staging, DIRECTORY)
  return name_attempt(directory, f'{task_num:05d}', 'jsonl.gz')


def publish(staging: Staging, num_tasks: int, directory: str) -> None:
  """Copies the file of each task that has one to a new or empty directory.

  The directory is local, and appears with all files. They are removed again if
  the output of the job does not get its name.

  Raises:
    UserError: If the directory was filled meanwhile.
    FailedError: If it cannot be written to.
  """
  # Before anything has a name: an interruption can come between any two steps.
  ours, place = {}, pathlib.Path(directory)
  new = [path for path in (place, *place.parents) if not path.exists()]
  staging.rollback.callback(_take_back, ours, new)
  paths = list_files(posixpath.join(staging.path, DIRECTORY))
  try:
    with stage(directory, '--write_dropped') as own:
      # Which an interruption as it ends may leave.
      staging.rollback.callback(shutil.rmtree, own.path, ignore_errors=True)
      # Any attempt at a task wrote the same.
      for number, path in {_number_of(path): path for path in paths}.items():
        name = f'dropped-{number}-of-{num_tasks:05d}.jsonl.gz'
        copy = os.path.join(own.path, name)
        with open_stored(path) as source, open(copy, 'wb') as target:
          shutil.copyfileobj(source, target)
        ours[os.path.join(directory, name)] = os.lstat(copy)
        own.files[copy] = name
  except OSError as error:
    raise FailedError(
      f'Writing `--write_dropped` {directory!r} stopped ({error}); nothing was '
      'kept. Check its disk and the free space there, then run it again.'
    ) from error


def _take_back(files, directories):
  """Removes files that are still the same, then directories if empty."""
  for path, status in files.items():
    with contextlib.suppress(OSError):
      if os.path.samestat(os.lstat(path), status):
        os.unlink(path)
  for directory in directories:
    with contextlib.suppress(OSError):
      directory.rmdir()


def _number_of(path: str) -> str:
  return posixpath.basename(path).partition('.')[0]
