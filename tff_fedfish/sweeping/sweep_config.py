"""What a sweep is told: `get_sweep()` as checked values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import budgets, evaluations, grid
from tff_fedfish.sweeping.evaluations import EvaluationRequest
from tff_fedfish.sweeping.grid import Axis
from tff_fedfish.sweeping.learning_rates import (
  LearningRateSearch,
  parse_search,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig:
  """Everything of a sweep but its base config."""

  axes: tuple[Axis, ...]
  """The grid."""
  budgets: tuple[str, ...]
  """Of `budgets.BUDGETS`."""
  reference_local_epochs: int
  """Local epochs with which the base's rounds cost the fixed compute."""
  search: LearningRateSearch | None
  evaluations: tuple[EvaluationRequest, ...]
  """What follows every run's training."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns it as sweep.json keeps it."""
    return {
      'grid': grid.to_json_dict(self.axes),
      'budget': list(self.budgets),
      'reference_local_epochs': self.reference_local_epochs,
      'learning_rate_search': (
        None if self.search is None else self.search.to_json_dict()
      ),
      'evaluate': [request.to_json_dict() for request in self.evaluations],
    }


def parse_sweep(
  values: Mapping[str, Any], base: TrainConfig, source: str
) -> SweepConfig:
  """Checks what `get_sweep()` returned.

  Args:
    values: By name; only `grid` is required.
    base: The base config.
    source: The sweep file; named in errors.

  Returns:
    The sweep.

  Raises:
    UserError: Naming all that is wrong.
  """
  names = {
    'grid',
    'budget',
    'reference_local_epochs',
    'learning_rate_search',
    'evaluate',
  }
  problems = [
    f'`{name}` is unknown; known are {", ".join(sorted(names))}'
    for name in sorted(map(str, values))
    if name not in names
  ]
  axes = grid.parse_grid(values.get('grid'), problems)
  grid.require_fair(axes, problems)
  reference = values.get(
    'reference_local_epochs', base.client_work.num_local_epochs
  )
  if type(reference) is not int or reference < 1:
    problems.append(
      f'`reference_local_epochs` must be an int of at least 1, found '
      f'{reference!r}'
    )
  sweep = SweepConfig(
    axes=axes,
    budgets=budgets.parse_budgets(
      values.get('budget', 'fixed_rounds'), problems
    ),
    reference_local_epochs=reference,
    search=parse_search(
      values.get('learning_rate_search'), axes, base, problems
    ),
    evaluations=evaluations.parse_evaluations(
      values.get('evaluate', ()), problems
    ),
  )
  if problems:
    raise UserError(f'Invalid sweep {source}: {"; ".join(problems)}.')
  return sweep
