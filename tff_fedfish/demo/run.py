"""Runs the demo: group, train, evaluate, report; continues by itself."""

import contextlib
import io
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

from tff_fedfish import files
from tff_fedfish.demo import plan
from tff_fedfish.sweeping import jobs
from tff_fedfish.sweeping.progress import JobsProgress

_MARKER = 'corpora'


def run_demo(
  run_command: Callable[[Sequence[str]], int],
  workdir: str | os.PathLike,
  settings: plan.DemoSettings | None = None,
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
  settings = settings or plan.DemoSettings()
  workdir = files.require_usable_output(workdir, '--workdir', marker=_MARKER)
  start = time.monotonic()
  code = (
    _group(run_command, workdir)
    or _run_arms(run_command, workdir, settings)
    or _run_here(run_command, plan.report_command(workdir))
  )
  if code:
    return code
  _print_table(workdir)
  print(f'Page: {workdir / "report" / "index.html"}')
  print(f'Done in {time.monotonic() - start:.0f} s.')
  return 0


def _group(run_command, workdir: pathlib.Path) -> int:
  for directory, command in plan.group_commands(workdir).items():
    if not (directory / 'manifest.json').exists():
      directory.parent.mkdir(parents=True, exist_ok=True)
      code = _run_here(run_command, command)
      if code:
        return code
  return 0


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
  run_command, workdir: pathlib.Path, settings: plan.DemoSettings
) -> int:
  every_job = [plan.arm_job(workdir, arm, settings) for arm in plan.ARMS]
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
