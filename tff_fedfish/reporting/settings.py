"""Configurations and environments side by side, and how to reproduce runs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.evaluation.options import OWN_ROWS
from tff_fedfish.reporting.runs import Run

REPRODUCTION_FILE = 'reproduce.py'
"""Name of the configuration file that a report carries."""


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


def reproduction_config(runs: Sequence[Run]) -> str:
  """Returns a configuration file with what all runs have in common.

  It is Python source with `get_config()`. Settings that differ hold the value
  of the first run that has them; `reproduction_commands` overrides them.
  """
  merged: dict[str, dict[str, Any]] = {}
  for run in runs:
    for section, values in _trained_config(run).items():
      found = merged.setdefault(section, {})
      found |= {k: v for k, v in values.items() if k not in found}
  lines = [
    '"""The configuration of the runs in this report."""',
    '',
    '',
    'def get_config():',
    '  config = {}',
  ]
  for section, values in merged.items():
    lines.append(f'  config[{section!r}] = {{')
    lines += [f'    {name!r}: {value!r},' for name, value in values.items()]
    lines.append('  }')
  return '\n'.join([*lines, '  return config', ''])


def reproduction_commands(runs: Sequence[Run]) -> list[list[str]]:
  """Returns shell commands that train, evaluate and report the runs again.

  Their parts, such as an option with its value, are to be joined by spaces.
  `CORPUS_...` stands for a grouped corpus whose place the runs do not record.
  """
  configs = [flatten(_trained_config(run)) for run in runs]
  differing = [
    name
    for name in dict.fromkeys(name for values in configs for name in values)
    # Of a setting that one method reads, the file holds the value.
    if len({repr(values[name]) for values in configs if name in values}) > 1
  ]
  commands = []
  workdirs = [f'runs/{run.name}' for run in runs]
  for run, workdir, values in zip(runs, workdirs, configs, strict=True):
    overrides = [
      shlex.quote(f'--config.{name}={values[name]}')
      for name in differing
      if name in values
    ]
    train = ['fedfish train', f'--config {REPRODUCTION_FILE}']
    train += [f'--workdir {shlex.quote(workdir)}', *overrides]
    commands.append(train)
    commands += [_evaluate_command(run, e, workdir) for e in run.evaluations]
  quoted = ' '.join(map(shlex.quote, workdirs))
  commands.append(['fedfish report', f'--runs {quoted}', '--output report'])
  return commands


def _evaluate_command(run, evaluation, workdir):
  checkpoint = workdir
  if evaluation.round_num not in (None, run.last_round):
    checkpoint += f'/checkpoints/round_{evaluation.round_num:08d}'
  data, corpora = run.setting('data.directory'), (run, evaluation)
  known = {c.identity.fingerprint for c in corpora if c.identity}
  is_other = evaluation.kind == 'transfer' or len(known) > 1
  if is_other or not isinstance(data, str):
    data = f'CORPUS_{evaluation.corpus}'
  fine_tuning = evaluation.personalization
  max_clients = evaluation.num_clients
  if evaluation.kind in OWN_ROWS:
    # Those without rows count as well.
    skipped = evaluation.skipped_clients
    max_clients += skipped.get('without_own_rows', 0)
    if not skipped.get('beyond_max_clients'):
      max_clients = None
  options = {
    'checkpoint': checkpoint,
    'data': data,
    'fractions': ','.join(f'{f:g}' for f in evaluation.fractions) or None,
    # The same clients, whether or not there were more to choose from.
    'max_clients': max_clients,
    'max_sequences_per_client': fine_tuning.get('max_sequences_per_client'),
    'personalization_epochs': fine_tuning.get('epochs'),
    'learning_rate': fine_tuning.get('learning_rate'),
  }
  if evaluation.kind in ('participating', *OWN_ROWS):
    options['client_split'] = evaluation.kind
  options['output'] = f'{workdir}/evaluations/{evaluation.name}'
  parts = [
    f'--{name} {shlex.quote(str(value))}'
    for name, value in options.items()
    if value is not None
  ]
  barrier = ['--barrier'] if evaluation.has_barrier else []
  return ['fedfish evaluate', *parts, *barrier]


def _trained_config(run):
  """Returns the published sections, without what the method ignores."""
  return {
    section: {k: v for k, v in values.items() if run.reads(f'{section}.{k}')}
    for section, values in published(run.config).items()
    if section not in ('schema_version', 'resolved')
  }


def _shown(value):
  if isinstance(value, str):
    return value
  return json.dumps(value, ensure_ascii=False)
