"""Which runs had equal rounds, and which equal compute.

Dhawan et al. (2024), FedFish, compare local epochs E in both ways: for R rounds
each, and for R E_reference / E rounds, so that all clients compute as much.
"""

import dataclasses
from collections.abc import Sequence

from tff_fedfish.reporting.runs import Run

FIXED_COMPUTE = 'fixed compute'
FIXED_ROUNDS = 'fixed rounds'
PAPER_LOCAL_EPOCHS = 4
"""E of Table 3 whose rows are equal in both columns: the paper's reference."""


@dataclasses.dataclass(frozen=True)
class Budgets:
  """The budgets of runs that differ in method, local epochs and rounds.

  Attributes:
    num_rounds: R: rounds under 'fixed rounds', and those of the reference.
    local_epochs: E_reference: R rounds with it are the compute that runs under
      'fixed compute' share.
    names: Those of the two under which there is more than the reference.
  """

  num_rounds: int
  local_epochs: int | float
  names: tuple[str, ...]

  def holds(self, name: str, run: Run) -> bool:
    """Returns whether a run keeps to a budget.

    Args:
      name: `FIXED_COMPUTE` or `FIXED_ROUNDS`.
      run: A run with local epochs and rounds.
    """
    return _holds(name, *_shape(run), self.local_epochs, self.num_rounds)


def find_budgets(runs: Sequence[Run]) -> Budgets | None:
  """Returns the budgets that explain most of the runs.

  Args:
    runs: Runs that differ in method, local epochs and rounds only.

  Returns:
    Budgets whose reference is one of the runs: where several explain as many,
    one with the paper's local epochs, else with the fewest, then the most
    rounds. None if no run says its local epochs and rounds.
  """
  shapes = {
    _shape(run)
    for run in runs
    if run.num_local_epochs is not None and run.num_rounds is not None
  }
  if not shapes:
    return None

  def num_explained(reference):
    return sum(
      any(
        _holds(name, *s, *reference) for name in (FIXED_COMPUTE, FIXED_ROUNDS)
      )
      for s in shapes
    )

  epochs, num_rounds = min(
    shapes,
    key=lambda s: (-num_explained(s), s[0] != PAPER_LOCAL_EPOCHS, s[0], -s[1]),
  )
  names = tuple(
    name
    for name in (FIXED_COMPUTE, FIXED_ROUNDS)
    if any(
      s[0] != epochs and _holds(name, *s, epochs, num_rounds) for s in shapes
    )
  )
  return Budgets(num_rounds, epochs, names or (FIXED_ROUNDS,))


def _shape(run):
  return run.num_local_epochs, run.num_rounds


def _holds(name, local_epochs, num_rounds, reference_epochs, reference_rounds):
  if name == FIXED_ROUNDS:
    return num_rounds == reference_rounds
  return num_rounds * local_epochs == reference_rounds * reference_epochs
