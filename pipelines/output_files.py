"""Files of a job's output: local, or of a file system that Beam knows.

Workers may be on other machines, may be lost, and may do one piece of work
twice. So every attempt writes files of its own, which appear when they are
complete.
"""

import concurrent.futures
import contextlib
import os
import posixpath
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from pipelines.input_files import match_remote, open_stored
from pipelines.remote_files import (
  NUM_REQUESTS,
  StoreError,
  file_system,
  is_remote,
  is_s3,
  reaching,
  require_packages,
)
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.errors import UserError
from tff_fedfish.files import require_usable_output, write_atomically

STAGING_PREFIX = 'grouping-'
"""How the names of staging directories begin."""

_COPY_BYTES = 16 << 20
# What there is in an output before its manifest, and nothing else: it may be
# removed. Directories are the parts of a split.
_LEFT_OVER = re.compile(
  r'(?:(?:train|validation|held_out|test)/)?'
  r'(?:groups-\d{5}-of-\d{5}\.tfrecord|' + re.escape(INDEX_NAME) + ')'
)


def require_usable(output: str, option: str = '--output') -> str:
  """Checks, before any work, that a job can write to a directory.

  Args:
    output: The directory.
    option: The option that names it; others than `--output` are local.

  Returns:
    The path; absolute and without links, if it is local.

  Raises:
    UserError: If it holds something, or cannot be written to; names the option.
  """
  if not is_remote(output):
    return _require_usable(output, option)
  require_packages(output, '--output')
  output = output.rstrip('/')
  try:
    found = list_files(output)
    probe = f'{output}/{STAGING_PREFIX}{uuid.uuid4().hex}'
    write_bytes(f'{probe}/probe', b'probe')
    remove(probe)
  except StoreError as error:
    raise UserError(
      f'`--output` must be a directory that can be written to, but {output!r} '
      f'is not ({error}). Check the name, and how the file system is reached, '
      'or name a local directory.'
    ) from error
  for path in found:
    if not is_left_over(name := path[len(output) + 1 :]):
      raise UserError(
        f'`--output` must be empty or new, but {output!r} already holds '
        f'{name!r}. Name another directory, or remove it first.'
      )
  return output


def _require_usable(output: str, option: str) -> str:
  """Does what `require_usable` does, on a local disk."""
  path = os.path.realpath(output)
  if os.path.ismount(path):
    # It would have to be written to in place, not renamed to.
    raise UserError(
      f'`{option}` must be a directory inside a file system, but {path!r} is '
      'where one is mounted. Name a directory below it, such as '
      f"'{os.path.join(path, 'new')}'."
    )
  if option == '--output' and os.path.isdir(path) and os.listdir(path):
    names = [os.path.relpath(name, path) for name in list_files(path)]
    if names and all(map(is_left_over, names)):
      return path
  return str(require_usable_output(output, option))


def name_attempt(directory: str, name: str, suffix: str) -> str:
  """Returns a path for an attempt at a piece of work: NAME.ATTEMPT.SUFFIX."""
  return posixpath.join(directory, f'{name}.{uuid.uuid4().hex}.{suffix}')


@contextlib.contextmanager
def open_to_write(path: str) -> Iterator[BinaryIO]:
  """Opens a file that appears whole or not at all.

  A local one replaces an older one; a remote path must be new. For S3 it is
  written to a temporary file first, and so by few requests; where Beam writes,
  all that an exception can do is to remove it.
  """
  if not is_remote(path):
    with write_atomically(path, 'wb') as file:
      yield file
    return
  if is_s3(path):
    with tempfile.NamedTemporaryFile() as file:
      yield file
      file.flush()
      with reaching(path):
        file_system(path).upload(file.name, path)
    return
  from apache_beam.io.filesystem import CompressionTypes

  written = path
  with reaching(path):
    if has_dirs := file_system(path).has_dirs():
      # Not an object store: others see a file while it is written.
      parent, _, name = path.rpartition('/')
      written = f'{parent}/.{name}.tmp'
    file = file_system(path).create(
      written,
      mime_type='application/octet-stream',
      compression_type=CompressionTypes.UNCOMPRESSED,
    )
  try:
    yield file
    with reaching(path):
      file.close()
      if has_dirs:
        file_system(path).rename([written], [path])
  except BaseException:
    with contextlib.suppress(Exception):
      file.close()
    with contextlib.suppress(Exception):
      file_system(path).delete([written])
    raise


def write_bytes(path: str, data: bytes) -> None:
  """Writes a file, as `open_to_write` does."""
  with open_to_write(path) as file:
    file.write(data)


@contextlib.contextmanager
def open_local_copy(path: str) -> Iterator[BinaryIO]:
  """Opens a file for reading, a remote one as a temporary copy.

  One large read takes an object store less time than many, and no memory.
  """
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(open_stored(path))
    if is_remote(path):
      copy = stack.enter_context(tempfile.TemporaryFile())
      shutil.copyfileobj(file, copy, _COPY_BYTES)
      copy.seek(0)
      file = copy
    yield file


def read_all(paths: Sequence[str]) -> Iterator[bytes]:
  """Yields the content of every file; remote ones are read many at a time."""
  if not any(map(is_remote, paths)):
    yield from map(_read_bytes, paths)
    return
  with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
    yield from pool.map(_read_bytes, paths)


def _read_bytes(path: str) -> bytes:
  with open_stored(path) as file:
    return file.read()


def list_files(directory: str) -> list[str]:
  """Returns the paths of all files in and below a directory, sorted.

  Files that are still being written are left out.
  """
  if not is_remote(directory):
    return sorted(
      os.path.join(parent, name)
      for parent, _, names in os.walk(directory)
      for name in names
      if not name.startswith('.')
    )
  try:
    # `**` crosses directories in Beam's patterns.
    paths = match_remote(f'{directory}/**')
  except StoreError:
    with reaching(directory):
      files = file_system(directory)
      if not files.has_dirs() or files.exists(directory):
        raise
    # Some file systems take it for an error that there is no such directory.
    return []
  return sorted(
    path for path in paths if not posixpath.basename(path).startswith('.')
  )


def remove(directory: str) -> None:
  """Removes a directory with everything in it, if it exists."""
  if not is_remote(directory):
    shutil.rmtree(directory, ignore_errors=True)
    return
  with contextlib.suppress(Exception):
    file_system(directory).delete([f'{directory}/'])


def is_left_over(name: str) -> bool:
  """Says whether a name in the output is one that a killed job may leave."""
  return is_unmarked(name) or name.startswith(STAGING_PREFIX)


def is_unmarked(name: str) -> bool:
  """Says whether an output has files of such a name before its manifest."""
  return bool(_LEFT_OVER.fullmatch(name))
