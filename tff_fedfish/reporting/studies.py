"""Arms of one study: which method, local epochs and rounds belong together.

Dhawan et al. (2024), FedFish, compare local epochs E for R rounds each, and for
R E_reference / E rounds, so that all clients compute as much: two budgets.
"""

import dataclasses
from collections.abc import Sequence

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.match import Arm

FIXED_COMPUTE = 'fixed compute'
FIXED_ROUNDS = 'fixed rounds'
_BUDGETS = (FIXED_COMPUTE, FIXED_ROUNDS)
REFERENCE_LOCAL_EPOCHS = 4
"""E of Table 3 of Dhawan et al. (2024) whose rows are equal in both columns."""


@dataclasses.dataclass(frozen=True)
class Budgets:
  """The budgets of arms that differ in method, local epochs and rounds."""

  num_rounds: int
  """R: rounds under 'fixed rounds', and those of the reference."""
  local_epochs: int | float
  """E_reference: R rounds with it are the compute that arms under 'fixed
  compute' share."""
  names: tuple[str, ...] = (FIXED_ROUNDS,)
  """Budgets under which there is more than the reference."""

  def holds(self, name: str, arm: Arm) -> bool:
    """Returns whether an arm keeps to `FIXED_COMPUTE` or `FIXED_ROUNDS`."""
    epochs, num_rounds = arm.num_local_epochs, arm.num_rounds
    if None in (epochs, num_rounds):
      return False
    if name == FIXED_ROUNDS:
      return num_rounds == self.num_rounds
    return num_rounds * epochs == self.num_rounds * self.local_epochs


def studies(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
  """Returns arms that differ in method, local epochs and rounds only.

  Lists are in the order of the arms, by what tells them from the other lists,
  such as 'partition.alpha = 0.1'; '' for a single one.
  """
  groups = keys.grouped(arms, lambda arm: keys.study_key(arm.first))
  labels = keys.differing_labels(list(map(dict, groups)))
  return dict(zip(labels, groups.values(), strict=True))


def methods(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
  """Returns the arms of one of `studies` by the method's name.

  Runs of equal algorithm are one method where they differ in local epochs or
  rounds: learning rates, and over how many rounds they change, may have been
  chosen for each of these. Otherwise they make methods of their own.
  """

  def without_rates(arm):
    key = keys.method_key(arm.first)
    return tuple(pair for pair in key if pair[0] not in keys.RATES)

  lines: dict[keys.Key, list[Arm]] = {}
  for coarse, members in keys.grouped(arms, without_rates).items():
    shapes = {(arm.num_local_epochs, arm.num_rounds) for arm in members}
    for arm in members:
      is_one = len(shapes) == len(members)
      key = coarse if is_one else keys.method_key(arm.first)
      lines.setdefault(key, []).append(arm)
  names = keys.method_names(list(lines))
  return dict(zip(names, lines.values(), strict=True))


def find_budgets(arms: Sequence[Arm]) -> Budgets | None:
  """Returns the budgets that explain most of the arms of one of `studies`.

  Their reference is one of the arms: where several explain as many, one with
  the paper's local epochs, else with the fewest, then the most rounds. None if
  no arm says its local epochs and rounds.
  """
  by_shape = {(arm.num_local_epochs, arm.num_rounds): arm for arm in arms}
  shapes = [shape for shape in by_shape if None not in shape]
  if not shapes:
    return None

  def rank(shape):
    epochs, num_rounds = shape
    reference = Budgets(num_rounds, epochs)
    num_explained = sum(
      any(reference.holds(name, arm) for name in _BUDGETS)
      for arm in by_shape.values()
    )
    return -num_explained, epochs != REFERENCE_LOCAL_EPOCHS, epochs, -num_rounds

  epochs, num_rounds = min(shapes, key=rank)
  reference = Budgets(num_rounds, epochs)
  others = [arm for arm in arms if arm.num_local_epochs != epochs]
  names = tuple(
    n for n in _BUDGETS if any(reference.holds(n, arm) for arm in others)
  )
  return dataclasses.replace(reference, names=names) if names else reference
