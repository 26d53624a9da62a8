"""sweep.json: the definition of a sweep, and the status of each of its runs."""

import json
import operator
import pathlib
from collections.abc import Iterable
from typing import Any

from tff_fedfish import files
from tff_fedfish.config import load as config_loading
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.sweeping.sweep_runs import SweepRun

NAME = 'sweep.json'
SCHEMA_VERSION = 1

WAITING = 'waiting'
RUNNING = 'running'
DONE = 'done'
DIVERGED = 'diverged'
FAILED = 'failed'
INTERRUPTED = 'interrupted'


class SweepState:
  """Contents of sweep.json; written whole whenever something changes.

  The statuses are only for readers: a sweep that continues looks at the runs
  themselves. Search runs and arms are in the order in which they run.

  Attributes:
    choices: Outcomes of searches, as JSON values.
  """

  def __init__(
    self, workdir: pathlib.Path, file: SweepFile, runs: Iterable[SweepRun]
  ):
    self._path = workdir / NAME
    self._entries = {run.name: _entry(run) for run in runs}
    self.choices = []
    self._values = {
      'schema_version': SCHEMA_VERSION,
      'base': config_loading.to_json_dict(file.base),
      **file.to_json_dict(),
      'search_runs': [e for e in self._entries.values() if 'score' in e],
      'learning_rates': self.choices,
      'arms': [e for e in self._entries.values() if 'score' not in e],
    }

  def add(self, search_runs: Iterable[SweepRun]) -> None:
    """Adds runs of a search that goes on."""
    for run in search_runs:
      self._entries[run.name] = _entry(run)
      self._values['search_runs'].append(self._entries[run.name])

  def names_with(self, *statuses: str) -> list[str]:
    """Returns the names of the runs with one of some statuses."""
    return [n for n, e in self._entries.items() if e['status'] in statuses]

  def update(self, names: Iterable[str], **values: Any) -> None:
    """Sets `status`, `score` or `settings` of some runs; writes the file."""
    names = list(names)
    for name in names:
      self._entries[name] |= values
    if names:
      self.write()

  def write(self) -> None:
    """Writes the file."""
    files.write_json(self._path, self._values)


def require_same_sweep(workdir: pathlib.Path, file: SweepFile) -> None:
  """Checks that a directory is new or holds an earlier start of this sweep.

  Values that were added to the grid are no difference.

  Raises:
    UserError: Naming every difference, if it holds another sweep.
  """
  path = workdir / NAME
  if not path.exists():
    return
  try:
    found = files.parse_json(path.read_text(encoding='utf-8'))
    if not isinstance(found, dict):
      raise ValueError('it is no object')
    version = found.get('schema_version')
    if type(version) is not int or version > SCHEMA_VERSION:
      raise UserError(
        f'{str(path)!r} has `schema_version` {version!r}, but this version of '
        f'fedfish reads up to {SCHEMA_VERSION}. Update fedfish.'
      )
    changes = _differences(found, file, str(path))
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f'{str(path)!r} must be what `fedfish sweep` wrote, but cannot be read '
      f'({" ".join(str(error).split())}). Restore the file, or name another '
      '--workdir.'
    ) from error
  if changes:
    raise UserError(
      f'`--workdir` {str(workdir)!r} holds a sweep that differs from '
      f'{file.path!r}: {"; ".join(changes)}. Take that back (only values may '
      'be added to `grid`), or name another directory.'
    )


def _entry(run: SweepRun) -> dict[str, Any]:
  """Returns what sweep.json says of a run before it begins."""
  return {
    'name': run.run.name,
    'settings': run.point | run.rates,
    **({'budgets': list(run.budgets)} if run.is_arm else {}),
    'num_rounds': run.num_rounds,
    **({} if run.is_arm else {'score': None}),
    'status': WAITING,
    'directory': f'{run.run.parent.name}/{run.run.name}',
  }


def _differences(found, file, source):
  """Returns a clause for each change since sweep.json was written."""
  now = file.to_json_dict()
  recorded = config_loading.from_json_dict(found['base'], source)
  changes = [
    'the base had {} {!r} and now has {!r}'.format(
      name, *(operator.attrgetter(name)(base) for base in (recorded, file.base))
    )
    for name in config_loading.differences(recorded, file.base)
  ]
  old, new = found['grid'], now['grid']
  changes += [f'`grid` had {key!r} as well' for key in old if key not in new]
  changes += [f'`grid` now has {key!r}, too' for key in new if key not in old]
  for key in old:
    lost = [v for v in old[key] if key in new and v not in new[key]]
    if lost:
      changes.append(
        f'`grid` had the value{"s" * (len(lost) > 1)} '
        f'{", ".join(map(json.dumps, lost))} of {key!r} as well'
      )
  return changes + [
    f'`{name}` was {json.dumps(found[name])} and now is {json.dumps(now[name])}'
    for name in now
    if name != 'grid' and found[name] != now[name]
  ]
