"""From run directories to runs with labels, or to a clear error."""

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tff_fedfish import files, json_values
from tff_fedfish.config import given
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.load import CONFIG_NAME
from tff_fedfish.data.tokenizers import METADATA_FILE
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.reporting.report import is_report
from tff_fedfish.reporting.runs import NamedEvaluation, Run
from tff_fedfish.run import starts
from tff_fedfish.run.corpus_identity import read_identity
from tff_fedfish.run.run_directory import VOCABULARY_NAME
from tff_fedfish.run.tables import read_metrics


def load_runs(directories: Iterable[str | os.PathLike]) -> list[Run]:
  """Returns the runs in `directories`, with unique labels, in their order.

  A sweep stands for those of its runs that have begun. A run may still be in
  progress. A damaged evaluation is left out; the run's remarks say so. Earlier
  reports are skipped, with a line on standard error for each.

  Raises:
    UserError: If a directory is no run, is named twice, or holds a damaged
      file, or there are only reports.
  """
  paths = []
  for path in map(pathlib.Path, directories):
    if is_report(path):
      print(f'fedfish: note: skipped the report {str(path)!r}', file=sys.stderr)
    else:
      paths += _runs_in(path)
  if not paths:
    raise UserError(
      '`--runs` must name run directories, as `fedfish train` writes them, but '
      'names only reports. Name the workdir of a run.'
    )
  first_named: dict[pathlib.Path, pathlib.Path] = {}
  for path in paths:
    earlier = first_named.setdefault(path.resolve(), path)
    if earlier is not path:
      raise UserError(
        f'`--runs` must name each run once, but {str(earlier)!r} and '
        f'{str(path)!r} are the same directory. Name it once.'
      )
  return _with_unique_labels(_with_unique_corpora(list(map(_load_run, paths))))


