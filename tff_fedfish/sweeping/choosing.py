"""What a search for learning rates comes to, from the files of its runs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.sweeping import names, selection, sweep_jobs
from tff_fedfish.sweeping.arms import SearchRun
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.job import Job
from tff_fedfish.sweeping.learning_rates import LearningRateSearch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
  """The outcome of one search."""

  scores: tuple[float | None, ...]
  """Score of each run; None: not finite, or diverged."""
  rates: Settings | None
  """What is chosen; None: no score is finite."""
  score: float | None
  """Its score."""
  num_clients: int
  """Validation clients, the same in all runs."""

  def to_json_dict(
    self, search: LearningRateSearch, group: Settings
  ) -> dict[str, Any]:
    """Returns the outcome as sweep.json keeps it."""
    return {
      'for': group,
      'chosen': self.rates,
      'metric': search.metric,
      'score': self.score,
      'num_validation_clients': self.num_clients,
      'at_edge': selection.at_edge(search.axes, self.rates),
    }

  def line(self, search: LearningRateSearch, group: Settings) -> str:
    """Returns the outcome as a line."""
    group_name = names.run_name(search.per, group) or 'all runs'
    rates = ', '.join(f'{name} {value}' for name, value in self.rates.items())
    line = (
      f'Chosen for {group_name}: {rates} ({search.metric} {self.score:.4f} '
      f'over {self.num_clients} validation clients).'
    )
    edges = selection.at_edge(search.axes, self.rates)
    if edges:
      line += (
        f' At the edge of what was tried: {", ".join(edges)}; a better value '
        'may lie beyond.'
      )
    return line


def choose_rates(
  search: LearningRateSearch, runs: Sequence[tuple[SearchRun, Job]]
) -> Choice:
  """Chooses among the finished runs of one search.

  Args:
    search: The search.
    runs: Its runs of one group.

  Raises:
    UserError: If an evaluation cannot be read, or holds no validation client.
  """
  results = []
  for run, job in runs:
    evaluation = read_evaluation(sweep_jobs.search_evaluation(job))
    score, num_clients = selection.validation_score(
      evaluation.clients,
      search.metric,
      split_seed=run.config.seeds.split_seed,
      held_out_fraction=run.held_out_fraction,
    )
    # The score would be that of the last good checkpoint.
    results.append(
      (math.nan if job.diverged_checkpoint() else score, num_clients)
    )
  scores = [score for score, _ in results]
  best = selection.choose(scores, search.metric)
  return Choice(
    scores=tuple(s if math.isfinite(s) else None for s in scores),
    rates=None if best is None else runs[best][0].rates,
    score=None if best is None else scores[best],
    num_clients=results[0][1],
  )
