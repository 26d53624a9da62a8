"""The search for learning rates, on clients that no evaluation uses.

Every client has a fixed place in [0, 1) (`data/client_splits.py`). Runs of the
sweep hold out those below f = `client_splits.held_out_fraction`, 0 where the
corpus holds clients out itself. Search runs hold out those below f + v, v =
`validation_fraction`, and those from f to f + v are the validation clients: the
choice is made by them and by no others.

Where runs of the sweep score clients on their own test rows, search runs score
the same clients on their own validation rows instead.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.personalization import MIN_SEQUENCES
from tff_fedfish.evaluation.results import OWN_ROWS, Evaluation
from tff_fedfish.fields import as_declared, number, unmet_requirement
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.grid import Axis, Settings

METRICS = {
  'held-out loss': ('loss_before', min),
  'accuracy': ('accuracy_before', max),
}
"""Metrics to choose by: the field of `ClientEvaluation`, and what finds its
best value."""

# Other values of these hold out other clients, or other data.
_DECIDE_HELD_OUT = (
  'client_splits.',
  'seeds.split_seed',
  'seeds.partition_seed',
  'partition.',
)
# Settings of `data` that leave a client its rows, and their division.
_OF_NO_ROWS = ('client_batches',)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRateSearch:
  """Checked values of `learning_rate_search`."""

  axes: tuple[Axis, ...]
  """Settings that are searched, and their values."""
  num_rounds: int = number(at_least=1)
  """Rounds of every search run, >= 1."""
  metric: Literal['held-out loss', 'accuracy'] = 'held-out loss'
  """Metric of the validation clients to choose by, from `METRICS`."""
  per: tuple[Axis, ...] = ()
  """Axes of the grid; each of their points has a search of its own."""
  validation_fraction: float = number(0.1, above=0, below=1)
  """v: fraction of all clients that is set aside to choose by."""
  num_clients: int = number(at_least=0)
  """Validation clients to score, approximately. 0: all."""
  max_extensions: int = number(0, at_least=0)
  """Further values of the one setting that is searched, at most, while the best
  is the smallest or the largest one tried."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the search as sweep.json keeps it."""
    values = {'settings': grid.to_json_dict(self.axes), **vars(self)}
    del values['axes']
    return values | {'per': [axis.key for axis in self.per]}

  def group_of(self, point: Settings) -> Settings:
    """Returns the settings of `per` at a point of the grid."""
    names = [name for axis in self.per for name in axis.names]
    return {name: point[name] for name in names if name in point}

  def run_settings(
    self, arm: TrainConfig, scored_on_own_rows: Sequence[TrainConfig] = ()
  ) -> tuple[Settings, dict[str, Any]]:
    """Returns what tells a search run from an arm with its group and rates.

    Args:
      arm: Config of the arm.
      scored_on_own_rows: Configs of those arms for which it searches that are
        scored on clients' own test rows. If there are any, the search run is
        scored on their validation rows.

    Returns:
      (settings, options of the evaluation that the run is judged by).

    Raises:
      UserError: If f + v leaves nobody to train on, or clients have no
        validation rows, or others than in those arms.
    """
    cap = arm.evaluation.max_sequences_per_client
    options = {
      'fractions': (0.0,),
      'max_clients': self.num_clients or None,
      'max_sequences_per_client': max(cap, MIN_SEQUENCES) if cap else None,
    }
    settings = {
      'training.num_rounds': self.num_rounds,
      # Its sample would hold clients of the evaluations.
      'evaluation.num_clients': 0,
    }
    if scored_on_own_rows:
      validation_fraction, test_fraction = arm.row_fractions
      if not validation_fraction:
        raise UserError(
          "`learning_rate_search` scores clients' validation rows where runs "
          f'are scored on their test rows, but {arm.algorithm.name!r} has '
          'none. Set `client_splits.validation_fraction` above 0, or leave '
          'the search out.'
        )
      # Validation rows come after test rows in a client's permutation.
      for other in scored_on_own_rows:
        if other.row_fractions[1] != test_fraction:
          raise UserError(
            '`client_splits.test_fraction` must be the same for '
            f'{arm.algorithm.name!r}, with which `learning_rate_search` runs, '
            f'and for {other.algorithm.name!r}, found {test_fraction} and '
            f'{other.row_fractions[1]}. Set it in the base.'
          )
        if changed := _differing_rows(arm, other):
          raise UserError(
            f'`per` of `learning_rate_search` must hold {changed!r}, which '
            '`grid` varies: other values divide the rows of a client otherwise '
            'into those that are validated and those that runs are scored on.'
          )
      return settings, options | {'client_split': 'own_validation'}
    held_out_fraction = held_out_share(arm)
    together = held_out_fraction + self.validation_fraction
    if not together < 1:
      raise UserError(
        '`learning_rate_search` sets `validation_fraction` '
        f'{self.validation_fraction} of the clients aside besides the '
        f'`client_splits.held_out_fraction` of {held_out_fraction}, and both '
        'together must be below 1. Lower one.'
      )
    settings['client_splits.held_out_fraction'] = together
    # About so many of all below f + v are validation clients. Rounded: 24 / 0.5
    # may come out a little above 48.
    num_clients = self.num_clients / (self.validation_fraction / together)
    options['max_clients'] = math.ceil(round(num_clients, 6)) or None
    return settings, options


