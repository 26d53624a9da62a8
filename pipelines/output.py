"""The output of a job: where its workers write, and how it becomes a corpus.

Workers write below OUTPUT/.fedfish-HEX/, every attempt at a piece of work to
files of its own. To publish, the job claims the output: it creates
OUTPUT/.fedfish-publishing. Then it gives the shards their names, then the
manifests, which mark corpora as complete, and then the claim goes.

Nothing is removed that this job has not written.
"""

import contextlib
import dataclasses
import json
import os
import posixpath
import re
import shlex
import socket
import time
import uuid
from collections.abc import Iterable, Iterator

from tff_fedfish import files
from tff_fedfish.data import places
from tff_fedfish.data.manifest import MANIFEST_NAME
from tff_fedfish.errors import UserError

CLAIM_NAME = '.fedfish-publishing'
_WORK_NAME = re.compile(r'\.fedfish-[0-9a-f]{32}')
_MARKER = 'job'
_SHARD = re.compile(r'groups-\d{5}(-of-\d{5}\.tfrecord)')
_PUBLISHED = re.compile(
  rf'(\w+/)?({_SHARD.pattern}|index\.parquet|{re.escape(MANIFEST_NAME)})'
)
# Two claims of a store that are made within it are told apart.
_SETTLE_SECONDS = 1.0
_REMOVE_COMMANDS = {'gs': 'gcloud storage rm', 'hdfs': 'hdfs dfs -rm'}


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
  """A directory in which workers leave files, and what of it is published.

  Attributes:
    path: The directory, as all workers must see it.
    files: Path of a file to publish -> its name in the output, of which
      directories may be a part. All others go.
  """

  path: str
  files: dict[str, str] = dataclasses.field(default_factory=dict)


def require_usable(output: str) -> str:
  """Checks, before any work, that an output is empty.

  Args:
    output: The directory; local, or one of a store. It need not exist.

  Returns:
    The path; absolute and without links, if it is local.

  Raises:
    UserError: If it holds something, or cannot be looked into.
  """
  remote = places.is_remote(output)
  output = output.rstrip('/') if remote else os.path.realpath(output)
  with _as_user_error(output):
    names = _other_files(output)
    is_claimed = places.exists(places.join(output, CLAIM_NAME))
  published = list(filter(_PUBLISHED.fullmatch, names))
  incomplete = [name for name in published if not _is_complete(name, published)]
  if is_claimed and incomplete:
    # Of a split, some parts may have their manifests.
    incomplete = published
  if is_claimed and published and not incomplete:
    raise UserError(
      f'`--output` must be empty or new, but {output!r} holds a corpus that '
      'only lacks the last step of its job: '
      f'`{_removal(output, [CLAIM_NAME])}`. Name another directory.'
    )
  if is_claimed or incomplete:
    command = _removal(output, [*incomplete, *[CLAIM_NAME] * is_claimed])
    raise UserError(
      f'`--output` must be empty or new, but {output!r} holds a part of a '
      'corpus, of a job that was stopped or is still at it. If none is, remove '
      f'the part: `{command}`.'
    )
  if names:
    raise UserError(
      f'`--output` must be empty or new, but {output!r} already holds '
      f'{names[0]!r}. Name another directory, or remove it first.'
    )
  return output


def find_work(output: str) -> list[str]:
  """Returns the work directories of other jobs, at work or killed.

  Args:
    output: The path, as `require_usable` returns it.
  """
  paths = places.list_files(output)
  names = {path[len(output) + 1 :].partition('/')[0] for path in paths}
  return [
    places.join(output, name)
    for name in sorted(filter(_WORK_NAME.fullmatch, names))
  ]


@contextlib.contextmanager
def work_directory(
  output: str, directories: Iterable[str] = ()
) -> Iterator[WorkDirectory]:
  """Yields a directory for workers; on success its files are published.

  An exception inside removes it.

  Args:
    output: A directory as `require_usable` returns it.
    directories: Names of directories to make in it. Workers make none: so one
      that does not share the disk, or outlives its job, writes nothing.

  Raises:
    UserError: If the output cannot be written to, or was filled meanwhile.
  """
  # Named before it is made: an interruption can come between any two steps.
  work = WorkDirectory(places.join(output, f'.fedfish-{uuid.uuid4().hex}'))
  is_local = not places.is_remote(output)
  is_new = is_local and not os.path.exists(output)
  try:
    with _as_user_error(output):
      if is_local:
        for name in ('', *directories):
          os.makedirs(os.path.join(work.path, name))
      places.write_bytes(places.join(work.path, _MARKER), b'')
    yield work
    _publish(work, output)
  finally:
    places.remove_directory(work.path)
    if is_new:
      with contextlib.suppress(OSError):
        os.rmdir(output)


def require_shared(work: str) -> None:
  """Checks, on a worker, that it sees the work directory of the driver.

  Raises:
    UserError: If it does not; names the option `--output`.
  """
  if not places.exists(places.join(work, _MARKER)):
    raise UserError(
      '`--output` must be a directory that all workers see, but the worker on '
      f'{socket.gethostname()!r} does not see {work!r}. Name a directory that '
      'is mounted on all machines under the same path, or one of a store, such '
      'as s3://.'
    )


