"""Prints the runs of `fedfish sweep --dry_run`, and how long they last."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

from tff_fedfish.planning import client_steps
from tff_fedfish.sweeping import sweep_runs, sweep_state
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.sweeping.sweep_runs import SweepRun


def print_sweep(
  file: SweepFile, workdir: str | os.PathLike | None = None
) -> None:
  """Prints the runs of a sweep; reads its directory, but writes nothing.

  Args:
    file: The sweep.
    workdir: Its directory, whose runs are shown as done, begun or new. None:
      their status is left out.

  Raises:
    UserError: If the sweep cannot be run, or `workdir` holds another one.
  """
  directory = pathlib.Path(workdir or '')
  search_runs = sweep_runs.expand_search(file, directory)
  arms = sweep_runs.expand_arms(file, directory)
  if workdir:
    sweep_state.require_same_sweep(directory, file)
  unit = 'images' if file.base.data.holds_images else 'tokens'
  for title, runs in (
    ('Search for learning rates', search_runs),
    ('Runs', arms),
  ):
    if runs:
      _print_table(title, [_row(run, unit, bool(workdir)) for run in runs])
  runs = [*search_runs, *arms]
  num_rounds = sum(run.num_rounds for run in runs)
  counts = [_count_tokens(run) for run in runs]
  num_tokens = '-' if None in counts else f'{sum(counts):,}'
  num_evaluations = sum(len(arm.evaluations) for arm in arms)
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


def _row(run: SweepRun, unit: str, has_status: bool) -> dict[str, str]:
  num_local_epochs = run.config.client_work.num_local_epochs
  count = _count_tokens(run)
  return {
    'run': run.run.name,
    'rounds': f'{run.num_rounds:,}',
    'local epochs': f'{num_local_epochs:,}',
    'in all': f'{run.num_rounds * num_local_epochs:,}',
    f'{unit}, at most': '-' if count is None else f'{count:,}',
    **({'status': _status(run)} if has_status else {}),
    **({'budget': ', '.join(run.budgets)} if run.is_arm else {}),
  }


def _print_table(title: str, rows: Sequence[dict[str, str]]) -> None:
  from rich import box
  from rich.console import Console
  from rich.table import Table

  table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD)
  for heading in rows[0]:
    is_text = heading in ('run', 'status', 'budget')
    table.add_column(heading, justify='left' if is_text else 'right')
  for row in rows:
    table.add_row(*row.values())
  console = Console(markup=False, highlight=False)
  if not console.is_terminal:
    # A file or a pipe has no width to which names would have to be cut.
    console.width = 200
  console.print(table)


def _status(run: SweepRun) -> str:
  # Rates that a search has yet to choose are not in the run's config.
  if dataclasses.replace(run, config=None).is_done():
    is_diverged = run.diverged_checkpoint()
    return sweep_state.DIVERGED if is_diverged else sweep_state.DONE
  num_rounds = run.rounds_and_loss()[0]
  return f'after round {num_rounds:,}' if num_rounds else 'new'


def _count_tokens(run: SweepRun) -> int | None:
  """Returns the targets of a run at most. None: the config has no cap."""
  per_round = client_steps.max_tokens_per_round(run.config)
  return None if per_round is None else run.num_rounds * per_round
