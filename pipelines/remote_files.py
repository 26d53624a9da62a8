"""File systems of other machines: Beam's, but for S3 one of our own."""

import contextlib
import importlib.util
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tff_fedfish.errors import FailedError, UserError

if TYPE_CHECKING:
  from apache_beam.io.filesystem import FileSystem

NUM_REQUESTS = 32
"""Requests that are made at a time."""

_INSTALL = 'Install them by `.venv/bin/python -m pip install {}`'
# A module that each needs, and how one comes by it.
_PACKAGES = {
  's3': (
    'boto3',
    _INSTALL.format('--no-deps --require-hashes -r requirements/s3.lock'),
  ),
  'hdfs': ('hdfs', _INSTALL.format("'hdfs<3'")),
  'gs': (
    'apitools',
    'They do not fit beside those of requirements.lock: make an environment as '
    'docs/clusters.md says',
  ),
}


class StoreError(FailedError):
  """A file system of other machines did not do what it was asked for.

  No OSError: that a file cannot be read is not taken for damage of it.
  """


def is_remote(path: str) -> bool:
  """Says whether a path is not one of this machine's own file system."""
  return '://' in path


def is_s3(path: str) -> bool:
  """Says whether a path is one of S3, or of a store that speaks like it."""
  return path.startswith('s3://')


def require_packages(path: str, option: str) -> None:
  """Checks that this machine has what reaches the file system of a path.

  Raises:
    UserError: If not; names the option, and what to do.
  """
  scheme = path.partition('://')[0]
  module, remedy = _PACKAGES.get(scheme, ('apache_beam', ''))
  if importlib.util.find_spec(module) is None:
    raise UserError(
      f'`{option}` is on {scheme}://, which needs packages that '
      f'{socket.gethostname()!r} lacks. {remedy}, or name a local directory.'
    )


def file_system(path: str) -> 'FileSystem':
  """Returns what reaches a path, with the options that Beam was given."""
  from apache_beam.io.filesystems import FileSystems

  if not is_s3(path):
    return FileSystems.get_filesystem(path)
  from pipelines.s3_files import S3FileSystem

  # There is no other way to ask for what `set_options` was told.
  return S3FileSystem(FileSystems._pipeline_options)


@contextlib.contextmanager
def reaching(path: str) -> Iterator[None]:
  """Turns whatever a file system raises into one kind of error.

  Raises:
    StoreError: For any other; names the path.
  """
  try:
    yield
  except StoreError:
    raise
  # They raise errors of all kinds; Beam adds some of its own.
  except Exception as error:
    shown = ' '.join(str(error).split()) or type(error).__name__
    raise StoreError(f'{path!r}: {shown}') from error
