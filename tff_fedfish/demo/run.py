"""Runs the demo: group, train, evaluate, report; continues by itself."""

import contextlib
import io
import os
import pathlib
import sys
import time

from tff_fedfish import files
from tff_fedfish.demo import plan, workers
from tff_fedfish.demo.progress import ArmsProgress

_MARKER = 'corpora'


def run_demo(
  workdir: str | os.PathLike, settings: plan.DemoSettings | None = None
) -> int:
  """Carries out what is left of the demo and prints its table.

  Args:
    workdir: New, or of an earlier demo, which is continued.
    settings: How large it is.

  Returns:
    0, or the exit code of the first step that failed or was interrupted.

  Raises:
    UserError: If the directory cannot be used.
  """
  settings = settings or plan.DemoSettings()
  workdir = files.require_usable_output(workdir, '--workdir', marker=_MARKER)
  start = time.monotonic()
  code = _group(workdir) or _run_arms(workdir, settings)
  if code:
    return code
  code = _command(plan.report_command(workdir))
  if code:
    return code
  _print_table(workdir)
  print(f'Page: {workdir / "report" / "index.html"}')
  print(f'Done in {time.monotonic() - start:.0f} s.')
  return 0


def _group(workdir: pathlib.Path) -> int:
  for directory, command in plan.group_commands(workdir).items():
    if not (directory / 'manifest.json').exists():
      directory.parent.mkdir(parents=True, exist_ok=True)
      code = _command(command)
      if code:
        return code
  return 0


def _command(command: list[str]) -> int:
  """Runs one command here; what it prints is shown only if it fails."""
  from tff_fedfish.cli.main import main

  _show(command)
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    code = main(command)
  if code:
    print(printed.getvalue(), end='')
  return code


def _run_arms(workdir: pathlib.Path, settings: plan.DemoSettings) -> int:
  from tff_fedfish.training import config_loading

  first_train = plan.arm_commands(workdir, plan.ARMS[0], settings)[0]
  overrides = [a for a in first_train if a.startswith('--config.')]
  num_rounds = config_loading.load_config(
    plan.config_path(), overrides
  ).training.num_rounds
  arms = [
    arm for arm in plan.ARMS if not _is_done(workdir, arm, num_rounds, settings)
  ]
  if not arms:
    return 0
  jobs = {}
  for arm in arms:
    commands = plan.arm_commands(workdir, arm, settings)
    for command in commands:
      _show(command)
    jobs[arm.name] = (commands, workdir / 'logs' / f'{arm.name}.log')
  with ArmsProgress(workdir, arms, num_rounds, settings) as progress:
    exit_codes = workers.run_jobs(
      jobs, workers.default_num_workers(len(jobs)), progress.update
    )
  for name, code in exit_codes.items():
    if code in (130, 143):
      print(
        'fedfish: interrupted; the same command continues.', file=sys.stderr
      )
      return code
    if code:
      _print_failure(name, code, jobs[name][1])
      return code
  return 0


def _is_done(workdir, arm, num_rounds, settings) -> bool:
  from tff_fedfish.training import checkpoints

  rounds = checkpoints.list_rounds(
    plan.run_directory(workdir, arm) / 'checkpoints'
  )
  evaluations = plan.evaluate_commands(workdir, arm, settings)
  return num_rounds in rounds and all(path.exists() for path in evaluations)


def _print_failure(name: str, code: int, log: pathlib.Path) -> None:
  lines = log.read_text(errors='replace').strip().splitlines() or ['']
  print(
    f'fedfish: error: the run {name} ended with exit code {code}: '
    f'{lines[-1]} (all of its output: {log})',
    file=sys.stderr,
  )


def _print_table(workdir: pathlib.Path) -> None:
  from rich.console import Console
  from rich.table import Table

  from tff_fedfish.reporting.loading import load_runs
  from tff_fedfish.reporting.tables import main_table

  runs = load_runs(
    [plan.run_directory(workdir, arm) for arm in reversed(plan.ARMS)]
  )
  headings, rows = main_table(runs, measures=('loss', 'barrier', 'cost'))
  table = Table(title='Loss in nats per token; best of a column: *')
  for column, heading in enumerate(headings):
    justify = 'right' if column else 'left'
    table.add_column(heading, justify=justify, no_wrap=not column)
  for row in rows:
    table.add_row(*row)
  console = Console()
  if not console.is_terminal:
    # A pipe has no width; folding cells to 80 columns would help nobody.
    console = Console(width=120)
  console.print(table)


def _show(command: list[str]) -> None:
  print(f'$ fedfish {" ".join(command)}', file=sys.stderr)
