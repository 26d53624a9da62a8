"""Commands that repeat runs, make them comparable, or add seeds."""

import itertools
import json
import pathlib
import shlex
from collections.abc import Sequence

from tff_fedfish.config.load import CONFIG_NAME
from tff_fedfish.evaluation.options import OWN_ROWS
from tff_fedfish.reporting import settings
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.estimates import MIN_SEEDS
from tff_fedfish.reporting.runs import (
  SEEDS,
  NamedEvaluation,
  Run,
  Seeds,
  shared_seeds,
)
from tff_fedfish.run import checkpoints, store

CONFIGS_NAME = 'configs'
"""Directory in a report with the configuration of each run."""
# A run that diverges is one, too: its scores are those of a good checkpoint.
_MAY_DIVERGE = '|| [ $? = 1 ]'
# Between the seeds of a run and those of its repetition.
_SEED_STEP = 1000


def reproduction_files(runs: Sequence[Run]) -> dict[str, str]:
  """Returns the config.json of each run, by its path in the report.

  It is what `fedfish train --config` reads; without `seeds.privacy_seed`.
  """
  return {
    f'{CONFIGS_NAME}/{run.name}/{CONFIG_NAME}': json.dumps(
      settings.published(run.config), indent=2
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
        *[_MAY_DIVERGE] * run.has_diverged,
      ]
    )
    # As typed: it is for another machine.
    data = run.config['data'].get('directory')
    commands += [
      evaluate_command(run, e, workdir, data) for e in run.evaluations
    ]
  quoted = ' '.join(map(shlex.quote, workdirs))
  commands.append(['fedfish report', f'--runs {quoted}', '--output report'])
  return commands


def is_measurable(run: Run, evaluation: NamedEvaluation) -> bool:
  """Returns whether `evaluate_command` of another run's evaluation would run.

  Clients' own models are scored on their own rows only. The run must have such
  rows, sequences as long, and the round.
  """
  config, kind = run.train_config, evaluation.summary.kind
  is_personal = config.method.personal(config) is not None
  if is_personal and kind not in OWN_ROWS:
    return False
  validation, test = config.row_fractions
  has_rows = {
    'own_validation': validation > 0,
    'own_test': test > 0 or config.partition.has_twins,
    'held_out': config.client_splits.held_out_fraction != 0,
  }
  if not has_rows.get(kind, True):
    return False
  longest = config.data.sequence_length
  wanted = evaluation.summary.personalization.get('sequence_length')
  if kind not in OWN_ROWS and wanted and wanted > (longest or 0):
    return False
  if evaluation.num_trials > 1 or evaluation.round_num == run.last_round:
    return True
  rounds = run.directory / store.CHECKPOINTS
  checkpoint = checkpoints.path_of(rounds, evaluation.round_num)
  return checkpoint.exists() or not rounds.exists()


def evaluate_command(
  run: Run, evaluation: NamedEvaluation, workdir: str, data: str | None = None
) -> list[str]:
  """Returns the command that repeats an evaluation, in `workdir`.

  Its parts are to be joined by spaces. Its output is new to the run. `data` is
  the place of the run's own corpus; None: where it is from here.
  """
  summary = evaluation.summary
  checkpoint = workdir
  if evaluation.num_trials > 1:
    checkpoint += '@best'
  elif evaluation.round_num != run.last_round:
    rounds = pathlib.Path(workdir, store.CHECKPOINTS)
    checkpoint = str(checkpoints.path_of(rounds, evaluation.round_num))
  data = data or run.train_config.data.directory
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
    'fractions': ','.join(map(_exact, evaluation.fractions)) or None,
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
  name, taken = evaluation.name, {e.name for e in run.evaluations}
  if evaluation not in run.evaluations and name in taken:
    name += '_alike'
  options['output'] = f'{workdir}/evaluations/{name}'
  parts = [
    f'--{name} {shlex.quote(str(value))}'
    for name, value in options.items()
    if value is not None
  ]
  # The barrier is no score, and not every run has one.
  is_own = evaluation in run.evaluations
  barrier = ['--barrier'] * (is_own and evaluation.barriers is not None)
  return ['fedfish evaluate', *parts, *barrier]


def more_seeds_commands(arms: Sequence[Arm]) -> list[list[str]]:
  """Returns commands that give all arms the same three seeds or more.

  They run where the report was made, and may be run again. Runs that are not
  over have none. Evaluations on other corpora, whose place is not recorded, and
  of earlier rounds are not among them.
  """
  if not arms:
    return []
  of_arms = [{shared_seeds(run.seeds) for run in arm.runs} for arm in arms]
  runs = [run for arm in arms for run in arm.runs]
  wanted = list(dict.fromkeys(shared_seeds(run.seeds) for run in runs))
  if len(set.intersection(*of_arms)) >= MIN_SEEDS:
    return []
  if not all(run.is_over for run in runs):
    return []
  further = (
    tuple(s + number * _SEED_STEP for s in wanted[0])
    for number in itertools.count(len(wanted))
  )
  while len(wanted) < MIN_SEEDS:
    seeds = next(further)
    if seeds not in wanted:
      wanted.append(seeds)
  commands, workdirs = [], []
  taken = {run.directory for run in runs}
  for own, arm in zip(of_arms, arms, strict=True):
    # One that diverged has no evaluation of its last round.
    run = min(arm.runs, key=lambda r: r.has_diverged)
    workdirs += [str(r.directory) for r in arm.runs]
    names = (f'{run.directory}_seed{n}' for n in itertools.count(2))
    free = (name for name in names if pathlib.Path(name) not in taken)
    for seeds in wanted:
      if seeds in own:
        continue
      workdir = next(free)
      workdirs.append(workdir)
      commands.append(_train_command(run, workdir, seeds))
      commands += [
        _unless(
          f'{workdir}/evaluations/{evaluation.name}',
          evaluate_command(run, evaluation, workdir),
        )
        for evaluation in run.evaluations
        if evaluation.summary.kind != 'transfer'
        and (
          evaluation.num_trials > 1 or evaluation.round_num == run.last_round
        )
      ]
  quoted = ' '.join(map(shlex.quote, workdirs))
  output = '--output three_seeds_report'
  return [*commands, ['fedfish report', f'--runs {quoted}', output]]


def _exact(number: float) -> str:
  """Returns a number as text that gives it back, such as '0' or '0.25'."""
  return repr(float(number)).removesuffix('.0')


def _train_command(run: Run, workdir: str, seeds: Seeds) -> list[str]:
  """Returns the command that trains a run with other seeds."""
  config = run.directory / CONFIG_NAME
  named = zip(SEEDS, seeds, strict=False)
  command = [
    f'fedfish train --config {shlex.quote(str(config))}',
    f'--workdir {shlex.quote(workdir)}',
    *(f'--config.{name}={seed}' for name, seed in named),
  ]
  if not run.train_config.local_privacy.is_on:
    return [*command, _MAY_DIVERGE]
  # Nobody may know the seed of the noise, and a run goes on with its own.
  seed = '$(($(od -An -N4 -tu4 /dev/urandom) % 2147483648))'
  command.append(f'--config.{SEEDS[-1]}={seed}')
  path = f'{workdir}/{CONFIG_NAME}'
  go_on = f'fedfish train --workdir {shlex.quote(workdir)}'
  condition = f'if [ -e {shlex.quote(path)} ]; then {go_on}; else'
  return [condition, *command, '; fi', _MAY_DIVERGE]


def _unless(path: str, command: Sequence[str]) -> list[str]:
  """Returns a command that does nothing where its output is."""
  return [f'[ -e {shlex.quote(path)} ] ||', *command]
