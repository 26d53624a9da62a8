"""The final score of each method by local epochs, under each budget."""

import dataclasses
from collections.abc import Sequence

from tff_fedfish.reporting import matching
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.fixed_budgets import find_budgets
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import MARKERS, RunStyle


@dataclasses.dataclass(frozen=True)
class Trend:
  """One method under one budget.

  Attributes:
    method: Its name, with what tells its variants apart.
    budget: `FIXED_ROUNDS` or `FIXED_COMPUTE`.
    look: Of the first run.
    marker: One per method.
    scores: Local epochs -> fraction of the client's data -> final score.
  """

  method: str
  budget: str
  look: RunStyle
  marker: str
  scores: dict[int | float, dict[float, Interval]]


def find_trends(
  runs: Sequence[Run], styles: dict[str, RunStyle], measure: str
) -> list[Trend]:
  """Returns the final scores of each method under each budget.

  Args:
    runs: Runs that differ in method, local epochs and rounds only.
    styles: Their looks, by label.
    measure: 'loss' or 'accuracy'.

  Returns:
    Trends with a score. Only evaluations of a run's last planned round count.
  """
  budgets = find_budgets(runs)
  if budgets is None:
    return []
  trends = []
  for index, (name, own) in enumerate(matching.methods(runs)):
    for budget in budgets.names:
      scores: dict[int | float, dict[float, Interval]] = {}
      for run in sorted(own, key=lambda r: r.num_local_epochs or 0):
        if (
          run.num_local_epochs is not None
          and run.num_rounds is not None
          and budgets.holds(budget, run)
          and (found := _final_scores(run, measure))
        ):
          # Of equal runs the first, as in the tables.
          scores.setdefault(run.num_local_epochs, found)
      if scores:
        marker = MARKERS[index % len(MARKERS)]
        look = styles[own[0].label]
        trends.append(Trend(name, budget, look, marker, scores))
  return trends


def _final_scores(run, measure):
  evaluation = run.final_evaluation()
  return {
    fraction: interval
    for fraction, score in (evaluation.fractions if evaluation else {}).items()
    if (interval := getattr(score, measure))
  }
