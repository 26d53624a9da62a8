"""Arms of one study: which method, local epochs and rounds belong together.

Dhawan et al. (2024), FedFish, compare local epochs E for R rounds each, and for
R E_reference / E rounds, so that all clients compute as much: two budgets.
"""

from collections.abc import Sequence

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.match import Arm


def studies(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
  """Returns arms that differ in method, local epochs and rounds only.

  Lists are in the order of the arms, by what tells them from the other lists,
  such as 'partition.alpha = 0.1'; '' for a single one.
  """
  groups = keys.grouped(arms, lambda arm: keys.study_key(arm.first))
  labels = keys.differing_labels(list(groups))
  return dict(zip(labels, groups.values(), strict=True))


def methods(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
  """Returns the arms of one of `studies` by the method's name.

  Arms of equal algorithm are one method where they differ in local epochs or
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


def budgets(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
  """Returns arms of one of `studies` that have as much to train with.

  Each list has at least two numbers of local epochs, and is named '60 rounds'
  or '240 local epochs in all'. An arm may be in one of either kind.
  """
  arms = [arm for arm in arms if arm.num_local_epochs]
  by_rounds = keys.grouped(arms, lambda arm: f'{arm.num_rounds:,} rounds')
  by_compute = keys.grouped(
    arms,
    lambda arm: (
      f'{arm.num_rounds * arm.num_local_epochs:,} local epochs in all'
    ),
  )
  return {
    name: members
    for name, members in (by_rounds | by_compute).items()
    if len({arm.num_local_epochs for arm in members}) > 1
  }
