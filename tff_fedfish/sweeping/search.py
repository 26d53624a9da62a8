"""The search for learning rates, on clients or rows that no evaluation uses.

Every client has a fixed place in [0, 1) (`data/client_splits.py`). Arms, the
runs that are compared, hold out clients below f =
`client_splits.held_out_fraction` (0 where the corpus holds clients out itself).
Search runs hold out clients below f + v, v = `validation_fraction`. Those from
f to f + v are the validation clients, and only they decide.

Where arms score clients on their own test rows, search runs score the same
clients on their own validation rows instead.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.options import MIN_SEQUENCES
from tff_fedfish.fields import as_declared, number, unmet_requirement
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.grid import Axis, Settings

# Other values of these hold out other clients, or other data.
_DECIDE_HELD_OUT = (
  'client_splits.',
  'seeds.split_seed',
  'seeds.partition_seed',
  'partition.',
)
# A search run trains for all its rounds, and its last checkpoint is scored.
_NOT_IN_A_SEARCH = {
  'training.patience': None,
  'checkpoints.keep_best': False,
  'client_splits.validation_clients_fraction': 0.0,
}
# Settings of `data` that leave a client its rows, and their division.
_OF_NO_ROWS = ('client_batches',)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRateSearch:
  """Checked values of `learning_rate_search`."""

  settings: tuple[Axis, ...]
  """Settings that are searched, and their values."""
  num_rounds: int = number(at_least=1)
  """Rounds of every search run."""
  metric: Literal['held-out loss', 'accuracy'] = 'held-out loss'
  """Metric to choose by."""
  per: tuple[Axis, ...] = ()
  """Axes of the grid; each of their points has a search of its own."""
  validation_fraction: float = number(0.1, above=0, below=1)
  """v: fraction of all clients that is set aside to choose by."""
  num_clients: int | None = number(None, at_least=0)
  """Validation clients to score, at most. 0: all. None: the base's
  `evaluation.num_clients`."""
  max_extensions: int = number(0, at_least=0)
  """Maximum number of further values of the one setting that is searched, while
  the best is the smallest or the largest one tried."""

  def group_of(self, point: Settings) -> Settings:
    """Returns the settings of `per` at a point of the grid."""
    names = [name for axis in self.per for name in axis.names]
    return {name: point[name] for name in names if name in point}


def search_settings(
  search: LearningRateSearch,
  base: TrainConfig,
  scored_on_own_rows: Sequence[TrainConfig],
) -> tuple[Settings, dict[str, Any]]:
  """Returns what tells a search run from an arm.

  Args:
    search: The search.
    base: Config of an arm with the settings that are tried.
    scored_on_own_rows: Configs of the arms that the search chooses for and
      that score clients on their own test rows. If there are any, the search
      run is scored on validation rows.

  Returns:
    (settings, options of the evaluation that decides).

  Raises:
    UserError: If f + v leaves nobody to train on, clients have no validation
      rows, or arms divide rows otherwise.
  """
  cap = base.evaluation.max_sequences_per_client
  num_clients = search.num_clients
  if num_clients is None:
    num_clients = base.evaluation.num_clients
  settings = {
    'training.num_rounds': search.num_rounds,
    # The sample in training would hold clients of the evaluations.
    'evaluation.num_clients': 0,
    **_NOT_IN_A_SEARCH,
  }
  options = {
    'fractions': (0.0,),
    'max_clients': num_clients or None,
    'max_sequences_per_client': max(cap, MIN_SEQUENCES) if cap else None,
  }
  if scored_on_own_rows:
    _require_validation_rows(base, scored_on_own_rows)
    return settings, options | {'client_split': 'own_validation'}
  # None: the corpus says itself who is held out, and they are left aside.
  held_out = base.client_splits.held_out_fraction or 0.0
  validation = search.validation_fraction
  together = held_out + validation
  if not together < 1:
    raise UserError(
      f'`learning_rate_search` sets `validation_fraction` {validation} of the '
      'clients aside besides the `client_splits.held_out_fraction` of '
      f'{held_out}, and both together must be below 1. Lower one.'
    )
  settings['client_splits.held_out_fraction'] = together
  return settings, options | {'held_out_from': held_out}


def parse_search(value: Any, axes: Sequence[Axis]) -> LearningRateSearch | None:
  """Returns the `learning_rate_search` of a sweep file; None if it has none.

  Args:
    value: As the file gives it.
    axes: Axes of the grid.

  Raises:
    ValueError: Naming what is wrong with it.
  """
  if value is None:
    return None
  try:
    search = _parse(value, axes)
    _require_apart(search, axes)
    return search
  except ValueError as error:
    raise ValueError(f'`learning_rate_search`: {error}') from error


def _parse(value: Any, axes: Sequence[Axis]) -> LearningRateSearch:
  fields = grid.fields_of(LearningRateSearch, value)
  values = {'settings': grid.parse_grid(value.get('settings'), 'settings')}
  for name, field in fields.items():
    if name in ('settings', 'per'):
      continue
    given = as_declared(value.get(name, field.default), field)
    if given is dataclasses.MISSING:
      raise ValueError(f'{name!r} is required')
    if wanted := unmet_requirement(given, field):
      raise ValueError(f'`{name}` must be {wanted}, found {given!r}')
    values[name] = given
  keys = value.get('per', ())
  known = [
    name for axis in axes for name in {axis.key: 0, **dict.fromkeys(axis.names)}
  ]
  if not isinstance(keys, list | tuple) or any(k not in known for k in keys):
    raise ValueError(
      f'`per` must be a list of keys of `grid` ({", ".join(known)}), found '
      f'{keys!r}'
    )
  per = tuple(a for a in axes if {a.key, *a.names}.intersection(keys))
  return LearningRateSearch(per=per, **values)


def _require_apart(search: LearningRateSearch, axes: Sequence[Axis]) -> None:
  """Raises ValueError where the grid and the search confuse each other."""
  searched = [name for axis in search.settings for name in axis.names]
  for name in searched:
    # Methods are scored on other rows, and read other settings.
    fixed = 'training.num_rounds', 'algorithm.name', *_NOT_IN_A_SEARCH
    if name in fixed or name.startswith(_DECIDE_HELD_OUT):
      raise ValueError(f'`settings` must not search {name!r}')
    if any(name in axis.names for axis in axes):
      raise ValueError(f'{name!r} must not be in `grid`, too')
  for axis in axes:
    splits = [name for name in axis.names if name.startswith(_DECIDE_HELD_OUT)]
    if splits and axis not in search.per:
      raise ValueError(
        f'`per` must hold {splits[0]!r}, which `grid` varies: a search for '
        'all its values would see what some of the runs hold out'
      )
  values = [v for axis in search.settings for row in axis.values for v in row]
  are_rates = all(isinstance(v, int | float) and v > 0 for v in values)
  if search.max_extensions and (
    len(searched) != 1 or len(values) < 2 or not are_rates
  ):
    raise ValueError(
      '`max_extensions` requires `settings` with one setting and at least two '
      f'numbers above 0, found {", ".join(searched)} with {values}'
    )


def _require_validation_rows(
  base: TrainConfig, scored_on_own_rows: Sequence[TrainConfig]
) -> None:
  """Raises UserError unless no arm is scored on rows that decide its rates."""
  name = repr(base.algorithm.name)
  validation_fraction, test_fraction = base.row_fractions
  if not validation_fraction:
    raise UserError(
      "`learning_rate_search` scores clients' validation rows where runs are "
      f'scored on their test rows, but {name} has none. Set '
      '`client_splits.validation_fraction` above 0, or leave the search out.'
    )
  names = {field.name for field in dataclasses.fields(base.data)}
  for arm in scored_on_own_rows:
    changed = [
      f'data.{field}'
      for field in sorted(names.difference(_OF_NO_ROWS))
      if getattr(arm.data, field) != getattr(base.data, field)
    ]
    # Validation rows come after test rows in a client's permutation.
    if arm.row_fractions[1] != test_fraction:
      changed.append('client_splits.test_fraction')
    if changed:
      raise UserError(
        f'`learning_rate_search` with {name} would score rows that runs of '
        f'{arm.algorithm.name!r} are tested on, as {changed[0]!r} differs. Set '
        'it in the base, or add it to `per`.'
      )
