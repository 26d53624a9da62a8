"""Files of this machine and of stores, reached by the same functions.

A path is local, or one of a store that pyarrow reaches: `s3://`, `gs://`,
`abfs://`, `hdfs://`. As in pyarrow, `s3://anonymous@BUCKET/...` is read without
credentials. Local files are plain ones, without pyarrow.

Local errors are OSErrors, those of a store StoreErrors; opening a file that is
not there is a FileNotFoundError in both.
"""

import concurrent.futures
import contextlib
import errno
import functools
import io
import os
import pathlib
import posixpath
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from tff_fedfish import files
from tff_fedfish.errors import FailedError, UserError

if TYPE_CHECKING:
  from pyarrow.fs import FileSystem

_NUM_REQUESTS = 32
"""Requests to a store at a time."""

_SILENT_SECONDS = 10
_LOCAL_BUFFER_BYTES = 128 << 10
_BUFFER_BYTES = 16 << 20
# A request of S3 copies no more.
_MAX_COPIED_BYTES = 5 << 30
# As pyarrow calls them. A file appears when it is complete, there are no
# directories, and files are copied, not renamed.
_OBJECT_STORES = ('s3', 'gcs', 'abfs')


class StoreError(FailedError):
  """A store did not do what it was asked for.

  No OSError: that a file cannot be read is not taken for damage of it.
  """


def is_remote(path: str | os.PathLike) -> bool:
  """Says whether a path is one of a store."""
  return isinstance(path, str) and '://' in path


def join(directory: str | os.PathLike, name: str) -> str:
  """Returns the path of a file in a directory."""
  return posixpath.join(os.fspath(directory), name)


def directory_of(path: str | os.PathLike) -> pathlib.Path | str:
  """Returns a directory without a final slash: a Path, or a store's URL.

  Raises:
    UserError: If a store's URL is no more than a scheme.
  """
  if not is_remote(path):
    return pathlib.Path(path)
  if not path.partition('://')[2].strip('/'):
    raise UserError(
      f'A place in a store must be like s3://BUCKET/PATH, found {path!r}. Name '
      'the bucket.'
    )
  return path.rstrip('/')


def absolute(path: str) -> str:
  """Returns a path that means the same everywhere; see `directory_of`."""
  return directory_of(path) if is_remote(path) else os.path.realpath(path)


def size(path: str, is_patient: bool = True) -> int | None:
  """Returns how many bytes a file has; None if there is no file.

  Args:
    path: The file.
    is_patient: Whether to ask a store that refuses for half a minute, as all
      other functions do, or for seconds. One that takes connections and never
      answers is given up after 100 seconds, or 30.
  """
  if not is_remote(path):
    return os.path.getsize(path) if os.path.isfile(path) else None
  store, name = _locate(path, is_patient)
  with _reaching(path):
    return store.get_file_info(name).size


def list_files(directory: str) -> list[str]:
  """Returns the paths of all files in and below a directory, sorted.

  Hidden files are left out, and so are files that are still being written.
  There are none if there is no such directory.
  """
  return sorted(find_files(directory))


def find_files(directory: str) -> Iterator[str]:
  """Yields what `list_files` returns, in any order and as it is found."""
  if is_remote(directory):
    found = _select(directory, recursive=True)
    paths = (join(directory, name) for name, is_file in found if is_file)
  else:
    paths = (
      os.path.join(parent, name)
      for parent, _, names in os.walk(directory)
      for name in names
    )
  return (p for p in paths if not posixpath.basename(p).startswith('.'))


def list_names(directory: str) -> list[str]:
  """Returns all names in a directory, sorted; those of directories end in '/'.

  There are none if there is no such directory.
  """
  with contextlib.suppress(FileNotFoundError):
    if is_remote(directory):
      found = _select(directory, recursive=False)
    else:
      found = [(e.name, not e.is_dir()) for e in os.scandir(directory)]
    return sorted(name if is_file else f'{name}/' for name, is_file in found)
  return []


