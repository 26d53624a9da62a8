"""Runs a function of a config file and says in one line what is wrong."""

import pathlib
import runpy
import traceback
from typing import Any

from tff_fedfish.errors import UserError


def call_in_file(
  path: pathlib.Path,
  function: str,
  advice: str = 'Correct the file; those in configs/ are examples.',
) -> Any:
  """Returns the ConfigDict that a function of a Python file returns.

  Args:
    path: The file, as typed after `--config`. It is run.
    function: Name of the function.
    advice: Ends the errors.

  Raises:
    UserError: If there is no such file, it does not run, or the function is
      missing or returns anything else.
  """
  from ml_collections import ConfigDict

  if not path.is_file():
    found = 'is a directory' if path.is_dir() else 'does not exist'
    raise UserError(
      f'`--config` must name a Python file, but {str(path)!r} {found}. '
      'Start from a file in configs/.'
    )
  try:
    called = runpy.run_path(str(path)).get(function)
    config_dict = called() if callable(called) else None
  except (Exception, SystemExit) as error:
    # The last frame inside the file: what the reader can change.
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == str(path)
    ]
    line = lines[-1] if lines else getattr(error, 'lineno', None)
    where = f' in line {line}' if line else ''
    raise UserError(
      f'`--config` {str(path)!r} must run without errors, but raised '
      f'{one_line(error)}{where}. {advice}'
    ) from error
  if not callable(called):
    raise UserError(
      f'`--config` {str(path)!r} must define a function `{function}()`, but '
      f'defines none. {advice}'
    )
  if not isinstance(config_dict, ConfigDict):
    raise UserError(
      f'`{function}()` in {str(path)!r} must return an '
      f'ml_collections.ConfigDict, found {type(config_dict).__name__}. '
      f'{advice}'
    )
  return config_dict


def one_line(error: BaseException) -> str:
  """Returns an exception's type and text without line breaks."""
  text = ' '.join(str(error).split())
  return f'{type(error).__name__}: {text}' if text else type(error).__name__
