"""Finds the raw files that patterns name, and checks that they can be read."""

import glob
import os
from collections.abc import Sequence

from tff_fedfish.errors import UserError


def find_input_files(patterns: Sequence[str]) -> list[str]:
  """Returns the files that the patterns match, sorted, each once.

  Args:
    patterns: Local or remote paths; `*`, `?`, `[...]` and, for local ones, `**`
      match any part of them.

  Raises:
    UserError: If a pattern matches nothing, or something that is no readable
      file; names the option `--input`.
  """
  file_to_path = {}
  for pattern in patterns:
    remote = '://' in pattern
    matches = _match_remote(pattern) if remote else _match_local(pattern)
    if not matches:
      raise UserError(
        f'`--input` must match at least one file, but {pattern!r} matches '
        'none. Check the path, and quote patterns.'
      )
    for path in matches:
      # One file by two spellings must not be read twice. A link keeps its own
      # name, which is often the one that means something.
      file = path if remote else os.path.realpath(path)
      file_to_path[file] = min(path, file_to_path.get(file, path))
  return sorted(file_to_path.values())


def _match_local(pattern: str) -> list[str]:
  # A file may have brackets in its name.
  exists = os.path.exists(pattern)
  paths = [pattern] if exists else glob.glob(pattern, recursive=True)
  for path in paths:
    if not os.path.isfile(path):
      kind = 'a directory' if os.path.isdir(path) else 'not a regular file'
      raise UserError(
        f'`--input` must name files, but {path!r} is {kind}. Name files, such '
        "as 'DIR/*.json.gz'."
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


def _match_remote(pattern: str) -> list[str]:
  from apache_beam.io import filesystem, filesystems

  try:
    (result,) = filesystems.FileSystems.match([pattern])
  except (filesystem.BeamIOError, ValueError) as error:
    raise UserError(
      f'`--input` must be a path that can be read, but {pattern!r} is not '
      f'({" ".join(str(error).split())}). Copy the files here, or install '
      "what Beam needs for that file system (such as 'apache-beam[gcp]')."
    ) from error
  return [metadata.path for metadata in result.metadata_list]
