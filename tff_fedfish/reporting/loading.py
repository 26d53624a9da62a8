"""From run directories to runs with labels, or to a clear error."""

import collections
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.config import given, names
from tff_fedfish.config import load as config_loading
from tff_fedfish.data.tokenizers import METADATA_FILE
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import read_barriers
from tff_fedfish.files import parse_json
from tff_fedfish.methods import registry
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.reporting.evaluations import client_barriers, load_evaluation
from tff_fedfish.reporting.runs import Run
from tff_fedfish.run.corpus_identity import read_identity
from tff_fedfish.run.run_directory import VOCABULARY_NAME
from tff_fedfish.run.tables import read_metrics


def load_runs(directories: Sequence[str | os.PathLike]) -> list[Run]:
  """Returns the runs in `directories`, with unique labels, in their order.

  A run may still be in progress.

  Raises:
    UserError: If a directory is no run, is named twice, or holds a damaged
      file.
  """
  paths = list(map(pathlib.Path, directories))
  first_named: dict[pathlib.Path, pathlib.Path] = {}
  for path in paths:
    earlier = first_named.setdefault(path.resolve(), path)
    if earlier is not path:
      raise UserError(
        f'`--runs` must name each run once, but {str(earlier)!r} and '
        f'{str(path)!r} are the same directory. Name it once.'
      )
  return _with_unique_labels(_with_unique_corpora(map(_load_run, paths)))


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
  """Returns the JSON object in a file of a run.

  `NaN` and infinities, which Python writes, are accepted.

  Raises:
    UserError: If the file cannot be read or holds no JSON object.
  """
  restore = 'Restore the file, or leave this run out.'
  data = b''
  try:
    data = path.read_bytes()
    value = parse_json(data.decode('utf-8'))
  except OSError as error:
    raise UserError(
      f'{str(path)!r} must be readable, but is not ({error.strerror}). '
      'Change its permissions, or leave this run out.'
    ) from error
  except ValueError as error:
    found = f' must be JSON of a run, but cannot be parsed ({error})'
    if isinstance(error, UnicodeDecodeError):
      line = data.count(b'\n', 0, error.start) + 1
      found = f', line {line}, must be UTF-8 text, but is not'
    elif isinstance(error, json.JSONDecodeError):
      found = f', line {error.lineno}, must be JSON, but found {error.msg!r}'
    raise UserError(f'{str(path)!r}{found}. {restore}') from error
  if not isinstance(value, dict):
    raise UserError(
      f'{str(path)!r} must hold a JSON object, but found a '
      f'{type(value).__name__}. {restore}'
    )
  return value


def _load_run(directory):
  _require_run(directory)
  config = read_json_object(directory / 'config.json')
  config = {k: v for k, v in config.items() if k not in given.ABOUT}
  remarks = list(_check_config(config, directory / 'config.json'))
  metrics = _read_rounds(directory / 'metrics.csv', remarks)
  # The round's row comes last: what has none is not finished.
  barriers = {
    row['round']: directory / 'barrier' / f'round_{row["round"]:08d}.csv'
    for row in metrics
  }
  timings, environment = directory / 'timings.csv', {}
  if (directory / 'environment.json').exists():
    environment = read_json_object(directory / 'environment.json')
  run = Run(
    directory=directory,
    name='',
    label='',
    config=config,
    metrics=metrics,
    timings=_read_rounds(timings, remarks) if timings.exists() else (),
    environment=environment,
    evaluations=(),
    round_barriers={
      round_num: client_barriers(read_barriers(path))
      for round_num, path in barriers.items()
      if path.is_file()
    },
    identity=read_identity(directory),
    vocabulary=_vocabulary(directory),
  )
  evaluations = tuple(_load_evaluations(run, remarks))
  return dataclasses.replace(
    run, evaluations=evaluations, remarks=tuple(remarks)
  )


