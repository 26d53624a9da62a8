"""Checkpoints: the tensors of the server state, with a sum that proves them.

`checkpoints/round_00000100/` holds `state.safetensors`, all tensors, and
`checkpoint.json`: the round, size and SHA-256 of the tensor file, name, dtype
and shape of every tensor, and what the caller wants to keep beside them. The
directory is written under a temporary name (with a leading dot), synced to
disk and renamed last, so a directory of that name is complete.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  Lets NumPy know 'bfloat16'.
import numpy as np

from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoint_files

_DIRECTORY_NAME = re.compile(r'round_(\d{8,})')
_DTYPES = {code: dtype for dtype, code in checkpoint_files.DTYPE_CODES.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """Contents of one checkpoint."""

  round_num: int
  """Rounds that the state has seen; 0 is the state before training."""
  tensors: dict[str, np.ndarray]
  """The chosen tensors by name, in the order in which they were saved."""
  contents: dict[str, Any]
  """Values that the caller of `save_checkpoint` kept beside the tensors."""
  path: pathlib.Path
  """The checkpoint's directory."""


def save_checkpoint(
  directory: str | os.PathLike,
  round_num: int,
  tensors: Mapping[str, np.ndarray],
  contents: Mapping[str, Any],
  *,
  before_chunk: Callable[[], None] = lambda: None,
) -> pathlib.Path:
  """Writes the checkpoint of a round; it appears whole or not at all.

  Args:
    directory: The run's `checkpoints` directory; created when absent.
    round_num: Rounds that the state has seen, >= 0. A checkpoint that already
      stands at this round is replaced: it is one that a resumed run found
      damaged, or the same.
    tensors: Arrays by name: booleans, integers of 8 to 64 bits, float16,
      bfloat16 (of ml_dtypes), float32 or float64, of any shape.
    contents: Facts to keep beside them, such as those of the model; JSON
      values only.
    before_chunk: Called before every 64 MiB, or less, of tensors; what it
      raises ends the write, which then leaves nothing.

  Returns:
    The checkpoint's path, `directory/round_XXXXXXXX`.

  Raises:
    ValueError: If `round_num` is negative.
    TypeError: If a tensor is of another type, or `contents` not JSON.
    OSError: If it cannot be written, such as on a full disk; names the path.
  """
  if round_num < 0:
    raise ValueError(f'`round_num` must be at least 0, found {round_num}.')
  arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
  dtypes = checkpoint_files.DTYPE_CODES
  for name, array in arrays.items():
    if array.dtype.name not in dtypes:
      raise TypeError(
        f'Tensor {name!r} must be of a type that a checkpoint can hold '
        f'({", ".join(sorted(dtypes))}), found {array.dtype.name}.'
      )
  description = {
    'round': round_num,
    'tensors': {
      name: {'dtype': array.dtype.name, 'shape': list(array.shape)}
      for name, array in arrays.items()
    },
    'contents': json.loads(json.dumps(dict(contents))),
  }
  path = pathlib.Path(directory) / checkpoint_files.name_of(round_num)
  with checkpoint_files.replace_directory(path) as temporary:
    checkpoint_files.write(temporary, description, arrays, before_chunk)
  return path


def load_checkpoint(
  path: str | os.PathLike,
  names: str | Collection[str] | None = None,
  *,
  verify: bool = True,
) -> Checkpoint:
  """Reads a checkpoint, or some of its tensors.

  Args:
    path: The checkpoint's directory.
    names: A prefix or a collection of exact names: only these tensors are
      read into memory. None: all.
    verify: Whether to check the tensor file against its SHA-256 first, which
      reads all of it. False where `latest_checkpoint` or
      `resolve_checkpoint` has just done so.

  Returns:
    The checkpoint, with its tensors bit for bit as they were saved.

  Raises:
    UserError: If `path` is no checkpoint, is damaged, or is of a newer
      version.
    KeyError: If an exact name is not in the checkpoint.
  """
  from safetensors import SafetensorError, safe_open

  path = pathlib.Path(path)
  read = checkpoint_files.read_description
  description = (checkpoint_files.verify if verify else read)(path)
  chosen = list(description['tensors'])
  if isinstance(names, str):
    chosen = [name for name in chosen if name.startswith(names)]
  elif names is not None:
    missing = sorted(set(names) - set(chosen))
    if missing:
      raise KeyError(f'{str(path)!r} holds no tensor {missing[0]!r}.')
    chosen = [name for name in chosen if name in set(names)]
  try:
    with safe_open(path / checkpoint_files.STATE_FILE, framework='np') as state:
      # Of all, whatever is chosen: a check that reads none finds this out.
      for name, expected in description['tensors'].items():
        found = state.get_slice(name)
        dtype = _DTYPES.get(found.get_dtype())
        found = {'dtype': dtype, 'shape': found.get_shape()}
        if found != expected:
          raise checkpoint_files.DamagedError(
            path, f'tensor {name!r} must be {expected}, but is {found}'
          )
      tensors = {name: state.get_tensor(name) for name in chosen}
  except (SafetensorError, OSError) as error:
    raise checkpoint_files.DamagedError(
      path, f'{checkpoint_files.STATE_FILE} cannot be read ({error})'
    ) from error
  return Checkpoint(
    round_num=description['round'],
    tensors=tensors,
    contents=description['contents'],
    path=path,
  )


