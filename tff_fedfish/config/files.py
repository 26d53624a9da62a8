"""Finds a config file, runs a function of it, says in a line what is wrong."""

import ast
import pathlib
import runpy
import traceback
from typing import Any

from tff_fedfish.errors import UserError

SHIPPED = pathlib.Path(__file__).resolve().parents[2] / 'configs'
"""The directory of the shipped configs; an installation has it, too."""


def shipped_configs() -> dict[str, str]:
  """Returns the first line of each shipped config's docstring, by name."""
  return {
    path.stem: ast.get_docstring(ast.parse(path.read_text('utf-8'))).partition(
      '\n'
    )[0]
    for path in sorted(SHIPPED.glob('*.py'))
    if path.stem != '__init__'
  }


def find_config(typed: str | pathlib.Path) -> pathlib.Path:
  """Returns the file that `--config` names: that file, or a shipped config.

  Args:
    typed: A path, or the name of a shipped config; a file of that name wins.

  Raises:
    UserError: If there is neither.
  """
  path = pathlib.Path(typed)
  if path.is_file():
    return path
  shipped = SHIPPED / f'{path}.py'
  if shipped.parent == SHIPPED and str(path) in shipped_configs():
    return shipped
  found = 'is a directory' if path.is_dir() else 'does not exist'
  raise UserError(
    '`--config` must name a Python file or a shipped config, but '
    f'{str(path)!r} {found}. The shipped ones are '
    f'{", ".join(shipped_configs())}.'
  )


def call_in_file(
  path: pathlib.Path,
  function: str,
  advice: str = 'Correct the file; `fedfish configs` lists examples.',
) -> Any:
  """Returns the ConfigDict that a function of a Python file returns.

  Args:
    path: The file or the name, as typed after `--config`. The file is run.
    function: Name of the function.
    advice: Ends the errors.

  Raises:
    UserError: If there is no such file, it does not run, or the function is
      missing or returns anything else.
  """
  from ml_collections import ConfigDict

  path = find_config(path)
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
