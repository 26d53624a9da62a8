"""Checks of the arguments of public functions."""

from collections.abc import Collection
from typing import Any


def require(is_met: bool, name: str, wanted: str, value: Any) -> None:
  """Raises ValueError, naming an argument, unless what it must be is met."""
  if not is_met:
    raise ValueError(f'`{name}` must be {wanted}, found {value!r}.')


def require_one_of(name: str, value: Any, allowed: Collection[str]) -> None:
  """Raises ValueError, naming an argument, unless its value is allowed."""
  require(value in allowed, name, f'one of {", ".join(allowed)}', value)
