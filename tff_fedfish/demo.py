"""Runs the demo: group, train, evaluate, report; continues by itself."""

import contextlib
import dataclasses
import io
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from tff_fedfish import corpora, files
from tff_fedfish.config import given
from tff_fedfish.config import load as config_loading
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.jobs import Job
from tff_fedfish.sweeping.progress import JobsProgress

PRETRAINING_NAME = 'debian_descriptions'
TRANSFER_NAME = 'sotu_by_president'
CONFIG = given.SHIPPED / 'demo.py'


@dataclasses.dataclass(frozen=True)
class Arm:
  """One run of the comparison."""

  algorithm: str
  num_local_epochs: int

  @property
  def name(self) -> str:
    """The name of the run's directory, such as 'fed_fish_e8'."""
    return f'{self.algorithm}_e{self.num_local_epochs}'


# Longest first: with two workers the short ones fill the gaps.
ARMS = (
  Arm('fed_fish', 8),
  Arm('fed_avg', 8),
  Arm('fed_fish', 1),
  Arm('fed_avg', 1),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings:
  """How large the demo is; smaller in tests."""

  overrides: tuple[str, ...] = ()
  """Further arguments of every `fedfish train`."""
  max_clients: int = 24
  """Clients per evaluation, at most."""
  max_sequences_per_client: int = 16
  """Sequences per client in evaluations, at most; half of them scored."""


def run_demo(
  run_command: Callable[[Sequence[str]], int],
  workdir: str | os.PathLike,
  settings: DemoSettings | None = None,
) -> int:
  """Carries out what is left of the demo and prints its table.

  Args:
    run_command: As for `jobs.run_jobs`.
    workdir: New, or of an earlier demo, which is continued.
    settings: How large it is.

  Returns:
    0, or the exit code of the first step that failed or was interrupted.

  Raises:
    UserError: If the directory cannot be used.
  """
  workdir = files.require_usable_output(workdir, '--workdir', marker='corpora')
  start = time.monotonic()
  for directory, command in group_commands(workdir).items():
    if not (directory / 'manifest.json').exists():
      directory.parent.mkdir(parents=True, exist_ok=True)
      if code := _run_here(run_command, command):
        return code
  if code := _run_arms(run_command, workdir, settings or DemoSettings()):
    return code
  # Short runs first.
  runs = [str(workdir / arm.name) for arm in reversed(ARMS)]
  report = ['report', '--runs', *runs, '--output', str(workdir / 'report')]
  if code := _run_here(run_command, report):
    return code
  print_results(runs)
  print(f'Page: {workdir / "report" / "index.html"}')
  print(f'Done in {time.monotonic() - start:.0f} s.')
  return 0


def group_commands(workdir: pathlib.Path) -> dict[pathlib.Path, list[str]]:
  """Returns the command that makes each corpus, by its directory."""
  debian = corpora.debian_descriptions() / 'c4-train.*.json.gz'
  sources = {
    PRETRAINING_NAME: (debian, 'host'),
    TRANSFER_NAME: (corpora.sotu_by_president() / 'sotu.json.gz', 'author'),
  }
  return {
    workdir / 'corpora' / name: [
      *('group', 'c4', '--input', str(pattern), '--key', key),
      *('--output', str(workdir / 'corpora' / name)),
    ]
    for name, (pattern, key) in sources.items()
  }


def _arm_job(workdir: pathlib.Path, arm: Arm, settings: DemoSettings) -> Job:
  """Returns an arm's training and evaluations."""
  run = workdir / arm.name
  values = {
    'algorithm.name': arm.algorithm,
    'client_work.num_local_epochs': arm.num_local_epochs,
    'data.directory': workdir / 'corpora' / PRETRAINING_NAME,
    'data.vocabulary': 'demo',
  }
  overrides = [f'--config.{name}={value}' for name, value in values.items()]
  overrides += settings.overrides
  evaluations = {}
  for name, flags in ((PRETRAINING_NAME, ['--barrier']), (TRANSFER_NAME, [])):
    output = run / 'evaluations' / name
    evaluations[output] = [
      *('evaluate', '--checkpoint', str(run)),
      *('--data', str(workdir / 'corpora' / name), '--output', str(output)),
      f'--max_clients={settings.max_clients}',
      f'--max_sequences_per_client={settings.max_sequences_per_client}',
      *flags,
    ]
  train = ['train', '--config', str(CONFIG), '--workdir', str(run), *overrides]
  return Job(
    name=arm.name,
    run=run,
    num_rounds=config_loading.load_config(
      CONFIG, overrides
    ).training.num_rounds,
    train=train,
    evaluations=evaluations,
    log=workdir / 'logs' / f'{arm.name}.log',
  )


def _run_here(run_command, command: list[str]) -> int:
  """Runs one command here; what it prints is shown only if it fails."""
  _show(command)
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    code = run_command(command)
  if code:
    print(printed.getvalue(), end='')
  return code


def _run_arms(
  run_command, workdir: pathlib.Path, settings: DemoSettings
) -> int:
  """Runs what is left of the arms, two at a time; returns the exit code."""
  every_job = [_arm_job(workdir, arm, settings) for arm in ARMS]
  pending = {job.name: job for job in every_job if not job.is_done()}
  if not pending:
    return 0
  for job in pending.values():
    for command in job.pending_commands():
      _show(command)
  exit_codes = {'': 0}
  with JobsProgress(list(pending.values())) as progress:
    exit_codes[''] = jobs.run_jobs(
      run_command,
      pending.values(),
      min(len(pending), len(os.sched_getaffinity(0)), 2),
      progress.update,
      lambda job, exit_code: exit_codes.update({job.name: exit_code}),
    )
  for name, code in exit_codes.items():
    if code in jobs.INTERRUPTED:
      print(jobs.CONTINUES, file=sys.stderr)
      return code
    if code:
      print(pending[name].failure(code), file=sys.stderr)
      return code
  return 0


def print_results(runs: Sequence[str]) -> None:
  """Prints the main table of runs, by their directories."""
  from tff_fedfish.printing import print_table
  from tff_fedfish.reporting.loading import load_runs
  from tff_fedfish.reporting.tables import main_table

  print_table(
    'Loss in nats per token; best of a column: *',
    *main_table(load_runs(runs), measures=('loss', 'barrier', 'cost')),
    has_frame=True,
    # Long headings are folded instead.
    pipe_width=120,
  )


def _show(command: list[str]) -> None:
  print(f'$ fedfish {" ".join(command)}', file=sys.stderr)
