"""Calls a user's own functions: a key of records, and a filter."""

import contextlib
import hashlib
import importlib
import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pipelines.source import OBJECT, Drop, RawRecord
from tff_fedfish.errors import UserError


class OwnFunction:
  """A function of records in an importable module."""

  def __init__(self, option: str, name: str):
    """Imports the function.

    Args:
      option: The option that names it, such as 'filter'.
      name: Its module and its own name, such as 'my_module.keep'.

    Raises:
      UserError: If it cannot be imported.
    """
    self._shown = f'`--{option}` {name!r}'
    self._module, _, own_name = name.rpartition('.')
    self._function = self._import(self._module, own_name)

  def key(self, record: RawRecord, num: int | str, file: str) -> bytes:
    """Returns the group id of a record.

    Args:
      record: The record.
      num: Its number in its file, for errors.
      file: The file's name, for errors.

    Raises:
      Drop: no_key for None, empty_key for nothing but white space, or
        unpaired_surrogate.
      UserError: If the function raises, or returns something else.
    """
    key = self._call(record, num, file)
    if key is None:
      raise Drop('no_key')
    if not isinstance(key, str):
      raise self._wrong('text or None', key, num, file)
    if not key.strip():
      raise Drop('empty_key')
    try:
      return key.encode()
    except UnicodeEncodeError as error:
      raise Drop('unpaired_surrogate') from error

  def require_kept(self, record: RawRecord, num: int | str, file: str) -> None:
    """Raises the `Drop` filtered unless the function returns True.

    Args:
      record: The record.
      num: Its number in its file, for errors.
      file: The file's name, for errors.

    Raises:
      Drop: filtered.
      UserError: If the function raises, or returns something else.
    """
    is_kept = self._call(record, num, file)
    # NumPy has a type of its own.
    if type(is_kept).__name__ not in ('bool', 'bool_'):
      raise self._wrong('True or False', is_kept, num, file)
    if not is_kept:
      raise Drop('filtered')

  @property
  def source_digest(self) -> str:
    """The SHA-256 of the file that holds the function."""
    path = getattr(sys.modules[self._module], '__file__', None)
    data = pathlib.Path(path).read_bytes() if path else b''
    return hashlib.sha256(data).hexdigest()

  def _import(self, module_name: str, name: str) -> Callable[[dict], Any]:
    # An installed `fedfish` does not look there by itself, as `python -m` does.
    if not {'', os.getcwd()} & set(sys.path):
      sys.path.append(os.getcwd())
    try:
      # What a module prints is no part of a command's answer.
      with contextlib.redirect_stdout(sys.stderr):
        function = getattr(importlib.import_module(module_name), name)
      if not callable(function):
        raise TypeError(f'{name} is no function')
    except (Exception, SystemExit) as error:
      raise UserError(
        f'{self._shown} must name a function in an importable module, such as '
        f'my_module.key, but importing it raised {_one_line(error)}. Correct '
        'it, start `fedfish` in the directory that holds the module, or put '
        'that on PYTHONPATH.'
      ) from error
    return function

  def _call(self, record: RawRecord, num: int | str, file: str) -> Any:
    try:
      return self._function(dict(record.get(OBJECT, record)))
    except (Exception, SystemExit) as error:
      # The first frame is this one.
      frame = traceback.extract_tb(error.__traceback__, 2)[-1]
      raise UserError(
        f'{self._shown} must accept every record, but raised '
        f'{_one_line(error)} for record {num} of {file!r} (line '
        f'{frame.lineno} of {frame.filename!r}). Correct it.'
      ) from error

  def _wrong(
    self, wanted: str, value: Any, num: int | str, file: str
  ) -> UserError:
    return UserError(
      f'{self._shown} must return {wanted}, but returned a value of type '
      f'{type(value).__name__} for record {num} of {file!r}. Correct it.'
    )


def _one_line(error: BaseException) -> str:
  return ' '.join(f'{type(error).__name__}: {error}'.split()).rstrip('.')
