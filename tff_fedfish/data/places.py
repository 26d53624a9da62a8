"""Files of this machine and of object stores, reached by the same functions.

A path is local, or begins with the scheme of a store: `s3://`, `gs://`,
`abfs://` or `hdfs://`, which pyarrow reaches. Local files are plain ones, read
and written without pyarrow.

Local errors are OSErrors. A store's are StoreErrors, but for a file that is not
there: a FileNotFoundError.
"""

import concurrent.futures
import contextlib
import errno
import functools
import io
import os
import pathlib
import posixpath
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from tff_fedfish import files
from tff_fedfish.errors import FailedError

if TYPE_CHECKING:
  from pyarrow.fs import FileInfo, FileSystem

NUM_REQUESTS = 32
"""Requests to a store at a time."""

_BUFFER_BYTES = 16 << 20
# A request of S3 copies no more.
_MAX_COPIED_BYTES = 5 << 30
_CONNECT_SECONDS, _REQUEST_SECONDS = 10, 60
# With the pauses between them, about half a minute.
_ATTEMPTS = '7'
# As pyarrow calls them; they have no directories, and cannot rename.
_OBJECT_STORES = ('s3', 'gcs', 'abfs')
# In these, nobody sees a file before it is complete.
_SHOW_WHOLE_FILES = ('s3', 'gcs')


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
  """Returns a directory without a final slash: a Path, or a store's URL."""
  return path.rstrip('/') if is_remote(path) else pathlib.Path(path)


def absolute(path: str) -> str:
  """Returns a path that means the same everywhere: links are resolved."""
  return path.rstrip('/') if is_remote(path) else os.path.realpath(path)


def exists(path: str) -> bool:
  """Says whether there is a file or a directory."""
  if not is_remote(path):
    return os.path.exists(path)
  return _find(path) is not None


def size(path: str) -> int:
  """Returns how many bytes a file has.

  Raises:
    FileNotFoundError: If there is no file.
  """
  if is_remote(path):
    if (found := _find(path)) and found.is_file:
      return found.size
  elif os.path.isfile(path):
    return os.path.getsize(path)
  raise _no_such_file(path)


def list_files(directory: str) -> list[str]:
  """Returns the paths of all files in and below a directory, sorted.

  Hidden files are left out, and so are files that are still being written. The
  list is empty if there is no such directory.
  """
  if is_remote(directory):
    paths = _list(directory, recursive=True)
  else:
    paths = (
      os.path.join(parent, name)
      for parent, _, names in os.walk(directory)
      for name in names
    )
  return sorted(
    path for path in paths if not posixpath.basename(path).startswith('.')
  )


def glob(pattern: str) -> list[str]:
  """Returns the files of a store that a pattern matches, sorted.

  Args:
    pattern: `*`, `?` and `[...]` match any part of one name. A file whose own
      name is the pattern is the only match.
  """
  if (found := _find(pattern)) and found.is_file:
    return [pattern]
  num_literal = next(
    (i for i, letter in enumerate(pattern) if letter in '*?['), len(pattern)
  )
  directory, _, rest = pattern[:num_literal].rpartition('/')
  recursive = '/' in pattern[num_literal:]
  return sorted(
    path
    for path in _list(directory, recursive)
    if pathlib.PurePosixPath(f'/{path}').match(f'/{pattern}')
  )


def open_file(
  path: str | os.PathLike, buffer_bytes: int = _BUFFER_BYTES
) -> BinaryIO:
  """Opens a file for reading, as it is stored; it can be sought in.

  Args:
    path: The file.
    buffer_bytes: How much of a store's file one request reads.
  """
  if not is_remote(path):
    return open(path, 'rb')
  return io.BufferedReader(_StoreFile(path), buffer_bytes)


@contextlib.contextmanager
def open_copy(path: str) -> Iterator[BinaryIO]:
  """Opens a file for reading, one of a store as a temporary copy.

  One large read takes a store less time than many, and no memory.
  """
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(open_file(path))
    if is_remote(path):
      copy = stack.enter_context(tempfile.TemporaryFile())
      shutil.copyfileobj(file, copy, _BUFFER_BYTES)
      copy.seek(0)
      file = copy
    yield file


def read_bytes(path: str) -> bytes:
  """Returns what a file holds."""
  with open_file(path) as file:
    return file.read()


def read_all(paths: Sequence[str]) -> Iterator[bytes]:
  """Yields what every file holds; many of a store are read at a time."""
  return map_many(read_bytes, paths)


def map_many(function, paths: Sequence[str]) -> Iterator:
  """Yields a function's value for every path, by many requests at a time."""
  if not any(map(is_remote, paths)):
    yield from map(function, paths)
    return
  with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
    yield from pool.map(function, paths)