def glob(pattern: str) -> list[str]:
  """Returns the files of a store that a pattern matches, sorted.

  Args:
    pattern: A path, in which `*`, `?` and `[...]` match any part of a name.
  """
  if size(pattern, is_patient=False) is not None:
    return [pattern]
  start = re.split(r'[*?[]', pattern, maxsplit=1)[0]
  if start == pattern:
    return []
  return [
    path
    for path in list_files(start.rpartition('/')[0])
    if pathlib.PurePosixPath(path).match(pattern)
  ]


def open_file(
  path: str | os.PathLike, buffer_bytes: int = _BUFFER_BYTES
) -> BinaryIO:
  """Opens a file for reading, with `seek`, as it is stored.

  Args:
    path: The file.
    buffer_bytes: Bytes to read at a time, of a store's file by one request; of
      a local one at most 128 KiB.
  """
  if not is_remote(path):
    return open(path, 'rb', min(buffer_bytes, _LOCAL_BUFFER_BYTES))
  return io.BufferedReader(_StoreFile(path), buffer_bytes)


def read_bytes(path: str) -> bytes:
  """Returns the content of a file."""
  with open_file(path) as file:
    return file.read()


def map_many(
  function: Callable[[str], Any], paths: Sequence[str]
) -> Iterator[Any]:
  """Yields a function's value for every path, for a store many at a time."""
  if not any(map(is_remote, paths)):
    yield from map(function, paths)
    return
  with concurrent.futures.ThreadPoolExecutor(_NUM_REQUESTS) as pool:
    yield from pool.map(function, paths)


@contextlib.contextmanager
def write(path: str) -> Iterator[BinaryIO]:
  """Opens a file that appears at the end, whole; after an error, not at all.

  A file of a store is a temporary one first.
  """
  if not is_remote(path):
    with files.write_atomically(path, 'wb') as file:
      yield file
    return
  with tempfile.TemporaryFile() as file:
    yield file
    file.seek(0)
    _upload(file, path)


def write_bytes(path: str, data: bytes) -> None:
  """Writes a file that appears whole or not at all."""
  with write(path) as file:
    file.write(data)


def create(path: str, data: bytes) -> None:
  """Writes a file that must be new.

  On a local disk one of several processes succeeds. A store has no such
  request: of several at the same moment, all succeed, and one's file stays.

  Raises:
    FileExistsError: If there is one.
  """
  if is_remote(path):
    if size(path) is not None:
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    write_bytes(path, data)
    return
  with open(path, 'xb') as file:
    try:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    except BaseException:
      os.unlink(path)
      raise


def move(source: str, target: str) -> None:
  """Renames a file; in an object store it is copied, and the source stays."""
  if not is_remote(source):
    os.rename(source, target)
    return
  store, name = _locate(source)
  _, new_name = _locate(target)
  if store.type_name == 's3' and size(source) > _MAX_COPIED_BYTES:
    with open_file(source) as file:
      _upload(file, target)
    return
  with _reaching(target):
    if store.type_name in _OBJECT_STORES:
      store.copy_file(name, new_name)
    else:
      store.create_dir(posixpath.dirname(new_name))
      store.move(name, new_name)


def remove(path: str) -> None:
  """Removes a file, if it exists."""
  with contextlib.suppress(FileNotFoundError):
    if not is_remote(path):
      os.unlink(path)
      return
    store, name = _locate(path)
    with _reaching(path):
      store.delete_file(name)


def remove_directory(directory: str) -> None:
  """Removes a directory with everything in it, as far as it can."""
  if is_remote(directory):
    with contextlib.suppress(Exception):
      store, name = _locate(directory)
      store.delete_dir(name)
    return
  # A lost worker may still be writing to it.
  for _ in range(3):
    shutil.rmtree(directory, ignore_errors=True)


