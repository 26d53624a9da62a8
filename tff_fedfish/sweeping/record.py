"""sweep.json: what a sweep is, and how far every run of it has come."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish import files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping.arms import Arm, SearchRun
from tff_fedfish.sweeping.sweep_config import SweepConfig
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.sweeping.sweep_jobs import ARMS, SEARCH, search_job_name

NAME = 'sweep.json'
SCHEMA_VERSION = 1

WAITING = 'waiting'
RUNNING = 'running'
DONE = 'done'
DIVERGED = 'diverged'
FAILED = 'failed'
INTERRUPTED = 'interrupted'


class Record:
  """What sweep.json holds; written whole whenever something changes.

  `status` is for readers alone: a sweep that goes on looks at the runs
  themselves.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    file: SweepFile,
    search_runs: Sequence[SearchRun],
    arms: Sequence[Arm],
  ):
    """Writes nothing yet.

    Args:
      workdir: The sweep's directory.
      file: The sweep.
      search_runs: Of `expand_search`.
      arms: Of `expand_arms`.
    """
    self._path = workdir / NAME
    self._base = config_loading.to_json_dict(file.base)
    self._sweep = file.sweep.to_json_dict()
    self._choices = []
    self._search_runs = {
      search_job_name(run): {
        'name': run.name,
        'settings': run.group | run.rates,
        'num_rounds': run.num_rounds,
        'score': None,
        'status': WAITING,
        'directory': f'{SEARCH}/{run.name}',
      }
      for run in search_runs
    }
    self._arms = {arm.name: _arm_entry(arm) for arm in arms}

  def set_status(self, job_names: Sequence[str], status: str) -> None:
    """Sets the status of some jobs, by their names."""
    for name in job_names:
      entry = self._search_runs if name in self._search_runs else self._arms
      entry[name]['status'] = status

  def add_choice(self, choice: Mapping[str, Any]) -> None:
    """Adds what a search came to."""
    self._choices.append(dict(choice))

  def set_score(self, job_name: str, score: float | None) -> None:
    """Sets the score of a search run; None: it is not finite."""
    self._search_runs[job_name]['score'] = score

  def set_rates(self, arm: Arm) -> None:
    """Sets the learning rates that were chosen for an arm."""
    self._arms[arm.name]['settings'] = arm.point | arm.rates

  def write(self) -> None:
    """Writes the file."""
    files.write_json(
      self._path,
      {
        'schema_version': SCHEMA_VERSION,
        'base': self._base,
        **self._sweep,
        'search_runs': list(self._search_runs.values()),
        'learning_rates': self._choices,
        'arms': list(self._arms.values()),
      },
    )


def require_same_sweep(workdir: pathlib.Path, file: SweepFile) -> None:
  """Checks that a directory is new or holds an earlier start of this sweep.

  Args:
    workdir: The sweep's directory.
    file: The sweep.

  Raises:
    UserError: Naming what differs, if it holds another sweep.
  """
  path = workdir / NAME
  if not path.exists():
    return
  found = _read(path)
  version = found.get('schema_version')
  if type(version) is not int or version > SCHEMA_VERSION:
    raise UserError(
      f'{str(path)!r} has `schema_version` {version!r}, but this version of '
      f'fedfish reads up to {SCHEMA_VERSION}. Update fedfish.'
    )
  changes = differences(found, file.base, file.sweep, str(path))
  if changes:
    raise UserError(
      f'`--workdir` {str(workdir)!r} holds a sweep that differs from '
      f'{file.path!r}: {"; ".join(changes)}. Take that back (only values may '
      'be added to `grid`), or name another directory.'
    )


def differences(
  found: Mapping[str, Any], base: TrainConfig, sweep: SweepConfig, source: str
) -> list[str]:
  """Returns in what a sweep is not the one that was recorded.

  Args:
    found: What sweep.json holds.
    base: The base config as it is now.
    sweep: The sweep as it is now.
    source: The path of sweep.json; named in errors.

  Returns:
    One clause for each difference; values that were added to the grid are none.
  """
  now = sweep.to_json_dict()
  try:
    recorded = config_loading.from_json_dict(found['base'], source)
    changes = [
      f'the base had {name} {_setting(recorded, name)!r} and now has '
      f'{_setting(base, name)!r}'
      for name in config_loading.differences(recorded, base)
    ]
    changes += _grid_differences(found['grid'], now['grid'])
    changes += [
      f'`{name}` was {json.dumps(found[name])} and now is '
      f'{json.dumps(now[name])}'
      for name in now
      if name != 'grid' and found[name] != now[name]
    ]
  except (KeyError, TypeError, AttributeError) as error:
    raise _damaged(source, error) from error
  return changes


def _grid_differences(found, now):
  changes = [f'`grid` had {key!r} as well' for key in found if key not in now]
  changes += [f'`grid` now has {key!r}, too' for key in now if key not in found]
  for key in found:
    lost = [v for v in found[key] if key in now and v not in now[key]]
    if lost:
      changes.append(
        f'`grid` had the value{"s" * (len(lost) > 1)} '
        f'{", ".join(map(json.dumps, lost))} of {key!r} as well'
      )
  return changes


def _setting(config, name):
  section, leaf = name.split('.')
  return getattr(getattr(config, section), leaf)


def _arm_entry(arm):
  return {
    'name': arm.name,
    'settings': arm.point | arm.rates,
    'budgets': list(arm.budgets),
    'num_rounds': arm.num_rounds,
    'status': WAITING,
    'directory': f'{ARMS}/{arm.name}',
  }


def _read(path: pathlib.Path) -> dict[str, Any]:
  try:
    found = files.parse_json(path.read_text(encoding='utf-8'))
  except (ValueError, OSError) as error:
    raise _damaged(str(path), error) from error
  if not isinstance(found, dict):
    raise _damaged(str(path), 'it is no object')
  return found


def _damaged(source: str, what: Any) -> UserError:
  return UserError(
    f'{source!r} must be what `fedfish sweep` wrote, but cannot be read '
    f'({" ".join(str(what).split())}). Restore the file, or name another '
    '--workdir.'
  )
