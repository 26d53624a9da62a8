"""Finds and checks raw files, local or of a store."""

import errno
import glob
import os
import re
from collections.abc import Iterator, Sequence

from tff_fedfish.data import places
from tff_fedfish.errors import UserError

PATH_ERRORS = (
  *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
  *(errno.ENAMETOOLONG, errno.EACCES, errno.EPERM),
)
"""Errors of the system of which a path, or its permissions, are the cause."""

_ANY_DEPTH = re.compile(r'(?:^|(?<=/))\*\*(?:/+|$)')


def find_input_files(patterns: Sequence[str]) -> list[str]:
  """Returns the files that the patterns match, sorted, each once.

  Local ones become absolute, so that what is told from the directories does not
  depend on how a path is typed, nor on where a worker runs.

  Args:
    patterns: Paths, local or of a store; `*`, `?`, `[...]` and, for local ones,
      `**` match any part of them. Directories that a pattern matches are
      skipped.

  Raises:
    UserError: If a pattern matches nothing, or something that is no readable
      file; names the option `--input`.
  """
  file_to_path = {}
  for pattern in patterns:
    remote = places.is_remote(pattern)
    try:
      matches = places.glob(pattern) if remote else _find_local(pattern)
    except places.StoreError as error:
      raise UserError(
        f'`--input` must be a path that can be read, but {pattern!r} is not '
        f'({error}). Check the name, and how the store is reached.'
      ) from error
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
      require_utf8(path, '--input')
      file_to_path[file] = min(path, file_to_path.get(file, path))
  return sorted(file_to_path.values())


def file_sizes(paths: Sequence[str]) -> list[int]:
  """Returns how many bytes each file, local or of a store, takes.

  Raises:
    UserError: If a file is not there any more.
  """
  sizes = list(places.map_many(places.size, paths))
  if None in sizes:
    raise UserError(
      '`--input` must stay as it is, but '
      f'{paths[sizes.index(None)]!r} is gone. Run it again.'
    )
  return sizes


def require_utf8(path: str, option: str) -> None:
  """Refuses a path that is no text: workers are told paths as text."""
  try:
    path.encode()
  except UnicodeEncodeError as error:
    shown = os.fsencode(path).decode('utf-8', 'backslashreplace')
    raise UserError(
      f"`{option}` must have a name in UTF-8, found '{shown}'. Rename it."
    ) from error


def _find_local(pattern: str) -> list[str]:
  # A file may have brackets in its name.
  exists = os.path.exists(pattern)
  matches = [pattern] if exists else list(_glob(pattern))
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


def _glob(pattern: str, root: str = '') -> Iterator[str]:
  """Yields the paths that a pattern matches below a directory.

  `**` enters a directory once: links may lead back up.
  """
  if not (any_depth := _ANY_DEPTH.search(pattern)):
    for path in glob.iglob(pattern, root_dir=root or None):
      yield os.path.join(root, path)
    return
  before, after = pattern[: any_depth.start()], pattern[any_depth.end() :]
  seen = set()
  for top in _glob(before, root) if before else [root]:
    for directory, names, _ in os.walk(top or '.', followlinks=True):
      status = os.stat(directory)
      if (status.st_dev, status.st_ino) in seen:
        names.clear()
        continue
      seen.add((status.st_dev, status.st_ino))
      names[:] = sorted(name for name in names if not name.startswith('.'))
      yield from _glob(after or '*', directory)
