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

_BUDGETS = (FIXED_COMPUTE, FIXED_ROUNDS)


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
  names: tuple[str, ...] = (FIXED_ROUNDS,)

  def holds(self, name: str, run: Run) -> bool:
    """Returns whether a run keeps to `FIXED_COMPUTE` or `FIXED_ROUNDS`."""
    shape = run.num_local_epochs, run.num_rounds
    return None not in shape and self._holds(name, *shape)

  def _holds(self, name, epochs, num_rounds):
    if name == FIXED_ROUNDS:
      return num_rounds == self.num_rounds
    return num_rounds * epochs == self.num_rounds * self.local_epochs


def find_budgets(runs: Sequence[Run]) -> Budgets | None:
  """Returns the budgets that explain most of the runs.

  Args:
    runs: Runs that differ in method, local epochs and rounds only.

  Returns:
    Budgets whose reference is one of the runs: where several explain as many,
    one with the paper's local epochs, else with the fewest, then the most
    rounds. None if no run says its local epochs and rounds.
  """
  shapes = {(run.num_local_epochs, run.num_rounds) for run in runs}
  shapes = {shape for shape in shapes if None not in shape}
  if not shapes:
    return None

  def rank(shape):
    epochs, num_rounds = shape
    reference = Budgets(num_rounds, epochs)
    explained = [
      s for s in shapes if any(reference._holds(b, *s) for b in _BUDGETS)
    ]
    is_papers = epochs == PAPER_LOCAL_EPOCHS
    return -len(explained), not is_papers, epochs, -num_rounds

  epochs, num_rounds = min(shapes, key=rank)
  reference = Budgets(num_rounds, epochs)
  others = [shape for shape in shapes if shape[0] != epochs]
  names = tuple(
    name
    for name in _BUDGETS
    if any(reference._holds(name, *shape) for shape in others)
  )
  return dataclasses.replace(reference, names=names) if names else reference
