"""How long the runs of a sweep last.

'fixed_rounds': R, the base's rounds, whatever the local epochs E.
'fixed_compute': R E constant, so that every run takes as many local steps:
R E_reference / E rounds.
"""

from collections.abc import Sequence
from typing import Any

from tff_fedfish.errors import UserError

BUDGETS = ('fixed_rounds', 'fixed_compute')


def parse_budgets(value: Any, problems: list[str]) -> tuple[str, ...]:
  """Returns the budgets that a sweep file names, in the order of `BUDGETS`.

  Args:
    value: One of them, or a list.
    problems: Receives a clause if it is neither.
  """
  names = [value] if isinstance(value, str) else value
  if (
    not isinstance(names, list | tuple)
    or not names
    or any(name not in BUDGETS for name in names)
  ):
    problems.append(
      f'`budget` must be {" or ".join(map(repr, BUDGETS))}, or a list of '
      f'them, found {value!r}'
    )
    return ()
  return tuple(name for name in BUDGETS if name in names)


def rounds_by_budget(
  budgets: Sequence[str],
  *,
  base_rounds: int,
  reference_local_epochs: int,
  num_local_epochs: int,
) -> dict[int, tuple[str, ...]]:
  """Returns how many rounds a run lasts under each budget.

  Args:
    budgets: Of `BUDGETS`.
    base_rounds: R, `training.num_rounds` of the base.
    reference_local_epochs: E_reference: R rounds with it cost what every run
      under 'fixed_compute' costs.
    num_local_epochs: E of the run.

  Returns:
    Number of rounds -> the budgets that it satisfies; where two coincide, one
    run serves both.

  Raises:
    UserError: If R E_reference is no multiple of E.
  """
  budgets_of = {}
  for budget in budgets:
    num_rounds = base_rounds
    if budget == 'fixed_compute':
      total = base_rounds * reference_local_epochs
      num_rounds, rest = divmod(total, num_local_epochs)
      if rest:
        raise UserError(
          f"`budget` 'fixed_compute' needs rounds x local epochs of the base, "
          f'{base_rounds} x {reference_local_epochs} = {total}, to be a '
          f'multiple of every `client_work.num_local_epochs`, but '
          f'{num_local_epochs} does not divide {total}. Choose another '
          '`training.num_rounds`.'
        )
    budgets_of.setdefault(num_rounds, []).append(budget)
  return {rounds: tuple(names) for rounds, names in budgets_of.items()}
