"""Finds and reads checkpoints, each proved by a checksum.

`checkpoints/round_00000100/` holds `state.safetensors`, all tensors, and
`manifest.json` with what the run keeps beside them; see `store.py`.
"""

import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np

from tff_fedfish.errors import UserError
from tff_fedfish.run import store, tensor_files
from tff_fedfish.run.store import RoundStore
from tff_fedfish.run.tensor_files import DamagedError

STATE_FILE = 'state.safetensors'
STATE_KEY = 'state'
"""Name of the file in the manifest."""

_Function = TypeVar('_Function', bound=Callable[..., Any])


class RemovedError(UserError):
  """A checkpoint that its run removed while it was in use."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """Contents of one checkpoint."""

  round_num: int
  """Rounds that the state has seen; 0 is the state before training."""
  tensors: dict[str, np.ndarray]
  """The chosen tensors by name."""
  contents: Mapping[str, Any]
  """Values that the caller of `save_checkpoint` kept beside the tensors."""
  path: pathlib.Path
  """The checkpoint's directory."""


def path_of(directory: str | os.PathLike, round_num: int) -> pathlib.Path:
  """Returns a round's checkpoint, `directory/round_00000100`."""
  return RoundStore(directory).path(round_num)


def list_rounds(directory: str | os.PathLike) -> list[int]:
  """Returns the rounds that have a checkpoint in `directory`, ascending.

  Temporary directories do not count; an absent directory has no rounds.
  """
  return RoundStore(directory).rounds()


def load_checkpoint(
  path: str | os.PathLike,
  prefix: str | None = '',
  *,
  verify: bool = True,
) -> Checkpoint:
  """Reads a checkpoint, or some of its tensors.

  Args:
    path: The checkpoint's directory.
    prefix: Only tensors whose names start with it are read into memory. None:
      none are.
    verify: Whether to check the tensor file against its SHA-256 first, which
      reads all of it. False where `latest_checkpoint` or
      `resolve_checkpoint` has just done so.

  Returns:
    The checkpoint, with its tensors bit for bit as they were saved.

  Raises:
    RemovedError: If a run that trains has removed it meanwhile.
    UserError: If `path` is no checkpoint, is damaged, or is of a newer
      version.
  """
  path, tensors = pathlib.Path(path), {}
  try:
    manifest = _verify(path) if verify else store.read_manifest(path)
    if prefix is not None:
      tensors = tensor_files.read(path / STATE_FILE, prefix=prefix)
  except DamagedError as error:
    if kept := _kept_instead_of(path):
      raise RemovedError(f'{str(path)!r} {kept}') from error
    raise
  return Checkpoint(
    round_num=manifest.round,
    tensors=tensors,
    contents=manifest.contents,
    path=path,
  )


def latest_checkpoint(
  directory: str | os.PathLike,
  *,
  logged_rounds: Collection[int] | None = None,
) -> pathlib.Path | None:
  """Finds the newest undamaged checkpoint to resume from.

  Damaged ones are passed over, with a line on standard error.

  Args:
    directory: The run's `checkpoints` directory; need not exist.
    logged_rounds: Rounds with a row in metrics.csv, without which a run cannot
      continue: checkpoints of other rounds are passed over, unless that would
      leave round 0's or none. None: all are considered.

  Returns:
    The path, its SHA-256 verified; None if there is no checkpoint at all.

  Raises:
    UserError: If there are checkpoints but all are damaged, as to start again
      over them is for the user to decide; or if one is of a newer version.
  """
  rounds = list_rounds(directory)
  good = set(rounds)
  # To start from the beginning over good checkpoints is for the user to say.
  if logged_rounds is not None and good.intersection(logged_rounds) - {0}:
    good &= set(logged_rounds)
  for round_num in reversed(rounds):
    path = path_of(directory, round_num)
    problem = f'metrics.csv has no whole row for round {round_num}'
    if round_num in good:
      try:
        _verify(path)
        return path
      except DamagedError as error:
        problem = error.problem
    print(
      f'fedfish: warning: {problem}; passing over the checkpoint.',
      file=sys.stderr,
    )
  if rounds:
    raise UserError(
      f'{str(directory)!r} must hold an undamaged checkpoint to resume '
      f'from, but all {len(rounds)} are damaged. Restore one, or name another '
      '--workdir to start from the beginning.'
    )
  return None


def resolve_checkpoint(
  path: str | os.PathLike, option: str = '--checkpoint'
) -> pathlib.Path:
  """Returns the checkpoint that an option means, verified.

  A run's directory stands for its last checkpoint, never for an older one: to
  evaluate another model than the one asked for would be worse than to stop.

  Raises:
    UserError: If it is neither, or the checkpoint is damaged or of a newer
      version.
  """
  # Resolved: the run is found by the checkpoint's parents.
  named = path = pathlib.Path(path).resolve()
  if kept := _kept_instead_of(path):
    raise UserError(f'`{option}`: {str(path)!r} {kept}')
  # A corpus has a manifest, too.
  if not (path / STATE_FILE).is_file() and not store.is_round(path):
    rounds = list_rounds(path / store.CHECKPOINTS)
    if not rounds:
      raise UserError(_not_a_checkpoint(path, option))
    path = path_of(path / store.CHECKPOINTS, rounds[-1])
  try:
    _verify(path)
  except UserError as error:
    if _kept_instead_of(path):
      return resolve_checkpoint(named, option)
    raise UserError(f'`{option}`: {error}') from error
  return path


def again_if_removed(function: _Function) -> _Function:
  """Decorates a function of a run whose last checkpoint it resolves.

  A run that trains may remove that before it is read; the function is called
  again then, and takes the next one. A checkpoint that was named itself is
  refused the second time.
  """

  @functools.wraps(function)
  def call(*arguments, **options):
    while True:
      try:
        return function(*arguments, **options)
      except RemovedError:
        continue

  return call


def _verify(path):
  """Returns the manifest, once the tensor file has the sum it names."""
  manifest = store.read_manifest(path)
  if STATE_KEY not in manifest.files:
    raise DamagedError(path, f'holds no {STATE_FILE}')
  manifest.files[STATE_KEY].require_whole(path)
  return manifest


def _kept_instead_of(path):
  """Says which rounds are kept, of a run that is beyond one it lacks; or ''."""
  rounds, name = list_rounds(path.parent), path.name
  if path.exists() or not rounds or not name.startswith('round_'):
    return ''
  if name >= path_of(path.parent, rounds[-1]).name:
    return ''
  return (
    'was not kept by its run (`checkpoints.keep_last`). Name a kept one: round '
    f'{", ".join(map(str, rounds))}.'
  )


def _not_a_checkpoint(path, option):
  found = f'holds neither {STATE_FILE} nor checkpoints/round_*'
  if not path.exists():
    found = 'does not exist'
  elif (path / 'sweep.json').is_file():
    arms = sorted(arm.name for arm in path.glob('arms/*'))
    found = f'is a sweep. Its runs in arms/: {", ".join(arms) or "none yet"}'
  elif (path / 'SHA256SUMS').is_file():
    found = 'is a model that `fedfish export` wrote, without the state of a run'
  return (
    f'`{option}` must be a checkpoint (.../checkpoints/round_00000100) or '
    f'a run directory, but {str(path)!r} {found}. Name a directory that '
    '`fedfish train` wrote.'
  )