def _differing_rows(first: TrainConfig, second: TrainConfig) -> str | None:
  """Returns a setting by which clients have other rows, or None."""
  for field in dataclasses.fields(first.data):
    if field.name not in _OF_NO_ROWS and (
      getattr(first.data, field.name) != getattr(second.data, field.name)
    ):
      return f'data.{field.name}'
  return None


def held_out_share(config: TrainConfig) -> float:
  """Returns f; 0 where the corpus says itself who is held out."""
  return config.client_splits.held_out_fraction or 0.0


def validation_score(
  evaluation: Evaluation,
  metric: str,
  *,
  split_seed: int,
  held_out_fraction: float,
) -> tuple[float, int]:
  """Returns the mean over validation clients, and how many there are.

  Args:
    evaluation: A search run's, of all clients below f + v, or of clients'
      validation rows: then every client counts.
    metric: A key of `METRICS`. The mean is NaN if a client's loss is not
      finite.
    split_seed: Split seed of the search run and of the sweep's runs.
    held_out_fraction: f of the sweep's runs.

  Raises:
    UserError: If there is no validation client among them.
  """
  field, _ = METRICS[metric]
  if evaluation.summary['kind'] in OWN_ROWS:
    held_out_fraction = 0.0
  values = [
    # A diverged model still has an accuracy, that of its NaNs.
    getattr(client, field) if math.isfinite(client.loss_before) else math.nan
    for client in evaluation.clients
    if client.fraction == 0
    and held_out_fraction
    <= client_splits.split_position(client.client_id, split_seed=split_seed)
  ]
  if not values:
    raise UserError(
      '`learning_rate_search` found no validation client with at least 4 '
      'sequences. Raise `validation_fraction` or `num_clients`.'
    )
  return math.fsum(values) / len(values), len(values)


def choose(
  search: LearningRateSearch,
  group: Settings,
  tried: Sequence[Settings],
  scores: Sequence[float],
  num_clients: int,
) -> dict[str, Any] | None:
  """Returns the best rates for a group of settings, as sweep.json keeps them.

  Each run has tried learning rates, and has a score over the validation
  clients; the first of the best finite scores wins. 'at_edge' names settings
  whose best value may lie beyond those tried. None if no score is finite.
  """
  _, find_best = METRICS[search.metric]
  finite = [i for i, score in enumerate(scores) if math.isfinite(score)]
  if not finite:
    return None
  position = find_best(finite, key=lambda i: scores[i])
  rates, edges = tried[position], []
  for axis in search.axes:
    for name, *values in zip(axis.names, *axis.values, strict=True):
      values += [t[name] for t in tried if name in t]
      has_order = all(isinstance(value, int | float) for value in values)
      if name in rates and has_order and len(set(values)) > 1:
        edges += [name] * (rates[name] in (min(values), max(values)))
  return {
    'for': group,
    'chosen': rates,
    'metric': search.metric,
    'score': scores[position],
    'num_validation_clients': num_clients,
    'at_edge': edges,
  }


def extension(
  search: LearningRateSearch,
  tried: Sequence[Settings],
  choice: Mapping[str, Any],
) -> Settings | None:
  """Returns the next value beyond the edge at which the best one tried lies.

  It is as far from the best one, as a ratio, as that from its neighbour. None
  if the best one is not at an edge, or there were `max_extensions`.
  """
  num_given = math.prod(len(axis.values) for axis in search.axes)
  if not choice['at_edge'] or len(tried) - num_given >= search.max_extensions:
    return None
  [name] = choice['at_edge']
  best = choice['chosen'][name]
  others = [t[name] for t in tried if t[name] != best]
  neighbour = min(others, key=lambda value: abs(math.log(value / best)))
  # A ratio of neighbours such as 0.003 / 0.0015 leaves a last bit too many.
  return {name: float(f'{best * best / neighbour:.6g}')}


