"""Private names of Ray that the engine needs.

They are used here only; docs/upgrading.md says what to look for when a version
moves them.
"""

from collections.abc import Callable
from typing import Any


def mute(ray: Any) -> Callable[[], None]:
  """Keeps Ray's report of a lost worker, a screenful, off standard output.

  The public setting, `log_to_driver`, does not reach these reports.

  Args:
    ray: The module, which takes a second to import.

  Returns:
    A function that undoes it: the program may use Ray itself afterwards.
  """
  module, name = ray._private.worker, 'print_to_stdstream'
  if not hasattr(module, name):
    return lambda: None
  own = getattr(module, name)
  setattr(module, name, lambda *_, **__: None)
  return lambda: setattr(module, name, own)
