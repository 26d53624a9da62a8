"""Configurations and environments side by side, and how to repeat runs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.config.load import CONFIG_NAME
from tff_fedfish.evaluation.options import OWN_ROWS
from tff_fedfish.reporting.runs import NamedEvaluation, Run

CONFIGS_NAME = 'configs'
"""Directory in a report with the configuration of each run."""


def published(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a config without `seeds.privacy_seed`.

  Whoever knows that seed can take the noise of DP-SGD away again.
  """
  return {
    section: {k: v for k, v in values.items() if k != 'privacy_seed'}
    if section == 'seeds'
    else values
    for section, values in config.items()
  }


def compare(objects: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """Returns all leaves of nested objects, one per run, as text.

  There is a row per dotted name, in the order of first appearance, and a column
  per object; '(not set)' where it does not have the name.
  """
  flat = [{n: _shown(v) for n, v in flatten(o).items()} for o in objects]
  return pd.DataFrame(flat, dtype=object).T.fillna('(not set)')


def differing(compared: pd.DataFrame) -> pd.DataFrame:
  """Returns the rows of `compare` in which not all objects are equal."""
  return compared[compared.nunique(axis='columns') > 1]


def flatten(item: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns {'a.b': value} for {'a': {'b': value}}; lists are values."""
  flat = {}
  for key, value in item.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping) and value:
      flat.update(flatten(value, f'{name}.'))
    else:
      flat[name] = value
  return flat


def reproduction_files(runs: Sequence[Run]) -> dict[str, str]:
  """Returns the config.json of each run, by its path in the report.

  It is what `fedfish train --config` reads; without `seeds.privacy_seed`.
  """
  return {
    f'{CONFIGS_NAME}/{run.name}/{CONFIG_NAME}': json.dumps(
      published(run.config), indent=2
    )
    + '\n'
    for run in runs
  }


def reproduction_commands(runs: Sequence[Run]) -> list[list[str]]:
  """Returns shell commands that train, evaluate and report the runs again.

  Their parts, such as an option with its value, are to be joined by spaces.
  `CORPUS_...` stands for a grouped corpus whose place the runs do not record.
  """
  commands = []
  workdirs = [f'runs/{run.name}' for run in runs]
  paths = reproduction_files(runs)
  for run, workdir, path in zip(runs, workdirs, paths, strict=True):
    commands.append(
      [
        'fedfish train',
        f'--config {shlex.quote(path)}',
        f'--workdir {shlex.quote(workdir)}',
      ]
    )
    commands += [_evaluate_command(run, e, workdir) for e in run.evaluations]
  quoted = ' '.join(map(shlex.quote, workdirs))
  commands.append(['fedfish report', f'--runs {quoted}', '--output report'])
  return commands


def _evaluate_command(
  run: Run, evaluation: NamedEvaluation, workdir: str
) -> list[str]:
  summary = evaluation.summary
  checkpoint = workdir
  if evaluation.round_num != run.last_round:
    checkpoint += f'/checkpoints/round_{evaluation.round_num:08d}'
  data = run.train_config.data.directory
  own = run.identity and run.identity.fingerprint
  is_other = own not in (None, summary.corpus_identity.fingerprint)
  if is_other or summary.kind == 'transfer' or not isinstance(data, str):
    data = f'CORPUS_{evaluation.corpus}'
  fine_tuning, skipped = summary.personalization, summary.skipped_clients
  max_clients: int | str = summary.num_clients
  if summary.kind in OWN_ROWS:
    # Those without rows count as well.
    max_clients += skipped.get('without_own_rows', 0)
    if not skipped.get('beyond_max_clients'):
      max_clients = 'all'
    # Of their own rows the run says how long they are.
    fine_tuning = fine_tuning | {'sequence_length': None}
  options = {
    'checkpoint': checkpoint,
    'data': data,
    'fractions': ','.join(f'{f:g}' for f in evaluation.fractions) or None,
    # The same clients, whether or not there were more to choose from.
    'max_clients': max_clients,
    # No bound then is no bound now.
    'max_sequences_per_client': (
      fine_tuning.get('max_sequences_per_client') or 'all'
    ),
    'sequence_length': fine_tuning.get('sequence_length'),
    'split_unit': fine_tuning.get('split_unit'),
    'personalization_epochs': fine_tuning.get('epochs'),
    'learning_rate': fine_tuning.get('learning_rate'),
  }
  if summary.kind in ('participating', *OWN_ROWS):
    options['client_split'] = summary.kind
  options['output'] = f'{workdir}/evaluations/{evaluation.name}'
  parts = [
    f'--{name} {shlex.quote(str(value))}'
    for name, value in options.items()
    if value is not None
  ]
  barrier = ['--barrier'] if evaluation.has_barrier else []
  return ['fedfish evaluate', *parts, *barrier]


def _shown(value: Any) -> str:
  if isinstance(value, str):
    return value
  return json.dumps(value, ensure_ascii=False)
