"""The search for learning rates, which never sees a client of the evaluations.

Every client has a fixed place in [0, 1) (`data/client_splits.py`), and clients
below f = `client_splits.held_out_fraction` are held out. A search run holds out
clients below f + v, v = `validation_fraction`. Clients between f and f + v are
the validation clients: the search does not train on them and uses only them to
choose. Clients below f are the sweep's test clients: the search neither trains
on them nor uses them to choose. In the runs of the sweep validation clients
take part in training like all others that are not held out. Where a corpus
holds clients out itself, f is 0: a search run leaves those aside altogether.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.personalization import MIN_SEQUENCES
from tff_fedfish.evaluation.results import ClientEvaluation
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.evaluations import EvaluationRequest
from tff_fedfish.sweeping.grid import Axis, Settings

METRICS = {'held-out loss': min, 'accuracy': max}
"""Metrics to choose by, each with the function that finds its best value."""

_REQUIRED = ('settings', 'num_rounds')
_KEYS = (*_REQUIRED, 'metric', 'per', 'validation_fraction', 'num_clients')
# Other values of these hold out other clients, or other data.
_DECIDE_HELD_OUT = (
  'client_splits.held_out_fraction',
  'seeds.split_seed',
  'seeds.partition_seed',
  'partition.',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRateSearch:
  """Checked values of `learning_rate_search`."""

  axes: tuple[Axis, ...]
  """Settings that are searched, and their values."""
  per: tuple[Axis, ...]
  """Axes of the grid; each of their points has a search of its own."""
  num_rounds: int
  """Rounds of every search run, >= 1."""
  metric: str
  """Metric of the validation clients to choose by, from `METRICS`."""
  validation_fraction: float
  """v: fraction of all clients that is set aside to choose by."""
  num_clients: int
  """Validation clients to score, approximately. 0: all."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the search as sweep.json keeps it."""
    return {
      'settings': grid.to_json_dict(self.axes),
      'num_rounds': self.num_rounds,
      'metric': self.metric,
      'per': [axis.key for axis in self.per],
      'validation_fraction': self.validation_fraction,
      'num_clients': self.num_clients,
    }

  def group_of(self, point: Settings) -> Settings:
    """Returns the settings of `per` at a point of the grid."""
    names = [name for axis in self.per for name in axis.names]
    return {name: point[name] for name in names if name in point}

  def run_settings(self, base: TrainConfig) -> Settings:
    """Returns the settings that tell a search run from a run of the sweep.

    Args:
      base: The config with the settings of the search's group.

    Raises:
      UserError: If f + v leaves nobody to train on.
    """
    held_out_fraction = held_out_share(base)
    together = held_out_fraction + self.validation_fraction
    if not together < 1:
      raise UserError(
        '`learning_rate_search` sets `validation_fraction` '
        f'{self.validation_fraction} of the clients aside besides the '
        f'`client_splits.held_out_fraction` of {held_out_fraction}, and both '
        'together must be below 1. Lower one.'
      )
    return {
      'training.num_rounds': self.num_rounds,
      'client_splits.held_out_fraction': together,
      # Its sample would hold clients of the evaluations.
      'evaluation.num_clients': 0,
    }

  def evaluation(self, base: TrainConfig) -> EvaluationRequest:
    """Returns the evaluation that a search run is judged by."""
    cap = base.evaluation.max_sequences_per_client
    options = {
      'fractions': (0.0,),
      'max_clients': self.max_clients(held_out_share(base)),
      'max_sequences_per_client': max(cap, MIN_SEQUENCES) if cap else None,
    }
    return EvaluationRequest(name='validation', options=options)

  def max_clients(self, held_out_fraction: float) -> int | None:
    """Returns how many clients below f + v to score for `num_clients`."""
    if not self.num_clients:
      return None
    together = held_out_fraction + self.validation_fraction
    # Rounded: 24 / 0.5 may come out a little above 48.
    return math.ceil(
      round(self.num_clients / (self.validation_fraction / together), 6)
    )


def held_out_share(config: TrainConfig) -> float:
  """Returns f; 0 where the corpus says itself who is held out."""
  return config.client_splits.held_out_fraction or 0.0


def validation_score(
  clients: Iterable[ClientEvaluation],
  metric: str,
  *,
  split_seed: int,
  held_out_fraction: float,
) -> tuple[float, int]:
  """Returns the mean over validation clients, and how many there are.

  Args:
    clients: Rows of a search run's evaluation, for all clients below f + v.
    metric: A key of `METRICS`.
    split_seed: Split seed of the search run and of the sweep's runs.
    held_out_fraction: f of the sweep's runs.

  Returns:
    (mean, number of clients). The mean is NaN if a client's loss is not finite.

  Raises:
    UserError: If there is no validation client among them.
  """
  values = [
    _value(client, metric)
    for client in clients
    if client.fraction == 0
    and not client_splits.is_held_out(
      client.client_id,
      split_seed=split_seed,
      held_out_fraction=held_out_fraction,
    )
  ]
  if not values:
    raise UserError(
      '`learning_rate_search` found no validation client with at least 4 '
      'sequences. Raise `validation_fraction` or `num_clients`.'
    )
  return math.fsum(values) / len(values), len(values)


