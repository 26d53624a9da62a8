"""Finds, reads and removes checkpoints, each proved by a checksum.

`checkpoints/round_00000100/` holds `state.safetensors`, all tensors, and
`checkpoint.json`: the round, size and SHA-256 of the tensor file, name, dtype
and shape of every tensor, and what the run keeps beside them.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from typing import Any

import ml_dtypes  # noqa: F401  Lets NumPy know 'bfloat16'.
import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import UserError

SCHEMA_VERSION = 1
DESCRIPTION_FILE = 'checkpoint.json'
STATE_FILE = 'state.safetensors'
# NumPy's names of types and their codes in safetensors, in the order in which
# that library writes tensors: wide types first, so that all are aligned.
DTYPE_CODES = {
  'uint64': 'U64',
  'int64': 'I64',
  'float64': 'F64',
  'float32': 'F32',
  'uint32': 'U32',
  'int32': 'I32',
  'bfloat16': 'BF16',
  'float16': 'F16',
  'uint16': 'U16',
  'int16': 'I16',
  'int8': 'I8',
  'uint8': 'U8',
  'bool': 'BOOL',
}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}
_DIRECTORY_NAME = re.compile(r'round_(\d{8,})')


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


class DamagedError(UserError):
  """A checkpoint that is there but not as it was written.

  Attributes:
    problem: The message without what to do about it.
  """

  def __init__(self, path: pathlib.Path, what: str):
    self.problem = f'the checkpoint {str(path)!r} is damaged: {what}'
    super().__init__(f'{self.problem}. Use another checkpoint of the run.')


def path_of(directory: str | os.PathLike, round_num: int) -> pathlib.Path:
  """Returns a round's checkpoint, `directory/round_00000100`."""
  return pathlib.Path(directory) / f'round_{round_num:08d}'


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
    UserError: If `path` is no checkpoint, is damaged, or is of a newer
      version.
  """
  from safetensors import SafetensorError, safe_open

  path = pathlib.Path(path)
  description = (_verify if verify else read_description)(path)
  tensors = {}
  try:
    with safe_open(path / STATE_FILE, framework='np') as state:
      # Of all, whatever is chosen: a check that reads none finds this out.
      for name, expected in description['tensors'].items():
        found = state.get_slice(name)
        dtype = _DTYPES.get(found.get_dtype())
        found = {'dtype': dtype, 'shape': found.get_shape()}
        if found != expected:
          raise DamagedError(
            path, f'tensor {name!r} must be {expected}, but is {found}'
          )
        if prefix is not None and name.startswith(prefix):
          tensors[name] = state.get_tensor(name)
  except (SafetensorError, OSError) as error:
    raise DamagedError(
      path, f'{STATE_FILE} cannot be read ({error})'
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
    path = path_of(directory, round_num)
    problem = (
      f'metrics.csv has no whole row for round {round_num}; passing over its '
      'checkpoint'
    )
    if round_num in good:
      try:
        _verify(path)
        return path
      except DamagedError as error:
        problem = f'{error.problem}; passing over it'
    print(f'fedfish: warning: {problem}.', file=sys.stderr)
  if rounds:
    raise UserError(
      f'{str(directory)!r} must hold an undamaged checkpoint to resume '
      f'from, but all {len(rounds)} are damaged. Restore one, or remove the '
      'directory to start from the beginning.'
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
  path = pathlib.Path(path).resolve()
  if not (path / DESCRIPTION_FILE).is_file():
    rounds = list_rounds(path / 'checkpoints')
    if rounds:
      path = path_of(path / 'checkpoints', rounds[-1])
    elif not (_DIRECTORY_NAME.fullmatch(path.name) and path.is_dir()):
      raise UserError(_not_a_checkpoint(path, option))
  try:
    _verify(path)
  except UserError as error:
    raise UserError(f'`{option}`: {error}') from error
  return path


def remove_round(directory: str | os.PathLike, round_num: int) -> None:
  """Removes the directory of a round.

  Raises:
    OSError: If it cannot be.
  """
  # Renamed first: a removal that is cut short leaves no half round.
  path = path_of(directory, round_num)
  aside = tempfile.mkdtemp(dir=directory, prefix=f'.{path.name}.')
  os.replace(path, aside)
  shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(directory: str | os.PathLike) -> None:
  """Removes what killed runs left half written or half removed."""
  for leftover in pathlib.Path(directory).glob('.round_*'):
    shutil.rmtree(leftover, ignore_errors=True)


def read_description(path: pathlib.Path) -> dict[str, Any]:
  """Returns `checkpoint.json`, checked for its version and its fields."""
  file = path / DESCRIPTION_FILE
  try:
    description = files.parse_json(file.read_text(encoding='utf-8'))
    version = description['schema_version']
  except FileNotFoundError as error:
    raise DamagedError(path, f'{DESCRIPTION_FILE} is missing') from error
  except OSError as error:
    raise DamagedError(
      path, f'{DESCRIPTION_FILE} cannot be read ({error.strerror})'
    ) from error
  except (ValueError, KeyError, TypeError) as error:
    raise DamagedError(path, f'{DESCRIPTION_FILE} is not readable') from error
  if not isinstance(version, int) or version > SCHEMA_VERSION:
    raise UserError(
      f'the checkpoint {str(path)!r} has schema version {version}, but this '
      f'fedfish reads versions up to {SCHEMA_VERSION}. Use the version of '
      'fedfish that wrote it, or a newer one.'
    )
  types = {'round': int, 'state': dict, 'tensors': dict, 'contents': dict}
  if missing := types.keys() - description.keys():
    raise DamagedError(path, f'{DESCRIPTION_FILE} has no {min(missing)!r}')
  for name, expected in types.items():
    value = description[name]
    if type(value) is not expected or (
      name == 'state' and not {'num_bytes', 'sha256'} <= value.keys()
    ):
      raise DamagedError(path, f'{DESCRIPTION_FILE} has a wrong {name!r}')
  round_num = description['round']
  if path.name.startswith('round_') and path != path_of(path.parent, round_num):
    raise DamagedError(path, f'{DESCRIPTION_FILE} is of round {round_num}')
  return description


def _verify(path):
  """Returns `checkpoint.json`, once the tensor file has the sum it names."""
  description = read_description(path)
  file, expected = path / STATE_FILE, description['state']
  if not file.is_file():
    raise DamagedError(path, f'{STATE_FILE} is missing')
  what = files.difference(file, expected['num_bytes'], expected['sha256'])
  if what:
    raise DamagedError(path, f'{STATE_FILE} {what}')
  return description


def _not_a_checkpoint(path, option):
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
    f'`{option}` must be a checkpoint (.../checkpoints/round_00000100) or '
    f'a run directory, but {str(path)!r} {found}. Name a directory that '
    '`fedfish train` wrote.'
  )