@contextlib.contextmanager
def write(path: str) -> Iterator[BinaryIO]:
  """Opens a file that appears at the end, whole, or after an error not at all.

  A file of a store is written to a temporary one first.
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
  if is_remote(path):
    _upload(io.BytesIO(data), path)
    return
  with files.write_atomically(path, 'wb') as file:
    file.write(data)


def create(path: str, data: bytes) -> None:
  """Writes a file that must be new.

  On a local disk one of several processes succeeds. Stores have no such
  request: two that ask within the same moment may both succeed, and the later
  one's file stays.

  Raises:
    FileExistsError: If there is one.
  """
  if is_remote(path):
    if exists(path):
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
  """Gives a file another name; object stores copy it, and the source stays."""
  if not is_remote(source):
    os.rename(source, target)
    return
  store, old = _locate(source)
  _, new = _locate(target)
  if store.type_name == 's3' and size(source) > _MAX_COPIED_BYTES:
    with open_file(source) as file:
      _upload(file, target)
    return
  with _reaching(target):
    if store.type_name in _OBJECT_STORES:
      store.copy_file(old, new)
    else:
      store.create_dir(posixpath.dirname(new))
      store.move(old, new)


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
    store, name = _locate(directory)
    with contextlib.suppress(Exception):
      store.delete_dir(name)
    return
  # A lost worker may still be writing to it.
  for _ in range(3):
    shutil.rmtree(directory, ignore_errors=True)
    if not os.path.exists(directory):
      return


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

  def close(self):
    if not self.closed:
      self._file.close()
    super().close()


@functools.lru_cache
def _connect(root: str) -> tuple['FileSystem', str]:
  """Returns what reaches 'scheme://authority', and its path for that."""
  from pyarrow import fs

  if not root.startswith('s3://'):
    return fs.FileSystem.from_uri(f'{root}/')
  variables = os.environ
  endpoint = variables.get('AWS_ENDPOINT_URL_S3')
  store = fs.S3FileSystem(
    # pyarrow itself does not ask for them.
    endpoint_override=endpoint or variables.get('AWS_ENDPOINT_URL'),
    retry_strategy=fs.AwsStandardS3RetryStrategy(
      max_attempts=int(variables.get('AWS_MAX_ATTEMPTS', _ATTEMPTS))
    ),
    connect_timeout=_CONNECT_SECONDS,
    request_timeout=_REQUEST_SECONDS,
    # A small file is one request.
    allow_delayed_open=True,
  )
  return store, root.removeprefix('s3://')


def _locate(path: str) -> tuple['FileSystem', str]:
  """Returns what reaches a path, and the path's name for that."""
  scheme, _, rest = path.partition('://')
  authority, _, name = rest.partition('/')
  with _reaching(path):
    store, base = _connect(f'{scheme}://{authority}')
  return store, f'{base.rstrip("/")}/{name}'.rstrip('/')


def _find(path: str) -> 'FileInfo | None':
  from pyarrow.fs import FileType

  store, name = _locate(path)
  with _reaching(path):
    found = store.get_file_info(name)
  return None if found.type == FileType.NotFound else found


def _list(directory: str, recursive: bool) -> Iterable[str]:
  from pyarrow.fs import FileSelector

  store, name = _locate(directory)
  selector = FileSelector(name, allow_not_found=True, recursive=recursive)
  with _reaching(directory):
    entries = store.get_file_info(selector)
  start = len(name) + 1
  directory = directory.rstrip('/')
  return [
    f'{directory}/{entry.path[start:]}' for entry in entries if entry.is_file
  ]


def _upload(file: BinaryIO, path: str) -> None:
  store, name = _locate(path)
  parent, base = posixpath.split(name)
  written = name
  with _reaching(path):
    if store.type_name not in _SHOW_WHOLE_FILES:
      written = posixpath.join(parent, f'.{base}.{uuid.uuid4().hex}')
      store.create_dir(parent)
    sink = store.open_output_stream(written)
    try:
      shutil.copyfileobj(file, sink, _BUFFER_BYTES)
      sink.close()
      if store.type_name == 'abfs':
        store.copy_file(written, name)
        store.delete_file(written)
      elif written != name:
        store.move(written, name)
    except BaseException:
      # pyarrow completes whatever it closes, at the latest when it is freed.
      with contextlib.suppress(Exception):
        sink.close()
      with contextlib.suppress(Exception):
        store.delete_file(written)
      raise


def _no_such_file(path: str) -> FileNotFoundError:
  return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


@contextlib.contextmanager
def _reaching(path: str) -> Iterator[None]:
  """Turns a store's errors into those that the module promises."""
  try:
    yield
  except StoreError:
    raise
  except FileNotFoundError as error:
    raise _no_such_file(path) from error
  except Exception as error:
    shown = ' '.join(str(error).split()) or type(error).__name__
    raise StoreError(f'{path!r}: {shown}') from error
