"""Trackers of the tests."""

import json

from tff_fedfish.run.trackers import Tracker


class Recording(Tracker):
  """Adds every call to a file."""

  package = 'json'

  def _open(self, run_id, settings):
    self._add_call('open', [run_id, settings])
    return run_id or 'the run'

  def _send(self, row):
    self._add_call('row', row)

  def _end(self, is_finished):
    self._add_call('end', is_finished)

  def _add_call(self, kind, value):
    with open(self._directory / 'calls.jsonl', 'a') as file:
      file.write(json.dumps([kind, value]) + '\n')


class Raising(Recording):
  """Has no room for the rows of the rounds from 1 on."""

  def _send(self, row):
    if row['round']:
      raise OSError(28, 'No space\nleft')
    super()._send(row)


class Absent(Recording):
  """Needs what no machine has."""

  package = 'no_such_package'
