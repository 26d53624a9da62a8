"""From run directories to runs with labels, or to a clear error."""

import collections
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config import overrides as config_overrides
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import ClientBarrier, read_barriers
from tff_fedfish.methods import registry
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.reporting.evaluations import finite_rows, load_evaluation
from tff_fedfish.reporting.reading import read_json_object
from tff_fedfish.reporting.runs import Row, Run
from tff_fedfish.run.metrics_files import read_metrics


def load_runs(directories: Sequence[str | os.PathLike]) -> list[Run]:
  """Returns the runs in `directories`, with unique labels, in their order.

  Args:
    directories: Run directories. A run may still be in progress.

  Returns:
    One run per directory.

  Raises:
    UserError: If a directory is no run, is named twice, or holds a damaged
      file.
  """
  paths = [pathlib.Path(directory) for directory in directories]
  first_named: dict[pathlib.Path, pathlib.Path] = {}
  for path in paths:
    earlier = first_named.setdefault(path.resolve(), path)
    if earlier is not path:
      raise UserError(
        f'`--runs` must name each run once, but {str(earlier)!r} and '
        f'{str(path)!r} are the same directory. Name it once.'
      )
  return _with_unique_labels([_load_run(path) for path in paths])


def _load_run(directory):
  _require_run(directory)
  config_path = directory / 'config.json'
  config = read_json_object(config_path)
  remarks = list(_check_config(config, config_path))
  metrics, further = _read_rounds(directory / 'metrics.csv')
  remarks += further
  timings: tuple[Row, ...] = ()
  if (directory / 'timings.csv').exists():
    timings, further = _read_rounds(directory / 'timings.csv')
    remarks += further
  environment = {}
  if (directory / 'environment.json').exists():
    environment = read_json_object(directory / 'environment.json')
  evaluations, further = _load_evaluations(directory / 'evaluations')
  return Run(
    directory=directory,
    name='',
    label='',
    config=config,
    metrics=metrics,
    timings=timings,
    environment=environment,
    evaluations=tuple(evaluations),
    round_barriers=_read_round_barriers(directory / 'barrier', metrics),
    remarks=(*remarks, *further),
  )


def _check_config(
  config: Mapping[str, Any], path: pathlib.Path
) -> Iterator[str]:
  """Raises UserError if a config.json is none; yields remarks.

  Settings that came later than the run have their defaults in this check, but
  are not shown as if the run had named them.
  """
  name = config_overrides.method_name(config)
  if name and not registry.find_or_none(name):
    yield f'the method {name!r} cannot be loaded: its settings are as written'
    # The other sections are checked as those of any method.
    config = {
      **config,
      AlgorithmConfig.section: {'name': registry.BASELINE.name},
    }
  config_loading.from_json_dict(config, str(path))


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


def _read_rounds(path):
  """Returns the rows of a CSV file by round, and what was left out."""
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
  remarks = []
  # A run in progress: its next row is being appended.
  if not path.read_bytes().endswith(b'\n'):
    remarks.append(f'the unfinished last line of {path.name} was left out')
  return tuple(rows), remarks


def _read_round_barriers(
  directory: pathlib.Path, metrics: Sequence[Row]
) -> dict[int, tuple[ClientBarrier, ...]]:
  """Returns what was measured while training, of rounds that are finished."""
  rounds = [row['round'] for row in metrics]
  paths = {r: directory / f'round_{r:08d}.csv' for r in rounds}
  return {
    round_num: finite_rows(read_barriers(path))
    for round_num, path in paths.items()
    if path.is_file()
  }


def _load_evaluations(directory):
  evaluations, remarks = [], []
  entries = sorted(directory.iterdir()) if directory.is_dir() else []
  for entry in entries:
    # A leading dot marks a directory that is being written.
    if entry.name.startswith('.') or not entry.is_dir():
      continue
    if (entry / 'summary.json').is_file():
      evaluations.append(load_evaluation(entry))
    else:
      remarks.append(
        f'evaluations/{entry.name} has no summary.json and was left out'
      )
  return evaluations, remarks


def _with_unique_labels(runs):
  names = _unique_names([run.directory.resolve().parts for run in runs])
  bases = [_base_label(run) for run in runs]
  counts = collections.Counter(bases)
  return [
    dataclasses.replace(run, name=name).labelled(
      f'{base} ({name})' if counts[base] > 1 else base
    )
    for run, name, base in zip(runs, names, bases, strict=True)
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


def _base_label(run):
  epochs = run.num_local_epochs
  return run.method if epochs is None else f'{run.method}, E = {epochs}'
