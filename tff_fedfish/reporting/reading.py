"""Reads JSON files of a run; a damaged one is named with its line."""

import json
import math
import pathlib
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.files import parse_json


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
  """Returns the JSON object in `path`.

  Args:
    path: A UTF-8 JSON file.

  Returns:
    The object. `NaN` and infinities, which Python writes, are accepted.

  Raises:
    UserError: If the file cannot be read or holds no JSON object.
  """
  try:
    value = parse_json(_read_text(path))
  except json.JSONDecodeError as error:
    raise UserError(
      f'{str(path)!r}, line {error.lineno}, must be JSON, but found '
      f'{error.msg!r}. Restore the file, or leave this run out.'
    ) from error
  except ValueError as error:
    raise UserError(
      f'{str(path)!r} must be JSON of a run, but cannot be parsed ({error}). '
      'Restore the file, or leave this run out.'
    ) from error
  if not isinstance(value, dict):
    raise UserError(
      f'{str(path)!r} must hold a JSON object, but found a '
      f'{type(value).__name__}. Restore the file, or leave this run out.'
    )
  return value


def is_finite(value: float | None) -> bool:
  """Returns whether `value` is there and is neither NaN nor infinite."""
  return value is not None and math.isfinite(value)


def _read_text(path):
  try:
    data = path.read_bytes()
  except OSError as error:
    raise UserError(
      f'{str(path)!r} must be readable, but is not ({error.strerror}). '
      'Change its permissions, or leave this run out.'
    ) from error
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError as error:
    line = data.count(b'\n', 0, error.start) + 1
    raise UserError(
      f'{str(path)!r}, line {line}, must be UTF-8 text, but is not. Restore '
      'the file, or leave this run out.'
    ) from error