def name_attempt(directory: str, name: str, suffix: str) -> str:
  """Returns a path for an attempt at a piece of work: NAME.ATTEMPT.SUFFIX."""
  return places.join(directory, f'{name}.{uuid.uuid4().hex}.{suffix}')


@contextlib.contextmanager
def _as_user_error(output: str) -> Iterator[None]:
  try:
    yield
  except (OSError, places.StoreError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(
      f'`--output` must be a directory that can be written to, but {output!r} '
      f'is not ({reason}). Check its name and permissions, or name another.'
    ) from error


def _publish(work: WorkDirectory, output: str) -> None:
  """Gives all files their names in the output, or none."""
  targets = {
    source: places.join(output, name) for source, name in work.files.items()
  }
  manifests = {
    source: target
    for source, target in targets.items()
    if posixpath.basename(target) == MANIFEST_NAME
  }
  shards = {source: targets[source] for source in targets.keys() - manifests}
  claim = places.join(output, CLAIM_NAME)
  content = _claim_of(work)
  moved: list[str] = []
  made: list[str] = []
  is_complete = False
  try:
    _claim(output, claim, content)
    if not places.is_remote(output):
      _make_directories(targets.values(), made)
    _move_all(shards, moved, output)
    _require_own(claim, content, output)
    written = list(places.read_all([*manifests]))
    _move_all(manifests, moved, output)
    is_complete = True
    _require_own(claim, content, output)
    for target, data in zip(manifests.values(), written, strict=True):
      _require_own(target, data, output)
    places.remove(claim)
  except BaseException:
    if _holds(claim, content):
      if not is_complete:
        _take_back(moved, made)
      places.remove(claim)
    raise


def _take_back(moved: list[str], made: list[str]) -> None:
  # The manifests first: with one, shards would be a corpus.
  for target in reversed(moved):
    places.remove(target)
  for directory in reversed(made):
    with contextlib.suppress(OSError):
      os.rmdir(directory)


def _claim_of(work: WorkDirectory) -> bytes:
  claim = {
    'job': posixpath.basename(work.path),
    'host': socket.gethostname(),
    'files': sorted(work.files.values()),
  }
  return json.dumps(claim, indent=2).encode()


def _claim(output: str, claim: str, content: bytes) -> None:
  """Makes this job the only one that publishes, if the output is empty."""
  try:
    places.create(claim, content)
  except FileExistsError as error:
    raise _filled_meanwhile(output) from error
  if places.is_remote(output):
    # The later of two claims stays. Whoever reads it after a pause knows.
    time.sleep(_SETTLE_SECONDS)
    _require_own(claim, content, output)
  if _other_files(output):
    raise _filled_meanwhile(output)


def _require_own(path: str, content: bytes, output: str) -> None:
  if not _holds(path, content):
    raise _filled_meanwhile(output)


def _holds(path: str, content: bytes) -> bool:
  try:
    return places.read_bytes(path) == content
  except FileNotFoundError:
    return False


def _make_directories(targets: Iterable[str], made: list[str]) -> None:
  for directory in sorted(set(map(os.path.dirname, targets))):
    if not os.path.isdir(directory):
      made.append(directory)
      os.mkdir(directory)


def _move_all(targets: dict[str, str], moved: list[str], output: str) -> None:
  """Moves files, adding the names that they get to a list before that."""
  remote = places.is_remote(output)

  def move(source):
    target = targets[source]
    if not remote and os.path.lexists(target):
      raise _filled_meanwhile(output)
    moved.append(target)
    places.move(source, target)

  for _ in places.map_many(move, list(targets)):
    pass
  if not remote:
    for directory in set(map(os.path.dirname, targets.values())):
      files.sync(directory)


def _filled_meanwhile(output: str) -> UserError:
  return UserError(
    f'`--output` must stay empty while it is written, but {output!r} was '
    'filled meanwhile, perhaps by another job. Name another directory.'
  )


def _other_files(output: str) -> list[str]:
  """Returns the names of files of an output that are in no work directory."""
  names = (path[len(output) + 1 :] for path in places.list_files(output))
  return [
    name for name in names if not _WORK_NAME.fullmatch(name.partition('/')[0])
  ]


def _is_complete(name: str, names: list[str]) -> bool:
  """Says whether there is the manifest of the corpus that a file is of."""
  return posixpath.join(posixpath.dirname(name), MANIFEST_NAME) in names


def _removal(output: str, names: Iterable[str]) -> str:
  """Returns a command that removes files of a job, and no others."""
  patterns = sorted({_SHARD.sub(r'groups-*\1', name) for name in names})
  scheme = output.partition('://')[0]
  if scheme == 's3':
    # Only by a filter can it remove several.
    included = ' '.join(f"--include '{pattern}'" for pattern in patterns)
    place = shlex.quote(output)
    return f"aws s3 rm --recursive {place} --exclude '*' {included}"
  command = _REMOVE_COMMANDS.get(scheme, 'rm -f')
  paths = (f'{shlex.quote(output)}/{pattern}' for pattern in patterns)
  return ' '.join([command, *paths])