def best(scores: Sequence[float], metric: str) -> int | None:
  """Returns the position of the best finite score, the first of equal ones."""
  finite = [i for i, score in enumerate(scores) if math.isfinite(score)]
  return METRICS[metric](finite, key=lambda i: scores[i], default=None)


def choice_line(search: LearningRateSearch, choice: Mapping[str, Any]) -> str:
  """Returns a choice, an entry of sweep.json, as a line to print."""
  group_name = grid.run_name(search.per, choice['for']) or 'all runs'
  rates = ', '.join(f'{name} {rate}' for name, rate in choice['chosen'].items())
  line = (
    f'Chosen for {group_name}: {rates} ({search.metric} '
    f'{choice["score"]:.4f} over {choice["num_validation_clients"]} validation '
    'clients).'
  )
  if choice['at_edge']:
    line += (
      f' At the edge of what was tried: {", ".join(choice["at_edge"])}; a '
      'better value may lie beyond.'
    )
  return line


def at_edge(axes: Iterable[Axis], rates: Settings) -> list[str]:
  """Returns the settings whose best value may lie beyond those tried.

  Args:
    axes: Axes that were searched.
    rates: The choice, without axes that the method does not read.
  """
  edges = []
  for axis in axes:
    columns = zip(*axis.values, strict=True)
    for name, tried in zip(axis.names, columns, strict=True):
      has_order = all(isinstance(value, int | float) for value in tried)
      if name in rates and has_order and len(set(tried)) > 1:
        edges += [name] if rates[name] in (min(tried), max(tried)) else []
  return edges


def parse_search(
  value: Any, axes: Sequence[Axis], base: TrainConfig, problems: list[str]
) -> LearningRateSearch | None:
  """Returns the `learning_rate_search` of a sweep file; None if it has none.

  Adds a clause to `problems` for each problem.

  Args:
    value: A dictionary, or None.
    axes: Axes of the grid.
    base: The base config; it has the default of `num_clients`.
    problems: Clauses so far.
  """
  if value is None:
    return None
  name = '`learning_rate_search`'
  if not isinstance(value, Mapping):
    problems.append(f'{name} must be a dictionary, found {value!r}')
    return None
  found = [
    f'{key!r} is unknown; known are {", ".join(_KEYS)}'
    for key in value
    if key not in _KEYS
  ]
  found += [f'{key!r} is required' for key in _REQUIRED if key not in value]
  value = {
    'num_rounds': 1,
    'metric': 'held-out loss',
    'per': (),
    'validation_fraction': 0.1,
    'num_clients': base.evaluation.num_clients,
    **value,
  }
  search_axes = ()
  if 'settings' in value:
    search_axes = grid.parse_grid(value['settings'], found, 'settings')
  if value['metric'] not in tuple(METRICS):
    found.append(
      f'`metric` must be {" or ".join(map(repr, METRICS))}, found '
      f'{value["metric"]!r}'
    )
  for key, least in (('num_rounds', 1), ('num_clients', 0)):
    if type(value[key]) is not int or value[key] < least:
      found.append(
        f'`{key}` must be an int of at least {least}, found {value[key]!r}'
      )
  fraction = value['validation_fraction']
  if not isinstance(fraction, float) or not 0 < fraction < 1:
    found.append(
      '`validation_fraction` must be a number between 0 and 1, found '
      f'{fraction!r}'
    )
  per = _parse_per(value['per'], axes, found)
  _require_apart(search_axes, per, axes, found)
  problems += [f'{name}: {problem}' for problem in found]
  if found:
    return None
  scalars = {key: value[key] for key in _KEYS if key not in ('settings', 'per')}
  return LearningRateSearch(axes=search_axes, per=per, **scalars)


def _value(client, metric):
  # A diverged model still has an accuracy, that of its NaNs.
  if not math.isfinite(client.loss_before):
    return math.nan
  is_accuracy = metric == 'accuracy'
  return client.accuracy_before if is_accuracy else client.loss_before


def _parse_per(value, axes, problems):
  """Returns the axes of the grid that `per` names."""
  if not isinstance(value, list | tuple):
    problems.append(f'`per` must be a list of settings, found {value!r}')
    return ()
  names_of = {axis: (axis.key, *axis.names) for axis in axes}
  keys = ', '.join(repr(axis.key) for axis in axes)
  problems += [
    f'`per` must name keys of `grid` ({keys}), found {key!r}'
    for key in value
    if not any(key in names for names in names_of.values())
  ]
  return tuple(
    axis
    for axis, names in names_of.items()
    if any(name in value for name in names)
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
