"""From the grid to runs: arms, which are compared, and runs of searches."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from tff_fedfish.config import load
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.evaluations import EvaluationRequest
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.search import search_settings
from tff_fedfish.sweeping.sweep_file import SweepFile, is_unread

ARMS = 'arms'
"""Directory of the runs that are compared."""
_SEARCH = 'search'
_NUM_ROUNDS = 'training.num_rounds'


def expand_arms(
  file: SweepFile, workdir: pathlib.Path = pathlib.Path()
) -> list[Run]:
  """Returns all arms in the order in which they run, with the base's rates.

  Cells of the grid that resolve to one config are one arm, named by the first
  of them. Names settings of the base that no arm reads, on standard error.

  Raises:
    UserError: If a setting is unknown, wrong or read by no arm, rounds do not
      divide, or an evaluation cannot be made.
  """
  arms = {}
  for point in map(file.without_unread, grid.product(file.axes)):
    for num_rounds, budgets in file.rounds_by_budget(point).items():
      tells_apart = num_rounds if len(file.budgets) > 1 else None
      name = grid.run_name(file.axes, point, tells_apart)
      config = file.config(point | {_NUM_ROUNDS: num_rounds}, name)
      values = dict(name=name, point=point, budgets=budgets)
      arm = _run(workdir / ARMS, config, file.evaluations, **values)
      arms.setdefault(config, arm)
  _require_own_names(arms.values())
  axes = (*file.axes, *(file.search.settings if file.search else ()))
  _require_read(arms, [n for a in axes for n in a.names], repr(file.path))
  _require_read(arms, file.values.overridden, 'the overrides')
  for arm in arms.values():
    for request in file.evaluations:
      request.require_measurable(arm.name, arm.config)
  if unread := _unread_by_all(arms, file.values.settings):
    methods = dict.fromkeys(config.algorithm.name for config in arms)
    load.print_unread(list(methods), unread)
  return list(arms.values())


def with_rates(file: SweepFile, arm: Run, rates: Settings) -> Run:
  """Returns an arm with the learning rates that a search chose for it."""
  rates = _read_rates(file, arm.point, rates)
  settings = arm.point | rates | {_NUM_ROUNDS: arm.num_rounds}
  config = file.config(settings, arm.name)
  return dataclasses.replace(arm, config=config, rates=rates)


def search_groups(file: SweepFile) -> list[Settings]:
  """Returns the settings of every search; none where there is no search."""
  groups = []
  for group in grid.product(file.search.per) if file.search else ():
    group = file.without_unread(group)
    groups += [group] if group not in groups else []
  return groups


def expand_search(
  file: SweepFile, group: Settings, arms: Sequence[Run]
) -> list[Run]:
  """Returns the runs of the search for a group.

  Runs that resolve to one config are one. There are none if the method reads
  nothing of what is searched.

  Raises:
    UserError: If a setting is unknown or wrong, or nobody is left to train on
      or to choose by.
  """
  runs = {}
  for rates in grid.product(file.search.settings):
    run = search_run(file, group, rates, arms)
    runs.setdefault(run.config, run)
  _require_own_names(runs.values())
  return [run for run in runs.values() if run.rates]


def search_run(
  file: SweepFile, group: Settings, rates: Settings, arms: Sequence[Run]
) -> Run:
  """Returns the run of a search that tries some rates for a group.

  See `expand_search`; `arms` are all arms of the sweep.
  """
  search, rates = file.search, _read_rates(file, group, rates)
  name = grid.run_name((*search.per, *search.settings), group | rates)
  base = file.config(group | rates, name)
  splits = [request.client_split for request in file.evaluations]
  scored_on_own_rows = [
    arm.config
    for arm in arms
    if search.group_of(arm.point) == group
    and ('own_test' in splits or arm.config.method.personal(arm.config))
  ]
  settings, options = search_settings(search, base, scored_on_own_rows)
  return _run(
    arms[0].directory.parent.with_name(_SEARCH),
    file.config(group | rates | settings, name),
    [EvaluationRequest(name='validation', **options)],
    name=f'{_SEARCH}/{name}',
    point=group,
    rates=rates,
  )


def require_searched(file: SweepFile, tried: Sequence[Settings]) -> None:
  """Raises UserError if a searched setting is among the rates of no run."""
  for axis in file.search.settings if file.search else ():
    for name in axis.names:
      if not any(name in rates for rates in tried):
        raise UserError(
          f'`learning_rate_search` in {file.path!r} sets {name!r}, but no '
          'search is for a method that reads it. Leave it out, or add '
          "'algorithm.name' to `per`."
        )


def _require_own_names(runs: Iterable[Run]) -> None:
  """Raises UserError if two runs would have one directory."""
  names = set()
  for run in runs:
    if run.name in names:
      raise UserError(
        f'Two runs of the sweep would be called {run.name!r}. Spell the values '
        'of `grid` and `learning_rate_search` so that their names differ.'
      )
    names.add(run.name)


def _read_rates(file: SweepFile, settings: Settings, rates: Settings):
  """Returns those of some rates that the method of the settings reads."""
  read = file.without_unread(settings | rates)
  return {name: value for name, value in rates.items() if name in read}


def _run(
  parent: pathlib.Path,
  config: TrainConfig,
  requests: Sequence[EvaluationRequest],
  *,
  name: str,
  **values: Any,
) -> Run:
  """Returns a run whose directory lies in this one."""
  directory = parent / pathlib.Path(name).name
  evaluations = {}
  for request in requests:
    output, command = request.command(directory, config.data.directory)
    if output in evaluations:
      raise UserError(
        f'`evaluate` would write the evaluation {output.name!r} of the run '
        f'{name!r} twice. Give one of them another `name`.'
      )
    evaluations[output] = command
  return Run(
    name=name,
    directory=directory,
    config=config,
    evaluations=evaluations,
    **values,
  )


def _unread_by_all(
  configs: Iterable[TrainConfig], names: Iterable[str]
) -> list[str]:
  """Returns the settings that the method of no config reads, sorted."""
  methods = {config.algorithm.name: config.method for config in configs}
  return [
    name
    for name in sorted(set(names))
    if all(is_unread(name, method) for method in methods.values())
  ]


def _require_read(
  configs: Iterable[TrainConfig], names: Iterable[str], place: str
) -> None:
  """Raises UserError for the first setting that no run reads."""
  for name in _unread_by_all(configs, names):
    methods = dict.fromkeys(config.algorithm.name for config in configs)
    readers = ', '.join(registry.readers(name))
    raise UserError(
      f'{name!r} in {place} is read by no run of the sweep: their methods are '
      f'{", ".join(methods)}, and {readers} read it. Leave it out.'
    )
