"""The directory in which a job works until its output is complete.

On a local disk it becomes the output by one rename. Object stores can only copy
file by file, once each here: there the manifest comes last, and marks the
output as complete.

Nothing is removed that this job has not written.

A worker makes no directory: the driver makes all of them. So a worker that does
not share the disk, or outlives its job, cannot write anything.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import os
import pathlib
import posixpath
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping

from pipelines.output_files import (
  STAGING_PREFIX,
  is_staged,
  list_files,
  remove,
  require_usable,
  staging_prefix,
  write_bytes,
)
from pipelines.remote_files import (
  NUM_REQUESTS,
  file_system,
  is_remote,
  reaching,
  require_packages,
)
from tff_fedfish.data.manifest import MANIFEST_NAME
from tff_fedfish.errors import UserError

_MARKER = 'job'
_NUM_LOCK_TRIES = 100


@dataclasses.dataclass(frozen=True)
class Staging:
  """A directory that is being filled, and what of it becomes the output.

  Attributes:
    path: The directory, as all workers must see it.
    files: Path of a file to keep -> its name in the output. All others go.
  """

  path: str
  files: dict[str, str] = dataclasses.field(default_factory=dict)

  def make_directories(self, names: Iterable[str]) -> None:
    """Makes directories where all workers see them, and says it is there."""
    if not is_remote(self.path):
      for name in names:
        os.mkdir(os.path.join(self.path, name))
    write_bytes(posixpath.join(self.path, _MARKER), b'')


def require_shared(staging: str) -> None:
  """Checks, on a worker, that it sees the staging directory of the driver.

  Raises:
    UserError: If it does not; names the option `--output`.
  """
  marker = posixpath.join(staging, _MARKER)
  if not is_remote(staging):
    is_there = os.path.exists(marker)
  else:
    require_packages(staging, '--output')
    with reaching(marker):
      is_there = file_system(marker).exists(marker)
  if not is_there:
    raise UserError(
      '`--output` must be a directory that all workers see, but the worker on '
      f'{socket.gethostname()!r} does not see {staging!r}. Name a directory '
      'that is mounted on all machines under the same path, or storage that '
      'Beam knows, such as s3://.'
    )


def stage(output: str) -> contextlib.AbstractContextManager[Staging]:
  """Returns a context: a directory whose files become `output` on success.

  An exception inside removes it. What a killed job has left stays.

  Args:
    output: A directory that does not exist or is empty; remote ones may also
      hold staging directories of other jobs.
  """
  staging = _stage_remote if is_remote(output) else _stage
  return staging(output.rstrip('/') or output)


@contextlib.contextmanager
def _stage(output: str) -> Iterator[Staging]:
  path = pathlib.Path(output)
  # Named before it is made: an interruption can come between any two steps.
  name = f'{staging_prefix(path.name)}{uuid.uuid4().hex[:16]}'
  temporary = path.parent / name
  staging = Staging(str(temporary))
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(0o700)
    yield staging
    _publish(staging, path)
  finally:
    _remove_tree(temporary)


def _publish(staging: Staging, output: pathlib.Path) -> None:
  """Gives the files of a finished staging directory their names."""
  finished = pathlib.Path(staging.path, 'finished')
  finished.mkdir()
  for source, name in staging.files.items():
    (finished / name).parent.mkdir(parents=True, exist_ok=True)
    os.rename(source, finished / name)
  try:
    if not output.exists():
      os.rename(finished, output)
    else:
      # Filled, not replaced: somebody may be in it.
      _fill(output, finished)
  except (UserError, OSError) as error:
    if isinstance(error, OSError) and error.errno != errno.ENOTEMPTY:
      raise
    raise _filled_meanwhile(output) from error


def _fill(output: pathlib.Path, finished: pathlib.Path) -> None:
  """Moves all that is finished to an existing directory, or nothing."""
  with contextlib.ExitStack() as stack:
    directory = os.open(output, os.O_RDONLY)
    stack.callback(os.close, directory)
    _try_lock(directory)
    require_usable(str(output))
    names = sorted(os.listdir(finished), key=_manifests_last)
    try:
      for name in names:
        if os.path.isfile(output / name):
          raise _filled_meanwhile(output)
        os.rename(finished / name, output / name)
    except BaseException:
      for name in names:
        if not os.path.lexists(finished / name):
          os.rename(output / name, finished / name)
      raise


def _try_lock(descriptor: int) -> None:
  """Locks a directory, so that one job after the other fills it.

  Other jobs hold the lock for less than a second. What holds it longer is not
  one of them, such as the `flock` that this job was started by; on NFS, the
  lock is of this machine only. So it is no condition.
  """
  for _ in range(_NUM_LOCK_TRIES):
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      time.sleep(0.1)
    except OSError:
      return  # A file system without locks.
    else:
      return


def _remove_tree(directory: str | os.PathLike) -> None:
  """Removes a directory to which a lost worker may still be writing."""
  for _ in range(3):
    shutil.rmtree(directory, ignore_errors=True)
    if not os.path.exists(directory):
      return


@contextlib.contextmanager
def _stage_remote(output: str) -> Iterator[Staging]:
  staging = Staging(f'{output}/{STAGING_PREFIX}{uuid.uuid4().hex}')
  targets: dict[str, str] = {}
  renamed: set[str] = set()
  try:
    yield staging
    for path in list_files(output):
      if not is_staged(path[len(output) + 1 :]):
        raise _filled_meanwhile(output)
    files = file_system(output)
    targets |= {
      source: f'{output}/{name}' for source, name in staging.files.items()
    }
    # Directories are no more than a way of writing names on object stores,
    # but must exist on others.
    for directory in {posixpath.dirname(path) for path in targets.values()}:
      with contextlib.suppress(OSError):
        files.mkdirs(directory)
    for is_last in (False, True):
      _rename_all(
        {
          source: target
          for source, target in targets.items()
          if _manifests_last(target)[0] == is_last
        },
        renamed,
      )
  except BaseException:
    if not targets or not renamed.issuperset(targets.values()):
      # The manifests first: a part of a split that has one would be a corpus.
      made = sorted(renamed, key=_manifests_last, reverse=True)
      with contextlib.suppress(Exception):
        file_system(output).delete(made)
    raise
  finally:
    remove(staging.path)


def _filled_meanwhile(output: str | os.PathLike) -> UserError:
  return UserError(
    f'`--output` must stay empty while it is written, but {str(output)!r} was '
    'filled meanwhile, perhaps by another job. Name another directory.'
  )


def _rename_all(targets: Mapping[str, str], renamed: set[str]) -> None:
  """Renames remote files, many at a time, and adds their names to a set."""

  def rename(pair):
    source, name = pair
    with reaching(name):
      files = file_system(name)
      # Object stores can only copy. The staging directory, which is deleted
      # anyway, takes fewer requests as a whole.
      (files.rename if files.has_dirs() else files.copy)([source], [name])
    # Here, as an interruption of the main thread does not stop this one.
    renamed.add(name)

  with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
    list(pool.map(rename, targets.items()))


def _manifests_last(path: str) -> tuple[bool, str]:
  return posixpath.basename(path) == MANIFEST_NAME, path
