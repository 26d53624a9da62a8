"""The files of one checkpoint: writing, checking, and naming what is wrong."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import UserError

_SCHEMA_VERSION = 1
DESCRIPTION_FILE = 'checkpoint.json'
STATE_FILE = 'state.safetensors'


class DamagedError(UserError):
  """A checkpoint that is there but not as it was written.

  Args:
    path: The checkpoint's directory.
    what: What is wrong.

  Attributes:
    problem: The message without what to do about it.
  """

  def __init__(self, path: pathlib.Path, what: str):
    self.problem = f'the checkpoint {str(path)!r} is damaged: {what}'
    super().__init__(f'{self.problem}. Use another checkpoint of the run.')


def read_description(path: pathlib.Path) -> dict[str, Any]:
  """Returns `checkpoint.json`, checked for its version and its fields."""
  file = path / DESCRIPTION_FILE
  try:
    description = json.loads(file.read_text(encoding='utf-8'))
    version = description['schema_version']
  except FileNotFoundError as error:
    raise DamagedError(path, f'{DESCRIPTION_FILE} is missing') from error
  except OSError as error:
    raise DamagedError(
      path, f'{DESCRIPTION_FILE} cannot be read ({error.strerror})'
    ) from error
  except (ValueError, KeyError, TypeError) as error:
    raise DamagedError(path, f'{DESCRIPTION_FILE} is not readable') from error
  if not isinstance(version, int) or version > _SCHEMA_VERSION:
    raise UserError(
      f'the checkpoint {str(path)!r} has schema version {version}, but this '
      f'fedfish reads versions up to {_SCHEMA_VERSION}. Use the version of '
      'fedfish that wrote it, or a newer one.'
    )
  missing = {'round', 'state', 'tensors', 'contents'} - set(description)
  if missing:
    raise DamagedError(path, f'{DESCRIPTION_FILE} has no {min(missing)!r}')
  for name, is_right in (
    ('round', type(description['round']) is int),
    ('state', {'num_bytes', 'sha256'} <= _keys(description['state'])),
    ('tensors', isinstance(description['tensors'], dict)),
    ('contents', isinstance(description['contents'], dict)),
  ):
    if not is_right:
      raise DamagedError(path, f'{DESCRIPTION_FILE} has a wrong {name!r}')
  if path.name.startswith('round_') and path.name != _name(description):
    raise DamagedError(
      path, f'{DESCRIPTION_FILE} is of round {description["round"]}'
    )
  return description


def _keys(value: Any) -> set[str]:
  return set(value) if isinstance(value, dict) else set()


def _name(description: Mapping[str, Any]) -> str:
  return f'round_{description["round"]:08d}'


def verify(path: pathlib.Path) -> dict[str, Any]:
  """Returns `checkpoint.json`, once the tensor file has the sum it names."""
  description = read_description(path)
  file = path / STATE_FILE
  if not file.is_file():
    raise DamagedError(path, f'{STATE_FILE} is missing')
  expected = description['state']
  num_bytes = file.stat().st_size
  if num_bytes != expected['num_bytes']:
    raise DamagedError(
      path,
      f'{STATE_FILE} must have {expected["num_bytes"]} bytes, but has '
      f'{num_bytes}',
    )
  with open(file, 'rb') as stream:
    found = hashlib.file_digest(stream, 'sha256').hexdigest()
  if found != expected['sha256']:
    raise DamagedError(
      path,
      f'{STATE_FILE} must have SHA-256 {expected["sha256"]}, but has {found}',
    )
  return description


def write(
  path: pathlib.Path,
  description: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
) -> None:
  """Writes both files into an existing directory, synced to disk."""
  from safetensors.numpy import save_file

  file = path / STATE_FILE
  save_file(dict(arrays), file)
  with open(file, 'rb') as stream:
    os.fsync(stream.fileno())
    state = {
      'num_bytes': os.fstat(stream.fileno()).st_size,
      'sha256': hashlib.file_digest(stream, 'sha256').hexdigest(),
    }
  files.write_json(
    path / DESCRIPTION_FILE,
    {'schema_version': _SCHEMA_VERSION, 'state': state, **description},
  )
  # The tensor writer makes files that only their owner can read.
  shutil.copymode(path / DESCRIPTION_FILE, file)


@contextlib.contextmanager
def replace_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Like `files.write_directory_atomically`, synced, and `path` may exist."""
  aside = None
  try:
    with files.write_directory_atomically(path) as temporary:
      yield temporary
      _sync_directory(temporary)
      if path.exists():
        aside = tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}.')
        os.replace(path, aside)
  except BaseException:
    if aside and not path.exists():
      os.replace(aside, path)
    raise
  _sync_directory(path.parent)
  if aside:
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def naming_failures(path: pathlib.Path) -> Iterator[None]:
  """Turns failures to write into an `OSError` that names the checkpoint."""
  from safetensors import SafetensorError

  try:
    yield
  except (OSError, SafetensorError) as error:
    code = getattr(error, 'errno', None)
    if code is None:
      # The tensor writer tells the system's error number only in its words.
      match = re.search(r'os error (\d+)', str(error))
      code = int(match[1]) if match else errno.EIO
    raise OSError(
      code,
      f'{os.strerror(code)}; the checkpoint was not written, and nothing of '
      'it is left',
      str(path),
    ) from error


def _sync_directory(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
