"""sweep.json: the definition of a sweep, the choices of searches, the runs."""

import dataclasses
import json
import math
import operator
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tff_fedfish import files
from tff_fedfish.config import load, names
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import sweep_file
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.searches import Search
from tff_fedfish.sweeping.sweep_file import KEYS, SweepFile

NAME = 'sweep.json'
_SCHEMA_VERSION = 2


def write_record(
  workdir: pathlib.Path,
  file: SweepFile,
  searches: Sequence[Search],
  arms: Sequence[Run],
) -> None:
  """Writes sweep.json; all of it follows from the file and the runs."""
  values = {
    'schema_version': _SCHEMA_VERSION,
    'base': load.to_json_dict(file.base),
    **file.definition,
    # Whole: a later version may have other defaults.
    'evaluate': [
      dataclasses.asdict(request)
      for request in sweep_file.parse_definition(file.definition)['evaluate']
    ],
    'search_runs': [],
    'learning_rates': [],
    'arms': [_entry(arm) | {'budgets': arm.budgets} for arm in arms],
  }
  for search in searches:
    for position, run in enumerate(search.runs):
      score = search.scores[position] if search.scores else math.nan
      score = score if math.isfinite(score) else None
      values['search_runs'].append(_entry(run) | {'score': score})
    if search.best is not None:
      values['learning_rates'].append(
        {
          'for': search.group,
          'chosen': search.rates,
          'metric': search.search.metric,
          'score': search.scores[search.best],
          'num_validation_clients': search.num_clients,
          'at_edge': search.edges,
        }
      )
  files.write_json(workdir / NAME, values)


def require_same_sweep(workdir: pathlib.Path, file: SweepFile) -> None:
  """Checks that a directory is new or holds an earlier start of this sweep.

  Values that were added to the grid are no difference.

  Raises:
    UserError: If it holds another sweep; names every difference.
  """
  path = workdir / NAME
  if not path.exists():
    return
  try:
    recorded = files.parse_json(path.read_text(encoding='utf-8'))
    version = recorded['schema_version']
    if version != _SCHEMA_VERSION:
      raise ValueError(f'its schema version is {version!r}')
    changes = _differences(recorded, file, str(path))
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f'{str(path)!r} must be what this version of `fedfish sweep` writes, but '
      f'cannot be read ({" ".join(str(error).split())}). Restore the file, or '
      'name another --workdir.'
    ) from error
  if changes:
    raise UserError(
      f'`--workdir` {str(workdir)!r} holds a sweep that differs from '
      f'{file.path!r} in {", ".join(changes)}. Take that back (only values may '
      'be added to `grid`), or name another directory.'
    )


def _entry(run: Run) -> dict[str, Any]:
  return {
    'name': run.directory.name,
    'settings': run.point | run.rates,
    'num_rounds': run.num_rounds,
    'directory': f'{run.directory.parent.name}/{run.directory.name}',
  }


def _differences(
  recorded: dict[str, Any], file: SweepFile, source: str
) -> list[str]:
  """Returns the names of what changed since sweep.json was written."""
  base = load.from_json_dict(recorded['base'], source)
  recorded = {key: recorded[key] for key in KEYS if key in recorded}
  # As JSON: a tuple is a list there.
  now = files.parse_json(json.dumps(file.definition))
  before, now = map(sweep_file.parse_definition, (recorded, now))
  axes = {axis.key: axis.values for axis in now['grid']}
  if [axis.key for axis in before['grid']] == list(axes) and all(
    {*axis.values} <= {*axes[axis.key]} for axis in before['grid']
  ):
    now['grid'] = before['grid']
  for parsed in (before, now):
    if search := parsed['learning_rate_search']:
      # Values may be added to its axes, too.
      keys = tuple(axis.key for axis in search.per)
      parsed['learning_rate_search'] = dataclasses.replace(search, per=keys)
    parsed['reference_local_epochs'] = (
      parsed['reference_local_epochs'] or base.client_work.num_local_epochs
    )
  changed = load.differences(base, file.base)
  limits = [each.training.max_non_finite_rounds for each in (base, file.base)]
  if limits[0] != limits[1]:
    # Runs that are done keep the limit that they stopped at.
    changed.append('training.max_non_finite_rounds')
  return [name for name in changed if not _has_moved(name, base, file.base)] + [
    f'`{key}`' for key in KEYS if before[key] != now[key]
  ]


def _has_moved(name: str, before: TrainConfig, now: TrainConfig) -> bool:
  """Returns whether a setting is another path of the same files, or may be."""
  if name not in names.MAY_MOVE:
    return False
  old, new = (operator.attrgetter(name)(each) for each in (before, now))
  return old and new and (files.are_same(old, new) or not os.path.exists(old))
