"""Prints the runs of a sweep, and how far they are."""

import os
import pathlib
from collections.abc import Sequence

from tff_fedfish import printing
from tff_fedfish.planning import client_steps
from tff_fedfish.sweeping import record
from tff_fedfish.sweeping.expand import expand_arms
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.searches import arms_with_rates, read_searches
from tff_fedfish.sweeping.sweep_file import SweepFile

_TEXT_COLUMNS = ('run', 'status', 'budget')


def print_sweep(
  file: SweepFile, workdir: str | os.PathLike | None = None
) -> None:
  """Prints the runs of a sweep, and the status of those in `workdir`, if any.

  Writes nothing.

  Raises:
    UserError: If the sweep cannot be run, or `workdir` holds another one.
  """
  # Without one no run has been started: nothing is below a file.
  directory = pathlib.Path(workdir or os.devnull).resolve()
  arms = expand_arms(file, directory)
  if workdir:
    record.require_same_sweep(directory, file)
  searches = read_searches(file, arms)
  ready, _ = arms_with_rates(file, arms, searches)
  ready = {arm.name: arm for arm in ready}
  arms = [ready.get(arm.name, arm) for arm in arms]
  search_runs = [run for search in searches for run in search.runs]
  unit = 'images' if file.base.data.holds_images else 'tokens'
  _print_runs('Search for learning rates', search_runs, unit, bool(workdir))
  _print_runs('Runs', arms, unit, bool(workdir))
  runs = [*search_runs, *arms]
  counts = [_max_tokens(run) for run in runs]
  num_tokens = '-' if None in counts else f'{sum(counts):,}'
  num_evaluations = sum(len(arm.evaluations) for arm in arms)
  print(
    f'{len(runs)} runs, {sum(run.num_rounds for run in runs):,} rounds, '
    f'{num_tokens} {unit} at most; {num_evaluations} evaluations of '
    f'{len(arms)} runs.'
  )


def _print_runs(
  title: str, runs: Sequence[Run], unit: str, has_status: bool
) -> None:
  rows = []
  for run in runs:
    epochs, count = run.config.client_work.num_local_epochs, _max_tokens(run)
    row = {
      'run': run.directory.name,
      'rounds': f'{run.num_rounds:,}',
      'local epochs': f'{epochs:,}',
      'epochs in all rounds': f'{run.num_rounds * epochs:,}',
      f'{unit}, at most': '-' if count is None else f'{count:,}',
    }
    row |= {'status': _status(run)} if has_status else {}
    rows.append(
      row | ({'budget': ', '.join(run.budgets)} if run.budgets else {})
    )
  if rows:
    headings = list(rows[0])
    texts = [headings.index(n) for n in _TEXT_COLUMNS if n in headings]
    cells = [row.values() for row in rows]
    printing.print_table(title, headings, cells, text_columns=texts)


def _max_tokens(run: Run) -> int | None:
  """Returns the tokens or images of a training; None without a cap."""
  per_round = client_steps.max_tokens_per_round(run.config)
  return None if per_round is None else run.num_rounds * per_round


def _status(run: Run) -> str:
  if run.is_done():
    return 'diverged' if run.diverged_checkpoint() else 'done'
  saved = run.saved_round()
  return f'after round {saved:,}' if saved else 'new'