def list_rounds(directory: str | os.PathLike) -> list[int]:
  """Returns the rounds that have a checkpoint in `directory`, ascending.

  Temporary directories do not count; an absent directory has no rounds.
  """
  names = (path.name for path in pathlib.Path(directory).glob('round_*'))
  matches = map(_DIRECTORY_NAME.fullmatch, names)
  return sorted(int(match[1]) for match in matches if match)


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
  directory = pathlib.Path(directory)
  rounds = list_rounds(directory)
  good = set(rounds)
  # To start from the beginning over good checkpoints is for the user to say.
  if logged_rounds is not None and good.intersection(logged_rounds) - {0}:
    good &= set(logged_rounds)
  for round_num in reversed(rounds):
    path = directory / checkpoint_files.name_of(round_num)
    if round_num not in good:
      print(
        'fedfish: warning: metrics.csv has no whole row for round '
        f'{round_num}; passing over its checkpoint.',
        file=sys.stderr,
      )
      continue
    try:
      checkpoint_files.verify(path)
    except checkpoint_files.DamagedError as error:
      line = f'fedfish: warning: {error.problem}; passing over it.'
      print(line, file=sys.stderr)
      continue
    return path
  if rounds:
    raise UserError(
      f'{str(directory)!r} must hold an undamaged checkpoint to resume '
      f'from, but all {len(rounds)} are damaged. Restore one, or remove the '
      'directory to start from the beginning.'
    )
  return None


def resolve_checkpoint(path: str | os.PathLike) -> pathlib.Path:
  """Returns the checkpoint that `--checkpoint` means, verified.

  Unlike `latest_checkpoint` it never falls back to an older checkpoint: to
  evaluate another model than the one asked for would be worse than to stop.

  Args:
    path: A checkpoint's directory, or a run's, which stands for its last.

  Raises:
    UserError: If it is neither, or the checkpoint is damaged or of a newer
      version.
  """
  # Resolved: the run is found by the checkpoint's parents.
  path = pathlib.Path(path).resolve()
  if not (path / checkpoint_files.DESCRIPTION_FILE).is_file():
    rounds = list_rounds(path / 'checkpoints')
    if rounds:
      path = path / 'checkpoints' / checkpoint_files.name_of(rounds[-1])
    elif not (_DIRECTORY_NAME.fullmatch(path.name) and path.is_dir()):
      raise UserError(_not_a_checkpoint(path))
  try:
    checkpoint_files.verify(path)
  except UserError as error:
    raise UserError(f'`--checkpoint`: {error}') from error
  return path


def remove_old_checkpoints(
  directory: str | os.PathLike,
  keep_last: int,
  *,
  keep_every_num_rounds: int = 0,
  current_round: int | None = None,
  keep_rounds: Collection[int] = (),
) -> list[int]:
  """Removes all but the last checkpoints, and what a killed run left.

  Args:
    directory: The run's `checkpoints` directory.
    keep_last: How many of the newest to keep beside round 0's, >= 1; 0 keeps
      all.
    keep_every_num_rounds: Rounds that it divides are kept too, >= 1; they do
      count where they are among the newest. 0: none.
    current_round: The round that the run has just saved. Later checkpoints,
      which it passed over as damaged when it resumed, are removed: counted
      as the newest, they would push out those that can be loaded. None: no
      checkpoint counts as later.
    keep_rounds: Further rounds to keep, which do count where they are among
      the newest.

  Returns:
    The rounds whose checkpoints were removed, ascending.

  Raises:
    ValueError: If a number to keep is negative.
    OSError: If a checkpoint cannot be removed.
  """
  require_keep_rules(keep_last, keep_every_num_rounds)
  directory = pathlib.Path(directory)
  rounds = list_rounds(directory)
  last = max(rounds, default=0) if current_round is None else current_round
  later = [r for r in rounds if r > last]
  old = [r for r in rounds if 0 < r <= last]
  old = old[:-keep_last] if keep_last else []
  if keep_every_num_rounds:
    old = [r for r in old if r % keep_every_num_rounds]
  removed = [r for r in old if r not in keep_rounds] + later
  for round_num in removed:
    # Renamed first: a removal that is cut short leaves no half checkpoint.
    path = directory / checkpoint_files.name_of(round_num)
    os.replace(path, tempfile.mkdtemp(dir=directory, prefix=f'.{path.name}.'))
  remove_leftovers(directory)
  return removed


def require_keep_rules(keep_last: int, keep_every_num_rounds: int) -> None:
  """Raises ValueError if a rule of `remove_old_checkpoints` is negative."""
  for name, value in (
    ('keep_last', keep_last),
    ('keep_every_num_rounds', keep_every_num_rounds),
  ):
    if value < 0:
      raise ValueError(f'`{name}` must be at least 0, found {value}.')


def remove_leftovers(directory: str | os.PathLike) -> None:
  """Removes what killed runs left half written or half removed.

  Args:
    directory: The run's `checkpoints` directory; need not exist. Nobody may
      be writing a checkpoint there.
  """
  for leftover in pathlib.Path(directory).glob('.round_*'):
    shutil.rmtree(leftover, ignore_errors=True)


def _not_a_checkpoint(path: pathlib.Path) -> str:
  if not path.exists():
    found = 'does not exist'
  elif not path.is_dir():
    found = 'is a file'
  elif (path / 'SHA256SUMS').is_file():
    # An export has a config.json, too.
    found = 'is a model that `fedfish export` wrote, without the state of a run'
  elif (path / 'config.json').is_file():
    found = 'is a run without a checkpoint so far'
  else:
    found = 'holds neither checkpoint.json nor checkpoints/round_*'
  return (
    '`--checkpoint` must be a checkpoint (.../checkpoints/round_00000100) or '
    f'a run directory, but {str(path)!r} {found}. Name a directory that '
    '`fedfish train` wrote.'
  )