def _check_config(
  config: Mapping[str, Any], path: pathlib.Path
) -> Iterator[str]:
  """Raises UserError if a config.json is none; yields remarks."""
  name = names.method_name(given.from_sections(config, '').settings)
  if name and not registry.find_or_none(name):
    yield f'the method {name!r} cannot be loaded: its settings are as written'
    # The other sections are checked as those of any method.
    config = {
      **config,
      AlgorithmConfig.section: {'name': registry.BASELINE.name},
    }
  config_loading.from_json_dict(config, str(path))


def _vocabulary(directory: pathlib.Path) -> str | None:
  """Returns `Run.vocabulary`."""
  path = directory / VOCABULARY_NAME / METADATA_FILE
  if not path.is_file():
    return None
  return hashlib.sha256(path.read_bytes()).hexdigest()


def _require_run(directory):
  missing = [
    name
    for name in ('config.json', 'metrics.csv')
    if not (directory / name).is_file()
  ]
  if not missing:
    return
  if not directory.exists():
    found = 'does not exist'
  elif not directory.is_dir():
    found = 'is a file'
  else:
    found = f'holds no {" and no ".join(missing)}'
    inside = sorted(path.parent for path in directory.glob('*/metrics.csv'))
    if inside:
      found += f' (the runs below it, such as {str(inside[0])!r}, may be meant)'
  raise UserError(
    f'`--runs` must name run directories, as `fedfish train` writes them, '
    f'but {str(directory)!r} {found}. Name the workdir of a run.'
  )


def _read_rounds(path, remarks):
  """Returns the rows of a CSV file by round; adds what was left out."""
  rows = read_metrics(path)
  previous = -1
  for line, row in enumerate(rows, start=2):
    value = row['round']
    if not isinstance(value, int) or value <= previous:
      raise UserError(
        f'{str(path)!r}, line {line}, must hold a later round than the line '
        f'before, but `round` is {value!r}'
        + (f' after {previous}' if previous >= 0 else '')
        + '. Restore the file, or leave this run out.'
      )
    previous = value
  # A run in progress: its next row is being appended.
  if not path.read_bytes().endswith(b'\n'):
    remarks.append(f'the unfinished last line of {path.name} was left out')
  return tuple(rows)


def _load_evaluations(run, remarks):
  """Yields finished evaluations by name; adds what was left out."""
  directory = run.directory / 'evaluations'
  for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
    # A leading dot marks a directory that is being written.
    if entry.name.startswith('.') or not entry.is_dir():
      continue
    if (entry / 'summary.json').is_file():
      yield load_evaluation(entry, run.seeds)
    else:
      remarks.append(
        f'evaluations/{entry.name} has no summary.json and was left out'
      )


def _with_unique_corpora(runs: Iterable[Run]) -> list[Run]:
  """Returns the runs with one name for each evaluated corpus."""
  runs = list(runs)
  # Of a corpus of older versions, only its directory's name is known.
  first = {}
  for evaluation in (e for run in runs for e in run.evaluations if e.identity):
    first.setdefault(evaluation.identity.fingerprint, evaluation)
  counts = collections.Counter(e.corpus for e in first.values())
  names = {
    fingerprint: e.corpus
    + f' ({e.identity.name}, {fingerprint[:8]})' * (counts[e.corpus] > 1)
    for fingerprint, e in first.items()
  }

  def named(evaluation):
    identity = evaluation.identity
    corpus = names[identity.fingerprint] if identity else evaluation.corpus
    return dataclasses.replace(evaluation, corpus=corpus)

  return [
    dataclasses.replace(run, evaluations=tuple(map(named, run.evaluations)))
    for run in runs
  ]


def _with_unique_labels(runs):
  names = _unique_names([run.directory.resolve().parts for run in runs])
  counts = collections.Counter(run.base_label for run in runs)
  return [
    dataclasses.replace(run, name=name).labelled(
      run.base_label + f' ({name})' * (counts[run.base_label] > 1)
    )
    for run, name in zip(runs, names, strict=True)
  ]


def _unique_names(paths):
  """Returns as few trailing parts of each path as tell it from the others."""
  names = []
  for own in paths:
    others = [path for path in paths if path != own]
    depth = next(
      n
      for n in itertools.count(1)
      if all(other[-n:] != own[-n:] for other in others)
    )
    names.append('/'.join(own[-depth:]))
  return names
