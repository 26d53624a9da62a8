"""The starts of a run, `starts.jsonl`: a line of JSON each."""

import contextlib
import datetime
import json
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

from tff_fedfish import environment, files
from tff_fedfish.run import store

STARTS_NAME = 'starts.jsonl'


def add(
  run: pathlib.Path, num_threads: int, read: Mapping[str, pathlib.Path | None]
) -> None:
  """Adds the line of a start: time, command, what it reads, the machine.

  Args:
    run: The run's directory.
    num_threads: TensorFlow's threads.
    read: Directories of a round or of a model, by the reason for reading them.
      None: there is none.
  """
  now = datetime.datetime.now(datetime.UTC)
  facts = {
    'time': now.isoformat(timespec='seconds'),
    'command': shlex.join(environment.command),
    'reads': {name: _source(path) for name, path in read.items() if path},
    'environment': environment.environment_facts() | {'threads': num_threads},
  }
  lines = [*_lines(run), json.dumps(facts).encode()]
  with files.write_atomically(run / STARTS_NAME, 'wb') as file:
    file.writelines(line + b'\n' for line in lines)


def last_environment(run: pathlib.Path) -> dict[str, Any]:
  """Returns versions and machine of the last start; {}: they are not known.

  They name no user, host or path. Lines that are cut off are passed over.
  """
  for line in reversed(_lines(run)):
    with contextlib.suppress(ValueError, TypeError, KeyError):
      facts = files.parse_json(line)['environment']
      known, packages = environment.PACKAGES, facts['packages']
      # Others may be named after their users' projects.
      shown = {name: packages[name] for name in known if name in packages}
      return facts | {'packages': shown}
  return {}


def _source(path):
  """Returns a directory, its round and what tells its files from others."""
  is_round = store.is_round(path)
  # The manifest has the digests of the other files.
  names = store.MANIFEST if is_round else '*.safetensors'
  found = {'path': str(path)}
  if is_round:
    found['round'] = store.read_manifest(path).round
  return found | {
    'sha256': {p.name: files.sha256_of(p) for p in sorted(path.glob(names))}
  }


def _lines(run):
  path = run / STARTS_NAME
  return path.read_bytes().splitlines() if path.exists() else []