def choice_line(search: LearningRateSearch, choice: Mapping[str, Any]) -> str:
  """Returns a choice as a line to print."""
  group_name = grid.run_name(search.per, choice['for']) or 'all runs'
  rates = ', '.join(f'{name} {rate}' for name, rate in choice['chosen'].items())
  edges = ', '.join(choice['at_edge'])
  return (
    f'Chosen for {group_name}: {rates} ({search.metric} '
    f'{choice["score"]:.4f} over {choice["num_validation_clients"]} validation '
    'clients).'
  ) + (
    f' At the edge of what was tried: {edges}; a better value may lie beyond.'
    if edges
    else ''
  )


def parse_search(
  value: Any, axes: Sequence[Axis], base: TrainConfig, problems: list[str]
) -> LearningRateSearch | None:
  """Returns the `learning_rate_search` of a sweep file; None if it has none.

  Its keys `per` are of the grid with these axes, and the base has the default
  of `num_clients`. Adds a clause to `problems` for each problem.
  """
  if value is None:
    return None
  if not isinstance(value, Mapping):
    problems.append(
      f'`learning_rate_search` must be a dictionary, found {value!r}'
    )
    return None
  # The file's name of `axes` is 'settings'.
  _, *fields = dataclasses.fields(LearningRateSearch)
  names = ['settings', *(field.name for field in fields)]
  found = [
    f'{key!r} is unknown; known are {", ".join(names)}'
    for key in value
    if key not in names
  ]
  required = ('settings', 'num_rounds')
  found += [f'{key!r} is required' for key in required if key not in value]
  value = {'num_rounds': 1, 'num_clients': base.evaluation.num_clients, **value}
  search_axes, scalars = (), {}
  if 'settings' in value:
    search_axes = grid.parse_grid(value['settings'], found, 'settings')
  for field in fields:
    if (name := field.name) != 'per':
      scalars[name] = as_declared(value.get(name, field.default), field)
      if wanted := unmet_requirement(scalars[name], field):
        found.append(f'`{name}` must be {wanted}, found {value[name]!r}')
  if not found and scalars['max_extensions']:
    _require_extensible(search_axes, found)
  keys = value.get('per', ())
  if not isinstance(keys, list | tuple):
    found.append(f'`per` must be a list of settings, found {keys!r}')
    keys = ()
  names_of = {axis: (axis.key, *axis.names) for axis in axes}
  known = ', '.join(repr(axis.key) for axis in axes)
  found += [
    f'`per` must name keys of `grid` ({known}), found {key!r}'
    for key in keys
    if not any(key in names for names in names_of.values())
  ]
  per = tuple(axis for axis in axes if any(n in keys for n in names_of[axis]))
  _require_apart(search_axes, per, axes, found)
  problems += [f'`learning_rate_search`: {problem}' for problem in found]
  if found:
    return None
  return LearningRateSearch(axes=search_axes, per=per, **scalars)


def _require_extensible(search_axes, problems):
  values = [v for axis in search_axes for row in axis.values for v in row]
  names = [name for axis in search_axes for name in axis.names]
  if (
    len(names) != 1
    or len(values) < 2
    or not all(isinstance(v, int | float) and v > 0 for v in values)
  ):
    problems.append(
      '`max_extensions` requires `settings` with one setting and at least two '
      f'numbers above 0, found {", ".join(names)} with {values}'
    )


def _require_apart(search_axes, per, axes, problems):
  """Finds settings that the grid and the search both set, or confuse."""
  searched = {name for axis in search_axes for name in axis.names}
  for axis in axes:
    both = [name for name in axis.names if name in searched]
    if both:
      problems.append(f'{both[0]!r} must not be in `grid`, too')
    splits = [name for name in axis.names if name.startswith(_DECIDE_HELD_OUT)]
    if splits and axis not in per:
      problems.append(
        f'`per` must hold {splits[0]!r}, which `grid` varies: a search for '
        'all its values would see what some of the runs hold out'
      )
  problems += [
    f'`settings` must not search {name!r}'
    for name in sorted(searched)
    if name == 'training.num_rounds' or name.startswith(_DECIDE_HELD_OUT)
  ]
