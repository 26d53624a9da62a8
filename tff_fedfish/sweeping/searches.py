"""Searches of a sweep as far as they are: their runs, scores and best rates."""

import dataclasses
import math
from collections.abc import Sequence

from tff_fedfish.config import names
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import Evaluation, read_evaluation
from tff_fedfish.fields import ConfigError
from tff_fedfish.sweeping import expand, grid
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.search import LearningRateSearch
from tff_fedfish.sweeping.sweep_file import SweepFile

# By metric: the field of `ClientEvaluation`, and what finds its best value.
_METRICS = {
  'held-out loss': ('loss_before', min),
  'accuracy': ('accuracy_before', max),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
  """The search for a group of settings, as the files of its runs say."""

  search: LearningRateSearch
  group: Settings
  runs: Sequence[Run]
  """All runs so far. Empty: the method reads nothing of what is searched."""
  scores: Sequence[float] = ()
  """Mean of each run's metric over validation clients; NaN after divergence.
  Empty until all runs are done."""
  num_clients: int = 0
  """Validation clients."""

  @property
  def best(self) -> int | None:
    """Position of the first of the best finite scores, if there is any."""
    finite = [i for i, score in enumerate(self.scores) if math.isfinite(score)]
    _, find_best = _METRICS[self.search.metric]
    return find_best(finite, key=self.scores.__getitem__, default=None)

  @property
  def rates(self) -> Settings:
    """The best rates; {} if there are none."""
    return {} if self.best is None else self.runs[self.best].rates

  @property
  def edges(self) -> list[str]:
    """Settings whose best value is the smallest or the largest one tried."""
    edges = []
    for name, rate in self.rates.items():
      values = {r.rates[name] for r in self.runs if name in r.rates}
      has_order = all(isinstance(value, int | float) for value in values)
      if has_order and len(values) > 1 and rate in (min(values), max(values)):
        edges.append(name)
    return edges

  @property
  def extension(self) -> Settings | None:
    """The next value beyond the edge; None: the best one is not at an edge.

    It is as far from the best one, as a ratio, as that from its neighbour.
    There are at most `max_extensions`.
    """
    num_given = math.prod(len(axis.values) for axis in self.search.settings)
    num_further = len(self.runs) - num_given
    if not self.edges or num_further >= self.search.max_extensions:
      return None
    [(name, best)] = self.rates.items()
    others = {run.rates[name] for run in self.runs} - {best}
    neighbour = min(others, key=lambda value: abs(math.log(value / best)))
    # A ratio of neighbours such as 0.003 / 0.0015 leaves a last bit too many.
    further = float(f'{best * best / neighbour:.6g}')
    field = names.fields_of(None).get(name) or names.field_of_any(name)
    if field.type is int:
      further = int(further)
    is_new = further > 0 and further not in (best, *others)
    return {name: further} if is_new else None

  @property
  def problem(self) -> str:
    """The obstacle to a choice; '' if there is none, or no choice is needed."""
    for run in self.runs:
      if not run.is_done():
        # To choose among the others would compare with other rates later.
        return f'the run {run.name} did not end well'
    is_chosen = self.best is not None or not self.runs
    return '' if is_chosen else 'no run of its search has a finite score'

  def line(self) -> str:
    """Returns the choice as a line to print."""
    name = grid.run_name(self.search.per, self.group) or 'all runs'
    rates = ', '.join(f'{name} {rate}' for name, rate in self.rates.items())
    edges = ', '.join(self.edges)
    return (
      f'Chosen for {name}: {rates} ({self.search.metric} '
      f'{self.scores[self.best]:.4f} over {self.num_clients} validation '
      f'clients).{f" At the edge of the values tried: {edges}." * bool(edges)}'
    )


def read_searches(file: SweepFile, arms: Sequence[Run]) -> list[Search]:
  """Returns all searches of a sweep, from the files of their runs.

  A search whose runs are done goes on beyond an edge by one run. `arms` are the
  sweep's, with the base's rates.

  Raises:
    UserError: If a search cannot be run, nobody is left to choose by, or an
      evaluation cannot be read.
  """
  searches = []
  for group in expand.search_groups(file):
    runs = expand.expand_search(file, group, arms)
    search = Search(search=file.search, group=group, runs=runs)
    while search.runs and all(run.is_done() for run in search.runs):
      search = _scored(file, search)
      rates = search.extension
      if rates is None:
        break
      try:
        further = expand.search_run(file, group, rates, arms)
      except ConfigError:
        # Beyond a bound of the setting.
        break
      runs = [*search.runs, further]
      search = Search(search=file.search, group=group, runs=runs)
    searches.append(search)
  tried = [run.rates for search in searches for run in search.runs]
  expand.require_searched(file, tried)
  return searches


def arms_with_rates(
  file: SweepFile, arms: Sequence[Run], searches: Sequence[Search]
) -> tuple[list[Run], dict[str, list[Run]]]:
  """Returns the arms with the rates that searches chose for them.

  Returns:
    (arms that can run, arms that have no rates by the problem).
  """
  ready, waiting = [], {}
  for arm in arms:
    [*found] = (s for s in searches if s.group == s.search.group_of(arm.point))
    if found and found[0].problem:
      waiting.setdefault(found[0].problem, []).append(arm)
      continue
    rates = found[0].rates if found else {}
    ready.append(expand.with_rates(file, arm, rates) if rates else arm)
  return ready, waiting


def validation_score(evaluation: Evaluation, metric: str) -> tuple[float, int]:
  """Returns the mean over validation clients, and how many there are.

  Args:
    evaluation: A search run's, of validation clients or rows.
    metric: As `LearningRateSearch.metric`. The mean is NaN if a client's loss
      is not finite.

  Raises:
    UserError: If there is none.
  """
  field, _ = _METRICS[metric]
  values = [
    # A diverged model still has an accuracy, that of its NaNs.
    getattr(client, field) if math.isfinite(client.loss_before) else math.nan
    for client in evaluation.clients.itertuples()
    if client.fraction == 0
  ]
  if not values:
    raise UserError(
      '`learning_rate_search` found no validation client with at least 4 '
      'sequences. Raise `validation_fraction` or `num_clients`.'
    )
  return math.fsum(values) / len(values), len(values)


def _scored(file: SweepFile, search: Search) -> Search:
  """Returns a search whose runs are done with their scores."""
  scores, num_clients = [], 0
  for run in search.runs:
    [output] = run.evaluations
    score, num_clients = validation_score(
      read_evaluation(output), file.search.metric
    )
    # A diverged run has the score of its last good checkpoint.
    scores.append(math.nan if run.diverged_checkpoint() else score)
  return dataclasses.replace(search, scores=scores, num_clients=num_clients)
