"""Trackers of the tests. A process imports them by name."""

import json
import time

from tff_fedfish.run.trackers import Tracker


class Recording(Tracker):
  """Adds every call to a file."""

  package = 'json'
  remedy = 'Look at the file.'

  def __init__(self, directory, run_id, settings):
    self._path = directory / 'calls.jsonl'
    self.run_id = run_id or 'the run'
    self._add('settings', settings)

  def log(self, row):
    self._add('row', row)

  def end(self, is_finished):
    self._add('end', is_finished)

  def _add(self, kind, value):
    with open(self._path, 'a') as file:
      file.write(json.dumps([kind, value]) + '\n')


class Raising(Recording):
  """Has no room for the rows of the rounds from 1 on."""

  remedy = 'Make room on the disk.'

  def log(self, row):
    if row['round']:
      raise OSError(28, 'No space\nleft')
    super().log(row)


class RaisingOnce(Recording):
  """Fails in round 1, and then no more."""

  def log(self, row):
    if row['round'] == 1 and not self._path.with_name('failed').exists():
      self._path.with_name('failed').touch()
      raise ConnectionError('try again')
    super().log(row)


class Hanging(Recording):
  """Never comes back from round 1."""

  def log(self, row):
    print('printed by a library', flush=True)
    if row['round']:
      time.sleep(3600)
    super().log(row)


class Forgetting(Recording):
  """Has lost the run that it was asked to continue."""

  def __init__(self, directory, run_id, settings):
    super().__init__(directory, run_id and run_id + ', new', settings)


class Absent(Recording):
  """Needs what no machine has."""

  package = 'no_such_package'