class _StoreFile(io.RawIOBase):
  """Reads ranges of a store's file, each by one request."""

  def __init__(self, path: str):
    super().__init__()
    self._path, self._position = path, 0
    store, name = _locate(path)
    with _reaching(path):
      self._file = store.open_input_file(name)
      self._num_bytes = self._file.size()

  def readable(self):
    return True

  def seekable(self):
    return True

  def seek(self, offset, whence=os.SEEK_SET):
    start = (0, self._position, self._num_bytes)[whence]
    self._position = max(0, start + offset)
    return self._position

  def readinto(self, buffer):
    with _reaching(self._path):
      data = self._file.read_at(len(buffer), self._position)
    buffer[: len(data)] = data
    self._position += len(data)
    return len(data)

  def readall(self):
    return self.read(max(0, self._num_bytes - self._position))


@functools.lru_cache
def _connect(root: str, is_patient: bool) -> tuple['FileSystem', str]:
  """Returns a file system for 'scheme://authority', and its path there."""
  from pyarrow import fs

  scheme = root.partition('://')[0]
  if scheme == 'gs':
    # Or it tries for a quarter of an hour.
    seconds = 30 if is_patient else 5
    return fs.FileSystem.from_uri(f'{root}/?retry_limit_seconds={seconds}')
  if scheme != 's3':
    return fs.FileSystem.from_uri(f'{root}/')
  # With the pauses between them, half a minute if connections are refused.
  attempts = int(os.environ.get('AWS_MAX_ATTEMPTS', 7))
  attempts = attempts if is_patient else min(3, attempts)
  name = root.removeprefix('s3://')
  bucket = name.removeprefix('anonymous@')
  store = fs.S3FileSystem(
    anonymous=bucket != name,
    # pyarrow does not read that variable.
    endpoint_override=os.environ.get('AWS_ENDPOINT_URL'),
    retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
    connect_timeout=10 if is_patient else 3,
    # Without a byte; pyarrow's documentation says that it is not for Linux.
    request_timeout=_SILENT_SECONDS,
    # A small file is one request.
    allow_delayed_open=True,
  )
  return store, bucket


def _locate(path: str, is_patient: bool = True) -> tuple['FileSystem', str]:
  """Returns the file system of a path, and the path in it."""
  scheme, _, rest = path.partition('://')
  authority, _, name = rest.partition('/')
  with _reaching(path):
    store, base = _connect(f'{scheme}://{authority}', is_patient)
  return store, f'{base.rstrip("/")}/{name}'.rstrip('/')


def _select(directory: str, recursive: bool) -> list[tuple[str, bool]]:
  """Returns (name below a store's directory, whether it is a file)."""
  from pyarrow.fs import FileSelector

  store, name = _locate(directory)
  selector = FileSelector(name, allow_not_found=True, recursive=recursive)
  with _reaching(directory):
    return [
      (entry.path.removeprefix(name).lstrip('/'), entry.is_file)
      for entry in store.get_file_info(selector)
    ]


def _upload(file: BinaryIO, path: str) -> None:
  store, name = _locate(path)
  written = name
  with _reaching(path):
    if store.type_name not in _OBJECT_STORES:
      parent, base = posixpath.split(name)
      written = posixpath.join(parent, f'.{base}.{uuid.uuid4().hex}')
      store.create_dir(parent)
    sink = store.open_output_stream(written)
    try:
      shutil.copyfileobj(file, sink, _BUFFER_BYTES)
      sink.close()
      if written != name:
        store.move(written, name)
    except BaseException:
      # pyarrow completes whatever it closes, at the latest when it is freed.
      with contextlib.suppress(Exception):
        sink.close()
      with contextlib.suppress(Exception):
        store.delete_file(written)
      raise


@contextlib.contextmanager
def _reaching(path: str) -> Iterator[None]:
  """Turns a store's errors into those that the module promises."""
  try:
    yield
  except StoreError:
    raise
  except FileNotFoundError as error:
    text = os.strerror(errno.ENOENT)
    raise FileNotFoundError(errno.ENOENT, text, path) from error
  except Exception as error:
    shown = ' '.join(str(error).split()) or type(error).__name__
    raise StoreError(f'{path!r}: {shown}') from error
