"""The output of a job: where its workers write, and how it becomes a corpus.

Workers write below OUTPUT/.fedfish-HEX/, every attempt at a piece of work to
files of its own. Where the machine fails, finished work stays there, and an
equal job may go on with it. To publish, the job claims the output: it creates
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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from pipelines.input_files import require_utf8
from tff_fedfish import files, locks
from tff_fedfish.data import places
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.data.manifest import MANIFEST_NAME
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.json_values import from_json

CLAIM_NAME = '.fedfish-publishing'
_WORK_NAME = re.compile(r'\.fedfish-[0-9a-f]{32}/')
_MARKER = 'job'
_PART_NAME = re.compile(r'\w+/')
_SHARD = re.compile(r'(\w+/)?groups-\d{5}(-of-\d{5}\.tfrecord)')
# Of two claims in a store, the later one stays; both jobs read it after this.
_SETTLE_SECONDS = 1.0
_FAILURES = (OSError, places.StoreError)


class LostRecordsError(RuntimeError):
  """Records were lost: a fault of this program."""


class LostFileError(UserError):
  """A file, or the right to read it, went away while the job was at work."""


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
  """A directory in which workers leave files.

  Attributes:
    path: The directory, as all workers must see it.
    holds_work: Called with the path; says whether it holds finished work.
    files: Files to publish: path -> name in the output, such as
      'train/manifest.json'. All others go.
  """

  path: str
  holds_work: Callable[[str], bool]
  files: dict[str, str] = dataclasses.field(default_factory=dict)

  def remnant(self) -> str:
    """Returns what a job that fails leaves, as a clause of a message."""
    if not self.holds_work(self.path):
      return 'nothing was kept'
    return kept_words(self.path)


def kept_words(work: str) -> str:
  """Returns where finished work is, and what to do with it, as a clause."""
  sizes = places.map_many(places.size, places.list_files(work))
  num_bytes = sum(size or 0 for size in sizes)
  return (
    f'finished work is kept in {work!r}, {num_bytes:,} bytes: the same command '
    'with `--resume` goes on, or remove it'
  )


def require_usable(output: str) -> str:
  """Checks, before any work, that an output is empty.

  Args:
    output: The directory; local, or one of a store. It need not exist.

  Returns:
    The path; absolute and without links, if it is local.

  Raises:
    UserError: If it holds something, or cannot be looked into.
  """
  output = places.absolute(output)
  require_utf8(output, '--output')
  with _as_user_error(output):
    # Of a store, this asks whether it answers.
    places.size(output, is_patient=False)
    partial = _partly_published(output)
    other = next(_other_files(output), None)
  if partial:
    raise UserError(
      f'`--output` must be empty or new, but {output!r} holds files of a job '
      'that was stopped, or is at work, while it published them, or of a copy. '
      f'If none is at work, remove them: `{_removal(output, partial)}`.'
    )
  if other:
    raise UserError(
      f'`--output` must be empty or new, but {output!r} already holds '
      f'{other!r}. Name another directory, or remove it first.'
    )
  return output


def find_work(output: str) -> list[str]:
  """Returns the work directories of other jobs, at work or killed.

  Args:
    output: The path, as `require_usable` returns it.
  """
  names = filter(_WORK_NAME.fullmatch, places.list_names(output))
  return [places.join(output, name[:-1]) for name in names]


@contextlib.contextmanager
def work_directory(
  output: str,
  directories: Iterable[str] = (),
  *,
  identity: str = '',
  resume: bool = False,
  holds_work: Callable[[str], bool] = lambda path: False,
) -> Iterator[WorkDirectory]:
  """Yields a directory for workers; on success its files are published.

  An exception inside removes it, unless the machine or the user has stopped a
  job that has finished work.

  Args:
    output: A directory as `require_usable` returns it.
    directories: Names of directories to make in it. Workers make none: so one
      that does not share the disk, or outlives its job, writes nothing.
    identity: Equal for jobs that may go on with each other's work.
    resume: Whether to take the directory that such a job has left.
    holds_work: Called with a path; says whether it holds finished work.

  Raises:
    UserError: If the output cannot be written to, or was filled meanwhile, or
      the job to go on with is still at work.
  """
  output = places.absolute(output)
  left = _left_work(output, identity) if resume else None
  # Named before it is made: an interruption can come between any two steps.
  path = left or places.join(output, f'.fedfish-{uuid.uuid4().hex}')
  work = WorkDirectory(path, holds_work)
  is_local = not places.is_remote(output)
  is_new = is_local and not os.path.exists(output)
  is_stopped = False
  with contextlib.ExitStack() as stack:
    if left:
      # Before all else: what is at work is not to be removed.
      with _as_user_error(output):
        stack.enter_context(_locked(left))
    try:
      with _as_user_error(output):
        for name in ('', *directories) if is_local else ():
          os.makedirs(os.path.join(path, name), exist_ok=True)
        if not left:
          marker = places.join(path, _MARKER)
          places.write_bytes(marker, b'' if is_local else identity.encode())
          # Before it says whose it is: nobody may go on with it now.
          file = stack.enter_context(_locked(path))
          if file:
            file.write(identity.encode())
            file.flush()
      yield work
      _publish(work, output)
    except BaseException as error:
      is_fault = isinstance(error, (UserError, LostRecordsError))
      is_stopped = not is_fault or isinstance(error, LostFileError)
      raise
    finally:
      if not (is_stopped and holds_work(path)):
        places.remove_directory(path)
        if is_new:
          with contextlib.suppress(OSError):
            os.rmdir(output)


def _left_work(output: str, identity: str) -> str | None:
  """Returns the work directory of a job that was stopped."""
  found = [
    path
    for path in find_work(output)
    if _holds(places.join(path, _MARKER), identity.encode())
  ]
  # Of several that with the most work.
  sizes = [len(places.list_files(path)) for path in found]
  return found[sizes.index(max(sizes))] if found else None


@contextlib.contextmanager
def _locked(work: str) -> Iterator[BinaryIO | None]:
  """Keeps others from going on with the work; of a store it cannot."""
  if places.is_remote(work):
    yield None
    return
  with open(os.path.join(work, _MARKER), 'r+b') as file:
    if not locks.try_lock(file):
      raise UserError(
        f'`--resume` must find a job that was stopped, but that of {work!r} is '
        'at work. Wait for its end.'
      )
    yield file


def require_shared(work: str) -> None:
  """Checks, on a worker, that it sees the work directory of the driver.

  Raises:
    UserError: If it does not; names the option `--output`.
  """
  if places.size(places.join(work, _MARKER)) is None:
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
  except _FAILURES as error:
    raise UserError(
      f'`--output` must be a directory that can be written to, but {output!r} '
      f'is not ({_reason(error)}). Check its name and permissions, or name '
      'another.'
    ) from error


def _reason(error: Exception) -> str:
  return str(getattr(error, 'strerror', None) or error)


def _publish(work: WorkDirectory, output: str) -> None:
  """Gives all files their names in the output, or none."""
  claim = places.join(output, CLAIM_NAME)
  names = sorted(work.files.values())
  facts = {'job': posixpath.basename(work.path), 'files': names}
  content = json.dumps(facts | {'host': socket.gethostname()}).encode()
  shards, manifests = {}, {}
  for source, name in work.files.items():
    is_manifest = posixpath.basename(name) == MANIFEST_NAME
    (manifests if is_manifest else shards)[source] = places.join(output, name)
  moved: list[str] = []
  is_complete = False
  try:
    _claim(output, content)
    _move_all(shards, moved, output)
    _require(claim, content, output)
    written = list(places.map_many(places.read_bytes, [*manifests]))
    _move_all(manifests, moved, output)
    is_complete = True
    _require(claim, content, output)
    for target, data in zip(manifests.values(), written, strict=True):
      _require(target, data, output)
    places.remove(claim)
  except BaseException as error:
    is_clean = False
    with contextlib.suppress(*_FAILURES):
      if _holds(claim, content):
        # The manifests first: with one, shards would be a corpus.
        for target in reversed([] if is_complete else moved):
          places.remove(target)
        places.remove(claim)
      is_clean = not is_complete
    if is_clean or not isinstance(error, _FAILURES):
      raise
    corpora = ' and '.join(
      posixpath.dirname(path) for path in manifests.values()
    )
    raise FailedError(
      f'Grouping into {output!r} stopped while it published '
      f'({_reason(error)}). Run `fedfish verify` on {corpora}: if it says OK, '
      f'all is complete, and {claim!r} may be removed. Else group again, and '
      'what is to be removed is named.'
    ) from error


def _claim(output: str, content: bytes) -> None:
  """Makes this job the only one that publishes, if the output is empty."""
  claim = places.join(output, CLAIM_NAME)
  try:
    places.create(claim, content)
  except FileExistsError as error:
    raise _filled_meanwhile(output) from error
  if places.is_remote(output):
    time.sleep(_SETTLE_SECONDS)
    _require(claim, content, output)
  if any(_other_files(output)):
    raise _filled_meanwhile(output)


def _move_all(targets: dict[str, str], moved: list[str], output: str) -> None:
  """Moves files, adding each target to a list before."""
  remote = places.is_remote(output)
  directories = {posixpath.dirname(target) for target in targets.values()}

  def move(source):
    target = targets[source]
    if not remote and os.path.lexists(target):
      raise _filled_meanwhile(output)
    moved.append(target)
    places.move(source, target)

  for directory in () if remote else directories:
    os.makedirs(directory, exist_ok=True)
  for _ in places.map_many(move, list(targets)):
    pass
  for directory in () if remote else directories:
    files.sync(directory)


def _holds(path: str, content: bytes) -> bool:
  try:
    return places.read_bytes(path) == content
  except FileNotFoundError:
    return False


def _require(path: str, content: bytes, output: str) -> None:
  if not _holds(path, content):
    raise _filled_meanwhile(output)


def _filled_meanwhile(output: str) -> UserError:
  return UserError(
    f'`--output` must stay empty while it is written, but {output!r} was '
    'filled meanwhile, perhaps by another job. Name another directory.'
  )


def _other_files(output: str) -> Iterator[str]:
  """Yields the names of visible files that are in no work directory."""
  for name in places.list_names(output):
    if name == f'{CLAIM_NAME}/':
      yield name
    elif name.endswith('/') and not _WORK_NAME.fullmatch(name):
      for path in places.find_files(places.join(output, name)):
        yield path.removeprefix(output).lstrip('/')
    elif not name.startswith('.'):
      yield name


def _partly_published(output: str) -> list[str]:
  """Returns the names of files that a job has published without an end."""
  names = places.list_names(output)
  for part in filter(_PART_NAME.fullmatch, [*names]):
    below = places.list_names(places.join(output, part))
    names += [part + name for name in below]
  names = set(names)

  def beside(name, other):
    return posixpath.join(posixpath.dirname(name), other)

  def has_manifest(name):
    return beside(name, MANIFEST_NAME) in names

  if CLAIM_NAME not in names:
    shards = filter(_SHARD.fullmatch, names)
    shards = {name for name in shards if not has_manifest(name)}
    # What stands beside a job's shards is its index.
    return [*shards, *names & {beside(name, INDEX_NAME) for name in shards}]
  claimed = ()
  # Killed at once, a job leaves an empty claim; at work, it may remove it now.
  with contextlib.suppress(ValueError, FileNotFoundError):
    content = places.read_bytes(places.join(output, CLAIM_NAME))
    claim = from_json(dict[str, Any], json.loads(content), '')
    claimed = from_json(tuple[str, ...], claim.get('files'), 'files')
  if all(map(has_manifest, claimed)):
    return [CLAIM_NAME]
  return [CLAIM_NAME, *names.intersection(claimed)]


def _removal(output: str, names: Iterable[str]) -> str:
  """Returns a command that removes files of a job, and no others.

  For stores, whose tools differ, it returns their paths.
  """
  patterns = sorted({_SHARD.sub(r'\1groups-*\2', name) for name in names})
  place = shlex.quote(output)
  paths = ' '.join(f'{place}/{pattern}' for pattern in patterns)
  return paths if places.is_remote(output) else f'rm -f {paths}'
