"""Exceptions that the command line shows as a line; checks of arguments."""

from collections.abc import Collection, Sequence
from typing import Any


class UserError(Exception):
  """Bad arguments or bad input: one line that the user can act on.

  The message names what the user typed, what is required, what was found and
  what to do. `fedfish` prints it to standard error and exits with code 2.
  """


class UserErrors(UserError):
  """Several UserErrors that were found at once; its text has a line for each.

  Attributes:
    errors: The errors.
  """

  def __init__(self, errors: Sequence[UserError]):
    self.errors = tuple(errors)
    super().__init__('\n'.join(map(str, errors)))


class FailedError(Exception):
  """The work failed though the input was right, such as on a lost machine.

  One line again, but `fedfish` exits with code 1.
  """


def require(is_met: bool, name: str, wanted: str, value: Any) -> None:
  """Raises ValueError, naming an argument, unless what it must be is met."""
  if not is_met:
    raise ValueError(f'`{name}` must be {wanted}, found {value!r}.')


def require_one_of(name: str, value: Any, allowed: Collection[str]) -> None:
  """Raises ValueError, naming an argument, unless its value is allowed."""
  require(value in allowed, name, f'one of {", ".join(allowed)}', value)
