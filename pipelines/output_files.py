"""Output of a job: a local directory, or one that Beam's file systems know.

A job writes into a staging directory, which becomes the output when everything
is there. On a local disk that is one rename. Object stores can only rename file
by file: there the manifest comes last, and marks the output as complete.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import posixpath
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.input_files import is_remote, match_remote, open_stored
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.data.manifest import MANIFEST_NAME
from tff_fedfish.errors import UserError
from tff_fedfish.files import require_usable_output, umask, write_atomically

_STAGING = 'grouping-'
_LOCK_NAME = '.lock'
# What there is in an output before its manifest, and nothing else: it may be
# removed. Directories are the parts of a split.
_LEFT_OVER = re.compile(
  r'(?:(?:train|validation|held_out|test)/)?'
  r'(?:groups-\d{5}-of-\d{5}\.tfrecord|' + re.escape(INDEX_NAME) + ')'
)


def require_usable(output: str) -> str:
  """Checks, before any work, that a job can write to `output`.

  Returns:
    The path; absolute and without links, if it is local.

  Raises:
    UserError: If it holds something, or cannot be written to; names the option
      `--output`.
  """
  if not is_remote(output):
    return _require_usable(output)
  output = output.rstrip('/')
  try:
    found = list_files(output)
    probe = f'{output}/{_STAGING}{uuid.uuid4().hex}'
    with open_to_write(f'{probe}/probe') as file:
      file.write(b'probe')
    remove(probe)
  except (ValueError, OSError) as error:
    raise UserError(
      f'`--output` must be a directory that can be written to, but {output!r} '
      f'is not ({" ".join(str(error).split())}). Name a local directory, or '
      'install what Beam needs for that file system (such as '
      "'apache-beam[gcp]')."
    ) from error
  for path in found:
    if not _is_left_over(name := path[len(output) + 1 :]):
      raise UserError(
        f'`--output` must be empty or new, but {output!r} already holds '
        f'{name!r}. Name another directory, or remove it first.'
      )
  return output


def _require_usable(output: str) -> str:
  """Output on a local disk."""
  path = os.path.realpath(output)
  if os.path.ismount(path):
    # It would have to be written to in place, not renamed to.
    raise UserError(
      f'`--output` must be a directory inside a file system, but {path!r} is '
      'where one is mounted. Name a directory below it, such as '
      f"'{os.path.join(path, 'corpus')}'."
    )
  if os.path.isdir(path) and os.listdir(path):
    names = [os.path.relpath(name, path) for name in list_files(path)]
    if names and all(map(_is_left_over, names)):
      return path
  return str(require_usable_output(output, '--output'))


@contextlib.contextmanager
def open_to_write(path: str) -> Iterator[BinaryIO]:
  """Opens a file that appears whole or not at all; replaces an older one."""
  if not is_remote(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with write_atomically(path, 'wb') as file:
      yield file
    return
  from apache_beam.io import filesystem, filesystems

  # A name of its own, as a runner may do one piece of work twice at a time.
  temporary = f'{path}.{uuid.uuid4().hex}.tmp'
  with filesystems.FileSystems.create(
    temporary,
    mime_type='application/octet-stream',
    compression_type=filesystem.CompressionTypes.UNCOMPRESSED,
  ) as file:
    yield file
  _rename(temporary, path)


def read_bytes(path: str) -> bytes:
  """Returns what a file holds."""
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
  from apache_beam.io.filesystems import FileSystems

  try:
    # `**` crosses directories in Beam's patterns.
    paths = match_remote(f'{directory}/**')
  except OSError:
    if FileSystems.exists(directory):
      raise
    # Some file systems take it for an error that there is no such directory.
    return []
  return sorted(path for path in paths if not path.endswith('.tmp'))


def remove(directory: str) -> None:
  """Removes a directory with everything in it, if it exists."""
  if not is_remote(directory):
    shutil.rmtree(directory, ignore_errors=True)
    return
  from apache_beam.io.filesystems import FileSystems

  with contextlib.suppress(OSError):
    FileSystems.delete([f'{directory}/'])


@contextlib.contextmanager
def stage(output: str) -> Iterator[str]:
  """Yields a staging directory that becomes `output` on success.

  An exception inside removes it. What a killed job left behind is removed by
  the next one for the same output.

  Args:
    output: A directory that does not exist or is empty; remote ones may also
      hold what an unfinished job has left.
  """
  staging = _stage_remote if is_remote(output) else _stage
  with staging(output.rstrip('/') or output) as path:
    yield path


@contextlib.contextmanager
def _stage(output: str) -> Iterator[str]:
  path = pathlib.Path(output)
  path.parent.mkdir(parents=True, exist_ok=True)
  prefix = f'.{path.name}.{_STAGING}'
  for staging in path.parent.iterdir():
    if staging.name.startswith(prefix):
      _remove_if_abandoned(staging)
  temporary = tempfile.mkdtemp(dir=path.parent, prefix=prefix)
  try:
    with open(os.path.join(temporary, _LOCK_NAME), 'wb') as lock:
      # Held as long as this process lives, however it ends.
      fcntl.flock(lock, fcntl.LOCK_EX)
      yield temporary
      os.unlink(lock.name)
      _publish(pathlib.Path(temporary), path)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def _publish(staging: pathlib.Path, output: pathlib.Path) -> None:
  """Gives a finished staging directory the name of the output."""
  os.chmod(staging, 0o777 & ~umask())
  try:
    if not output.exists():
      os.rename(staging, output)
      return
    _require_usable(str(output))
    # Filled, not replaced: somebody may be in it.
    for path in list_files(str(output)):
      os.unlink(path)
    for name in sorted(os.listdir(staging), key=_manifests_last):
      os.rename(staging / name, output / name)
    os.rmdir(staging)
  except (UserError, OSError) as error:
    if isinstance(error, OSError) and error.errno != errno.ENOTEMPTY:
      raise
    raise UserError(
      f'`--output` must stay empty while it is written, but {str(output)!r} '
      'was filled meanwhile, perhaps by another job. Name another directory.'
    ) from error


def _remove_if_abandoned(staging: pathlib.Path) -> None:
  """Removes a staging directory, unless its job is still running."""
  try:
    with open(staging / _LOCK_NAME, 'rb') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(staging, ignore_errors=True)
  except OSError:
    # Locked; or without a lock, and so about to begin or to be renamed.
    return


@contextlib.contextmanager
def _stage_remote(output: str) -> Iterator[str]:
  from apache_beam.io.filesystems import FileSystems

  staging = f'{output}/{_STAGING}{uuid.uuid4().hex}'
  try:
    yield staging
    # A killed job may have come as far as here, with other names.
    FileSystems.delete(
      [
        path
        for path in list_files(output)
        if _LEFT_OVER.fullmatch(path[len(output) + 1 :])
      ]
    )
    for path in sorted(list_files(staging), key=_manifests_last):
      _rename(path, f'{output}/{path[len(staging) + 1 :]}')
  finally:
    remove(staging)


def _is_left_over(name: str) -> bool:
  """Says whether a name in the output is one that a killed job may leave."""
  return bool(_LEFT_OVER.fullmatch(name)) or name.startswith(_STAGING)


def _manifests_last(path: str) -> tuple[bool, str]:
  return posixpath.basename(path) == MANIFEST_NAME, path


def _rename(source: str, destination: str) -> None:
  from apache_beam.io.filesystems import FileSystems

  if FileSystems.exists(destination):
    FileSystems.delete([destination])
  # Directories are no more than a way of writing names on object stores, but
  # must exist on others.
  with contextlib.suppress(OSError):
    FileSystems.mkdirs(posixpath.dirname(destination))
  FileSystems.rename([source], [destination])