def _runs_in(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the runs of a sweep, or the path of anything else."""
  is_sweep = (path / 'sweep.json').is_file()
  metrics = path.glob('arms/*/metrics.csv') if is_sweep else ()
  return sorted(file.parent for file in metrics) or [path]


def _load_run(directory: pathlib.Path) -> Run:
  _require_run(directory)
  path = directory / CONFIG_NAME
  advice = 'Restore the file, or leave this run out.'
  with files.explained(path, 'a JSON object of a run', advice):
    config = files.parse_json(path.read_text(encoding='utf-8'))
    json_values.require(isinstance(config, dict), '', 'an object', config)
  # Its paths are found from here.
  train_config = config_loading.from_json_dict(config, str(path))
  config = {k: v for k, v in config.items() if k != given.DIRECTORY}
  remarks: list[str] = []
  timings = directory / 'timings.csv'
  vocabulary = directory / VOCABULARY_NAME / METADATA_FILE
  return Run(
    directory=directory,
    config=config,
    train_config=train_config,
    metrics=tuple(read_metrics(directory / 'metrics.csv')),
    timings=tuple(read_metrics(timings)) if timings.exists() else (),
    environment=starts.last_environment(directory),
    identity=read_identity(directory),
    vocabulary=(files.sha256_of(vocabulary) if vocabulary.is_file() else None),
    search=_search(directory),
    evaluations=tuple(_load_evaluations(directory, remarks)),
    remarks=tuple(remarks),
  )


def _require_run(directory: pathlib.Path) -> None:
  names = (CONFIG_NAME, 'metrics.csv')
  missing = [name for name in names if not (directory / name).is_file()]
  if not missing:
    return
  advice = 'Name the workdir of a run.'
  if not directory.exists():
    reason = 'does not exist'
  elif not directory.is_dir():
    reason = 'is a file'
  elif (directory / 'sweep.json').is_file():
    reason = 'is a sweep of which no run has begun'
  else:
    reason = f'holds no {" and no ".join(missing)}'
    inside = sorted(path.parent for path in directory.glob('*/metrics.csv'))
    if inside:
      advice = f'The runs below it may be meant, such as {str(inside[0])!r}.'
  raise UserError(
    f'`--runs` must name run directories, as `fedfish train` writes them, '
    f'but {str(directory)!r} {reason}. {advice}'
  )


def _load_evaluations(
  run: pathlib.Path, remarks: list[str]
) -> Iterator[NamedEvaluation]:
  """Yields finished evaluations by name; adds what was left out."""
  directory = run / 'evaluations'
  for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
    # A leading dot marks a directory that is being written.
    if entry.name.startswith('.') or not entry.is_dir():
      continue
    try:
      found = read_evaluation(entry)
    except UserError as error:
      # The page may be sent to others, who have no such directory.
      problem = str(error).replace(repr(f'{run}/')[1:-1], '')
      problem = problem.rsplit('. ', 1)[0].rstrip('.')
      remarks.append(f'evaluation {entry.name} was left out: {problem}')
      continue
    # A diverged model still has an accuracy, that of its NaNs.
    clients = found.clients.copy()
    for when in ('before', 'after'):
      is_finite = np.isfinite(clients[f'loss_{when}'])
      accuracy = clients[f'accuracy_{when}'].where(is_finite)
      clients[f'accuracy_{when}'] = accuracy
    yield NamedEvaluation(
      **vars(found) | {'clients': clients},
      name=entry.name,
      corpus=found.summary.corpus,
      written=(entry / 'summary.json').stat().st_mtime,
    )


def _search(directory: pathlib.Path) -> tuple[int, int] | None:
  """Returns `Run.search`, of the sweep that the run is an arm of."""
  path = directory.parent.parent / 'sweep.json'
  if directory.parent.name != 'arms':
    return None
  # A record that is damaged, or is none of ours, says nothing of a run.
  with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
    record = files.parse_json(path.read_text(encoding='utf-8'))
    names = {arm['name']: arm['settings'] for arm in record['arms']}
    for choice in record['learning_rates']:
      group = choice['for'].items()
      if group <= names[directory.name].items():
        settings = (run['settings'].items() for run in record['search_runs'])
        num_trials = sum(group <= own for own in settings)
        return num_trials, choice['num_validation_clients']
  return None


def _with_unique_corpora(runs: Sequence[Run]) -> list[Run]:
  """Returns the runs with one name for each evaluated corpus."""
  first = {}
  for evaluation in itertools.chain(*(run.evaluations for run in runs)):
    first.setdefault(evaluation.fingerprint, evaluation)
  counts = collections.Counter(e.corpus for e in first.values())

  def named(evaluation):
    same = first[evaluation.fingerprint]
    corpus = same.corpus
    if counts[corpus] > 1:
      name = same.summary.corpus_identity.name
      corpus += f' ({name}, {same.fingerprint[:8]})'
    return dataclasses.replace(evaluation, corpus=corpus)

  return [
    dataclasses.replace(run, evaluations=tuple(map(named, run.evaluations)))
    for run in runs
  ]


def _with_unique_labels(runs: Sequence[Run]) -> list[Run]:
  paths = _unique_names([run.directory.resolve().parts for run in runs])
  counts = collections.Counter(run.base_label for run in runs)
  return [
    dataclasses.replace(
      run,
      name=name,
      label=run.base_label
      + f' ({name})' * (counts[run.base_label] > 1)
      + ' (diverged)' * run.has_diverged,
    )
    for run, name in zip(runs, paths, strict=True)
  ]


def _unique_names(paths: Sequence[tuple[str, ...]]) -> list[str]:
  """Returns as few trailing parts of each path as tell it from the others."""
  unique = []
  for own in paths:
    others = [path for path in paths if path != own]
    depth = next(
      n
      for n in itertools.count(1)
      if all(other[-n:] != own[-n:] for other in others)
    )
    unique.append('/'.join(own[-depth:]))
  return unique
