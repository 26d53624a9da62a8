"""How many rounds a run of a sweep has: as many as others, or equal compute."""

import collections

from tff_fedfish.errors import UserError
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.sweep_file import SweepFile

_LOCAL_EPOCHS = 'client_work.num_local_epochs'


def rounds_by_budget(
  file: SweepFile, point: Settings
) -> dict[int, tuple[str, ...]]:
  """Returns the rounds of a point of the grid, with the budgets they satisfy.

  'fixed_rounds': R, the base's rounds, whatever the local epochs E.
  'fixed_compute': R E_reference / E rounds, so that every run takes as many
  local steps. Where both coincide, one run serves both.

  Raises:
    UserError: If E is no count, or R E_reference is no multiple of it.
  """
  num_local_epochs = point.get(
    _LOCAL_EPOCHS, file.base.client_work.num_local_epochs
  )
  if type(num_local_epochs) is not int or num_local_epochs < 1:
    raise UserError(
      f'`grid` must give {_LOCAL_EPOCHS!r} ints of at least 1, found '
      f'{num_local_epochs!r}.'
    )
  base_rounds = file.base.training.num_rounds
  total = base_rounds * file.reference_local_epochs
  budgets_of = collections.defaultdict(tuple)
  for budget in file.budgets:
    num_rounds, rest = base_rounds, 0
    if budget == 'fixed_compute':
      num_rounds, rest = divmod(total, num_local_epochs)
    if rest:
      raise UserError(
        f"`budget` 'fixed_compute' needs rounds x local epochs of the base, "
        f'{base_rounds} x {file.reference_local_epochs} = {total}, to be a '
        f'multiple of every `client_work.num_local_epochs`, but '
        f'{num_local_epochs} does not divide {total}. Choose another '
        '`training.num_rounds`.'
      )
    budgets_of[num_rounds] += (budget,)
  return budgets_of
