"""What `fedfish sweep --dry_run` prints: every run and how long it lasts."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

from tff_fedfish.planning import client_steps
from tff_fedfish.sweeping import arms as arms_lib
from tff_fedfish.sweeping import record, sweep_jobs
from tff_fedfish.sweeping.job import Job
from tff_fedfish.sweeping.sweep_file import SweepFile

_HEADINGS = ('run', 'rounds', 'local epochs', 'in all')


def print_sweep(
  file: SweepFile, workdir: str | os.PathLike | None = None
) -> None:
  """Prints the runs of a sweep; reads its directory, but writes nothing.

  Args:
    file: The sweep.
    workdir: Its directory, whose runs are shown as done, begun or new; None:
      all are taken to be new.

  Raises:
    UserError: If the sweep cannot be run, or `workdir` holds another one.
  """
  search_runs = arms_lib.expand_search(file)
  arms = arms_lib.expand_arms(file)
  arms_lib.print_unread(file, arms)
  directory = None
  if workdir is not None:
    directory = pathlib.Path(workdir)
    record.require_same_sweep(directory, file)
  sweep, place = file.sweep, directory or pathlib.Path()
  unit = 'images' if file.base.data.holds_images else 'tokens'
  if search_runs:
    jobs = [
      sweep_jobs.search_job(place, run, sweep.search) for run in search_runs
    ]
    rows = [
      _row(run, job, directory)
      for run, job in zip(search_runs, jobs, strict=True)
    ]
    _print_table('Search for learning rates', _headings(unit, directory), rows)
  jobs = [sweep_jobs.arm_job(place, arm, sweep.evaluations) for arm in arms]
  rows = [
    [*_row(arm, job, directory), ', '.join(arm.budgets)]
    for arm, job in zip(arms, jobs, strict=True)
  ]
  _print_table('Runs', [*_headings(unit, directory), 'budget'], rows)
  runs = [*search_runs, *arms]
  num_rounds = sum(run.num_rounds for run in runs)
  counts = [_count_tokens(run) for run in runs]
  num_tokens = '-' if None in counts else f'{sum(counts):,}'
  num_evaluations = sum(len(job.evaluations) for job in jobs)
  print(
    f'{len(runs)} runs, {num_rounds:,} rounds, {num_tokens} {unit} at most; '
    f'{num_evaluations} evaluations of {len(arms)} runs.'
  )
  num_cells = sum(arm.num_cells for arm in arms)
  if num_cells > len(arms):
    print(
      f'{num_cells} cells of the grid resolve to {len(arms)} configs, each of '
      'which runs once.'
    )


def _headings(unit, directory):
  return [*_HEADINGS, f'{unit}, at most', *(['status'] if directory else [])]


def _row(run, job: Job, directory) -> list[str]:
  num_local_epochs = run.config.client_work.num_local_epochs
  row = [
    run.name,
    f'{run.num_rounds:,}',
    f'{num_local_epochs:,}',
    f'{run.num_rounds * num_local_epochs:,}',
    _num_tokens(run),
  ]
  return [*row, _status(job)] if directory else row


def _status(job: Job) -> str:
  # Rates that a search has yet to choose are not in the job's config.
  if dataclasses.replace(job, config=None).is_done():
    return record.DIVERGED if job.diverged_checkpoint() else record.DONE
  num_rounds = job.num_rounds_done()
  return f'after round {num_rounds:,}' if num_rounds else 'new'


def _num_tokens(run) -> str:
  count = _count_tokens(run)
  return '-' if count is None else f'{count:,}'


def _count_tokens(run) -> int | None:
  """Returns the targets of a run at most; None where the config has no cap."""
  per_round = client_steps.max_tokens_per_round(run.config)
  return None if per_round is None else run.num_rounds * per_round


def _print_table(
  title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
  from rich import box
  from rich.console import Console
  from rich.table import Table

  table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD)
  for column, heading in enumerate(headings):
    is_number = 0 < column <= len(_HEADINGS)
    table.add_column(heading, justify='right' if is_number else 'left')
  for row in rows:
    table.add_row(*row)
  console = Console(markup=False, highlight=False)
  if not console.is_terminal:
    # A file or a pipe has no width to which names would have to be cut.
    console.width = 200
  console.print(table)
