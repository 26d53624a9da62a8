"""Finds, checks and opens raw files, local or where Beam can reach them."""

import concurrent.futures
import errno
import glob
import os
from collections.abc import Sequence
from typing import BinaryIO

from pipelines.remote_files import (
  NUM_REQUESTS,
  StoreError,
  file_system,
  is_remote,
  reaching,
  require_packages,
)
from tff_fedfish.errors import UserError

PATH_ERRORS = (
  *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
  *(errno.ENAMETOOLONG, errno.EACCES, errno.EPERM),
)
"""Errors of the system of which a path, or its permissions, are the cause."""


def open_stored(path: str) -> BinaryIO:
  """Opens a local or remote file for reading, without unpacking it."""
  if not is_remote(path):
    return open(path, 'rb')
  from apache_beam.io.filesystem import CompressionTypes

  with reaching(path):
    return file_system(path).open(
      path, compression_type=CompressionTypes.UNCOMPRESSED
    )


def match_remote(pattern: str) -> list[str]:
  """Returns the remote files that a pattern of Beam's matches.

  Raises:
    StoreError: If that file system cannot be asked.
  """
  with reaching(pattern):
    (result,) = file_system(pattern).match([pattern])
  return [metadata.path for metadata in result.metadata_list]


def find_input_files(patterns: Sequence[str]) -> list[str]:
  """Returns the files that the patterns match, sorted, each once.

  Local ones become absolute, so that what is told from the directories does not
  depend on how a path is typed, nor on where a worker runs.

  Args:
    patterns: Local or remote paths; `*`, `?`, `[...]` and, for local ones, `**`
      match any part of them. Directories that a pattern matches are skipped.

  Raises:
    UserError: If a pattern matches nothing, or something that is no readable
      file; names the option `--input`.
  """
  file_to_path = {}
  for pattern in patterns:
    remote = is_remote(pattern)
    matches = _find_remote(pattern) if remote else _find_local(pattern)
    if not matches:
      raise UserError(
        f'`--input` must match at least one file, but {pattern!r} matches '
        'none. Check the path, and quote patterns.'
      )
    for path in matches:
      # One file by two spellings must not be read twice. A link keeps its own
      # name, which is often the one that means something.
      file = path if remote else os.path.realpath(path)
      if not remote:
        absolute = os.path.abspath(path)
        # `..` behind a linked directory leads elsewhere than the spelling says.
        path = absolute if os.path.realpath(absolute) == file else file
      try:
        path.encode()
      except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode('utf-8', 'backslashreplace')
        raise UserError(
          f"`--input` must name files by names in UTF-8, but '{shown}' is "
          'none. Rename it.'
        ) from error
      file_to_path[file] = min(path, file_to_path.get(file, path))
  return sorted(file_to_path.values())


def file_sizes(paths: Sequence[str]) -> list[int]:
  """Returns how many bytes each file, local or remote, takes as it is stored.

  Raises:
    UserError: If a file is not there any more, or cannot be asked.
  """
  if not any(map(is_remote, paths)):
    return list(map(_file_size, paths))
  # A remote file costs a request, and there may be thousands.
  with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
    return list(pool.map(_file_size, paths))


def _find_local(pattern: str) -> list[str]:
  # A file may have brackets in its name.
  exists = os.path.exists(pattern)
  matches = [pattern] if exists else glob.glob(pattern, recursive=True)
  paths = [path for path in matches if exists or not os.path.isdir(path)]
  for path in paths:
    if not os.path.isfile(path):
      kind = 'a directory' if os.path.isdir(path) else 'not a regular file'
      raise UserError(
        f'`--input` must name files, but {path!r} is {kind}. Name files, such '
        "as 'DIR/*.json.gz' or 'DIR/*.tfrecord-*'."
      )
    try:
      with open(path, 'rb'):
        pass
    except OSError as error:
      raise UserError(
        f'`--input` must be readable, but {path!r} is not ({error.strerror}). '
        'Change its permissions, or leave it out.'
      ) from error
  return paths


def _find_remote(pattern: str) -> list[str]:
  require_packages(pattern, '--input')
  try:
    return match_remote(pattern)
  except StoreError as error:
    raise UserError(
      f'`--input` must be a path that can be read, but {pattern!r} is not '
      f'({error}). Check the name, and how the file system is reached, or copy '
      'the files here.'
    ) from error


def _file_size(path: str) -> int:
  try:
    if not is_remote(path):
      return os.path.getsize(path)
    with reaching(path):
      return file_system(path).size(path)
  except (OSError, StoreError) as error:
    raise UserError(
      f'`--input` must be readable, but the size of {path!r} cannot be found '
      f'({error}). Check that it is still there.'
    ) from error
