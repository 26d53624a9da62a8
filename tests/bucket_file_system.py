"""`bucket://...`: a file system as Beam knows them, much like an object store.

Files appear when they are closed, there are no directories, and files are
copied, not renamed. What is stored lies below the directory in BUCKET_ROOT.
"""

import os
import pathlib
import shutil

from apache_beam.io import filesystem, localfilesystem

_SCHEME = 'bucket'
_PREFIX = f'{_SCHEME}://'


class _BucketFile:
  """A file that is there once it is closed without an error."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._data = []

  def write(self, data: bytes) -> None:
    self._data.append(bytes(data))

  def flush(self) -> None:
    pass

  def close(self) -> None:
    self._path.parent.mkdir(parents=True, exist_ok=True)
    self._path.write_bytes(b''.join(self._data))

  closed = False

  def writable(self) -> bool:
    return True

  def __enter__(self):
    return self

  def __exit__(self, error, *_):
    if error is None:
      self.close()


class BucketFileSystem(filesystem.FileSystem):
  """Beam finds it as a subclass of `FileSystem`, by its scheme."""

  def __init__(self, pipeline_options):
    super().__init__(pipeline_options)
    self._local = localfilesystem.LocalFileSystem(pipeline_options)

  @classmethod
  def scheme(cls):
    return _SCHEME

  def join(self, basepath, *paths):
    return '/'.join([basepath.rstrip('/'), *paths])

  def split(self, path):
    head, _, tail = path.rpartition('/')
    return head, tail

  def mkdirs(self, path):
    # There are no directories.
    pass

  def has_dirs(self):
    return False

  def _list(self, dir_or_prefix):
    root = _root()
    for path in root.rglob('*'):
      name = f'{_PREFIX}{path.relative_to(root)}'
      if path.is_file() and name.startswith(dir_or_prefix):
        yield filesystem.FileMetadata(name, path.stat().st_size)

  def create(self, path, mime_type=None, compression_type=None):
    return _BucketFile(_local(path))

  def open(self, path, mime_type=None, compression_type=None):
    return open(_local(path), 'rb')

  def copy(self, source_file_names, destination_file_names):
    for source, target in zip(
      source_file_names, destination_file_names, strict=True
    ):
      _local(target).parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(_local(source), _local(target))

  def rename(self, source_file_names, destination_file_names):
    raise NotImplementedError

  def exists(self, path):
    return _local(path).is_file()

  def size(self, path):
    return _local(path).stat().st_size

  def last_updated(self, path):
    raise NotImplementedError

  def checksum(self, path):
    raise NotImplementedError

  def metadata(self, path):
    return filesystem.FileMetadata(path, self.size(path))

  def delete(self, paths):
    for path in paths:
      matches = (
        self._list(path) if path.endswith('/') else [self.metadata(path)]
      )
      for match in list(matches):
        _local(match.path).unlink()


def _root() -> pathlib.Path:
  return pathlib.Path(os.environ['BUCKET_ROOT'])


def _local(path: str) -> pathlib.Path:
  return _root() / path.removeprefix(_PREFIX)
