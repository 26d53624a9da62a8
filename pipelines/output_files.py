"""Files of a job's output: local, or of a file system that Beam knows.

Workers may be on other machines, may be lost, and may do one piece of work
twice. So every attempt writes files of its own, which appear when they are
complete.
"""

import concurrent.futures
import contextlib
import hashlib
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
from tff_fedfish.errors import UserError
from tff_fedfish.files import require_usable_output, write_atomically

STAGING_PREFIX = 'grouping-'
"""How the names of staging directories begin."""

_COPY_BYTES = 16 << 20
# Files of a job at work, or of one that was killed, in a remote output.
_STAGED = re.compile(STAGING_PREFIX + r'[0-9a-f]{32}/.+', re.DOTALL)


def require_usable(output: str) -> str:
  """Checks, before any work, that a job can write to a directory.

  Args:
    output: The directory.

  Returns:
    The path; absolute and without links, if it is local.

  Raises:
    UserError: If it holds something, or cannot be written to.
  """
  if not is_remote(output):
    return _require_usable(output)
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
    if not is_staged(name := path[len(output) + 1 :]):
      raise UserError(
        f'`--output` must be empty or new, but {output!r} already holds '
        f'{name!r}. Name another directory, or remove it first.'
      )
  return output


def _require_usable(output: str) -> str:
  """Does what `require_usable` does, on a local disk."""
  path = os.path.realpath(output)
  if os.path.ismount(path):
    # It would have to be written to in place, not renamed to.
    raise UserError(
      f'`--output` must be a directory inside a file system, but {path!r} is '
      'where one is mounted. Name a directory below it, such as '
      f"'{os.path.join(path, 'new')}'."
    )
  return str(require_usable_output(output, '--output'))


def find_staging(output: str) -> list[str]:
  """Returns the directories of other jobs for the same output.

  They are at work, or were killed. Nobody removes what they have written.

  Args:
    output: The path, as `require_usable` returns it.
  """
  if is_remote(output):
    names = (path[len(output) + 1 :] for path in list_files(output))
    found = {name.partition('/')[0] for name in names if is_staged(name)}
    return sorted(f'{output}/{name}' for name in found)
  parent, name = os.path.split(output)
  own_name = re.compile(re.escape(staging_prefix(name)) + '[0-9a-f]{16}')
  try:
    found = sorted(filter(own_name.fullmatch, os.listdir(parent)))
  except OSError:
    # It does not exist yet; or may be written to, but not listed.
    return []
  return [os.path.join(parent, name) for name in found]


def staging_prefix(name: str) -> str:
  """Returns how the staging directories of a local output begin, beside it.

  It is UTF-8, another for each name, and short enough to be added to.
  """
  encoded = os.fsencode(name)
  short = encoded[:100].decode(errors='ignore')
  if short != name:
    short = f'{short}-{hashlib.sha256(encoded).hexdigest()[:16]}'
  return f'.{short}.{STAGING_PREFIX}'


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


def is_staged(name: str) -> bool:
  """Says whether a file of a remote output is in a staging directory."""
  return bool(_STAGED.fullmatch(name))
