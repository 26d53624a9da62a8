"""Which checkpoints of a run are kept, and the removal of the others."""

import os
from collections.abc import Collection

from tff_fedfish.errors import require
from tff_fedfish.run import checkpoints


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
    keep_last: Number of the newest to keep beside round 0's, >= 1; 0 keeps all.
    keep_every_num_rounds: Multiples of it are kept too, >= 1; 0: none. Like
      `keep_rounds` they do count where they are among the newest.
    current_round: The round that the run has just saved. Later checkpoints,
      which it passed over as damaged when it resumed, are removed: counted
      as the newest, they would push out those that can be loaded. None: no
      checkpoint counts as later.
    keep_rounds: Further rounds to keep.

  Returns:
    The rounds whose checkpoints were removed, ascending.

  Raises:
    ValueError: If a number to keep is negative.
    OSError: If a checkpoint cannot be removed.
  """
  require_keep_rules(keep_last, keep_every_num_rounds)
  rounds = checkpoints.list_rounds(directory)
  last = max(rounds, default=0) if current_round is None else current_round
  old = [r for r in rounds if 0 < r <= last]
  old = old[:-keep_last] if keep_last else []
  if keep_every_num_rounds:
    old = [r for r in old if r % keep_every_num_rounds]
  removed = [r for r in old if r not in keep_rounds]
  removed += [r for r in rounds if r > last]
  for round_num in removed:
    checkpoints.remove_round(directory, round_num)
  checkpoints.remove_leftovers(directory)
  return removed


def require_keep_rules(keep_last: int, keep_every_num_rounds: int) -> None:
  """Raises ValueError if a rule of `remove_old_checkpoints` is negative."""
  for name, value in (
    ('keep_last', keep_last),
    ('keep_every_num_rounds', keep_every_num_rounds),
  ):
    require(value >= 0, name, 'at least 0', value)
