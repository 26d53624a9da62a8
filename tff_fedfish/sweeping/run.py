"""Runs a sweep: searches, then all arms; continues by itself."""

import concurrent.futures
import contextlib
import dataclasses
import math
import multiprocessing
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence

from tff_fedfish import files, printing
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError, UserErrors
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.planning import client_steps
from tff_fedfish.run import client_data, run_directory
from tff_fedfish.sweeping import jobs, sweep_runs, sweep_state
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.jobs import require_memory, write_config
from tff_fedfish.sweeping.learning_rate_search import (
  choice_line,
  choose,
  extension,
  held_out_share,
  validation_score,
)
from tff_fedfish.sweeping.progress import JobsProgress
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.sweeping.sweep_runs import SweepRun
from tff_fedfish.training import check

_TEXT_COLUMNS = ('run', 'status', 'budget')


def run_sweep(
  run_command: Callable[[Sequence[str]], int],
  file: SweepFile,
  workdir: str | os.PathLike,
  *,
  num_jobs: int = 1,
  trackers: Sequence[str] = (),
) -> int:
  """Carries out what is left of a sweep.

  Args:
    run_command: As for `jobs.run_jobs`.
    file: The sweep.
    workdir: New, or of an earlier start of the same sweep.
    num_jobs: Runs at a time, >= 1.
    trackers: As for `train`.

  Returns:
    0; 1 if a run failed, after all others; 130 or 143 after a signal.

  Raises:
    UserError: If the sweep, its corpora or the directory cannot be used, or
      the runs do not fit into memory side by side.
  """
  if num_jobs < 1:
    raise UserError(f'`--jobs` must be at least 1, found {num_jobs}. Raise it.')
  workdir = pathlib.Path(workdir).resolve()
  search_runs = sweep_runs.expand_search(file, workdir)
  arms = sweep_runs.expand_arms(file, workdir)
  files.require_usable_output(workdir, '--workdir', marker=sweep_state.NAME)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(run_directory.lock(workdir))
    except UserError as error:
      raise UserError(
        f'`--workdir` {str(workdir)!r} is in use by another `fedfish sweep`. '
        'Wait until it ends, or name another directory.'
      ) from error
    sweep_state.require_same_sweep(workdir, file)
    configs = [run.config for run in (*search_runs, *arms)]
    _require_runs(configs)
    corpora = {
      (config.data, request.data): config
      for config in configs
      for request in file.evaluations
      if request.data
    }
    for (_, directory), config in corpora.items():
      client_data.open_corpus(config, directory)
    sweep = _Sweep(file, workdir, num_jobs, search_runs, arms, trackers)
    return sweep.run(run_command)


def print_sweep(
  file: SweepFile, workdir: str | os.PathLike | None = None
) -> None:
  """Prints the runs of a sweep, and the status of those in `workdir`, if any.

  Writes nothing.

  Raises:
    UserError: If the sweep cannot be run, or `workdir` holds another one.
  """
  directory = pathlib.Path(workdir or '')
  search_runs = sweep_runs.expand_search(file, directory)
  arms = sweep_runs.expand_arms(file, directory)
  if workdir:
    sweep_state.require_same_sweep(directory, file)
  unit = 'images' if file.base.data.holds_images else 'tokens'
  counts = []
  for title, runs in (
    ('Search for learning rates', search_runs),
    ('Runs', arms),
  ):
    rows = []
    for run in runs:
      # None: the config has no cap.
      per_round = client_steps.max_tokens_per_round(run.config)
      counts.append(None if per_round is None else run.num_rounds * per_round)
      rows.append(_row(run, unit, counts[-1], has_status=bool(workdir)))
    if rows:
      headings = list(rows[0])
      texts = [headings.index(n) for n in _TEXT_COLUMNS if n in headings]
      cells = [row.values() for row in rows]
      printing.print_table(title, headings, cells, text_columns=texts)
  num_rounds = sum(run.num_rounds for run in (*search_runs, *arms))
  num_tokens = '-' if None in counts else f'{sum(counts):,}'
  num_evaluations = sum(len(arm.evaluations) for arm in arms)
  print(
    f'{len(counts)} runs, {num_rounds:,} rounds, {num_tokens} {unit} at most; '
    f'{num_evaluations} evaluations of {len(arms)} runs.'
  )
  num_cells = sum(arm.num_cells for arm in arms)
  if num_cells > len(arms):
    print(
      f'{num_cells} cells of the grid resolve to {len(arms)} configs, each of '
      'which runs once.'
    )


class _Sweep:
  """The runs of a sweep, its state and its progress."""

  def __init__(
    self,
    file: SweepFile,
    workdir: pathlib.Path,
    num_jobs: int,
    search_runs: Sequence[SweepRun],
    arms: Sequence[SweepRun],
    trackers: Sequence[str],
  ):
    self._file, self._workdir, self._num_jobs = file, workdir, num_jobs
    # Arms have the base's learning rates until a search has chosen theirs.
    self._search_runs, self._arms = search_runs, arms
    self._runs = [*search_runs, *arms]
    self._options = [f'--tracker={name}' for name in trackers]
    self._state = sweep_state.SweepState(workdir, file, self._runs)
    self._progress = JobsProgress(self._runs, title='sweep')

  def run(self, run_command: Callable[[Sequence[str]], int]) -> int:
    """Carries out all runs that are not done; returns the exit code."""
    left = [run.config for run in self._runs if not run.is_done()]
    require_memory(left, self._num_jobs)
    with self._progress:
      code, further = 0, self._search_runs
      while further and not code:
        code = self._run_jobs(run_command, further)
        further = self._extend_searches()
      code = code or self._run_jobs(run_command, self._arms_with_rates())
    if code:
      print(jobs.CONTINUES, file=sys.stderr)
      return code
    names = {arm.name for arm in self._arms}
    num_failed, num_diverged = (
      len(names.intersection(self._state.names_with(status)))
      for status in (sweep_state.FAILED, sweep_state.DIVERGED)
    )
    directory = self._workdir / sweep_runs.ARMS
    print(
      f'{len(names) - num_failed} of {len(names)} runs done'
      + (f', {num_diverged} of them diverged' if num_diverged else '')
      + (f', {num_failed} failed' if num_failed else '')
      + f': {directory}'
    )
    if num_failed < len(names):
      print(f'On one page: fedfish report --runs {directory}/* --output DIR')
    return 1 if self._state.names_with(sweep_state.FAILED) else 0

  def _run_jobs(self, run_command, runs: Sequence[SweepRun]) -> int:
    """Carries out runs; returns 130 or 143 after a signal, otherwise 0."""
    pending = []
    for run in runs:
      if run.is_done():
        self._end(run, 0)
      else:
        write_config(run)
        train = [*run.train, *self._options]
        pending.append(dataclasses.replace(run, train=train))
    self._state.write()
    if not pending:
      return 0
    num_at_a_time = min(self._num_jobs, len(pending))
    code = jobs.run_jobs(
      run_command, pending, num_at_a_time, self._tick, self._end
    )
    # After a signal.
    interrupted = self._state.names_with(sweep_state.RUNNING)
    self._state.update(interrupted, status=sweep_state.INTERRUPTED)
    return code

  def _tick(self, running: set[str], ended: set[str]) -> None:
    waiting = self._state.names_with(sweep_state.WAITING)
    # After a signal a job may end before it was ever seen running.
    begun = (running | ended).intersection(waiting)
    self._state.update(begun, status=sweep_state.RUNNING)
    self._progress.update(
      running,
      ended,
      self._state.names_with(sweep_state.DONE, sweep_state.DIVERGED),
      self._state.names_with(sweep_state.FAILED),
    )

  def _end(self, run: SweepRun, exit_code: int) -> None:
    status = sweep_state.DONE
    if exit_code:
      status = sweep_state.FAILED
      self._progress.write_line(run.failure(exit_code))
    elif good := run.diverged_checkpoint():
      status = sweep_state.DIVERGED
      num_rounds, _ = run.rounds_and_loss()
      self._progress.write_line(
        f'{run.name}: diverged, stopped after round {num_rounds}; its last '
        f'good checkpoint is {good}'
      )
    self._state.update([run.name], status=status)

  def _arms_with_rates(self) -> Sequence[SweepRun]:
    """Returns the arms that can run, with the learning rates chosen."""
    arms = {arm.name: arm for arm in self._arms}
    for group in sweep_runs.search_groups(self._file):
      group_of = self._file.search.group_of
      names = [a.name for a in self._arms if group_of(a.point) == group]
      rates, problem = self._choose_rates(group)
      if problem and names:
        self._progress.write_line(
          f'fedfish: error: {len(names)} runs, such as {names[0]}, have no '
          f'learning rates: {problem}.'
        )
        self._state.update(names, status=sweep_state.FAILED)
      for name in names:
        arm = arms.pop(name) if problem else arms[name]
        if not problem:
          arms[name] = sweep_runs.with_rates(self._file, arm, rates)
          settings = arm.point | arms[name].rates
          self._state.update([name], settings=settings)
    return list(arms.values())

  def _extend_searches(self) -> list[SweepRun]:
    """Adds a run to each search whose best rate lies at an edge."""
    further = []
    for group in sweep_runs.search_groups(self._file):
      runs = [run for run in self._search_runs if run.point == group]
      if not runs or not all(run.is_done() for run in runs):
        continue
      tried = [run.rates for run in runs]
      choice = self._best_rates(group, runs)
      if rates := choice and extension(self._file.search, tried, choice):
        further.append(
          sweep_runs.search_run(self._file, group, rates, self._workdir)
        )
    if further:
      self._search_runs = [*self._search_runs, *further]
      self._state.add(further)
      self._progress.add(further)
    return further

  def _choose_rates(self, group: Settings) -> tuple[Settings, str]:
    """Returns the best rates for a group, if any, or what prevents a choice."""
    runs = [run for run in self._search_runs if run.point == group]
    for run in runs:
      if not run.is_done():
        # To choose among the others would compare with other rates later.
        return {}, f'the run {run.name} did not end well'
    choice = self._best_rates(group, runs)
    if choice is None:
      return {}, 'no run of its search has a finite score' if runs else ''
    self._state.choices.append(choice)
    self._progress.write_line(choice_line(self._file.search, choice))
    return choice['chosen'], ''

  def _best_rates(self, group, runs):
    """Returns the choice among runs that are done; keeps their scores."""
    search, scores, num_clients = self._file.search, [], 0
    for run in runs:
      [output] = run.evaluations
      arm = self._file.config(run.point | run.rates, run.name)
      score, num_clients = validation_score(
        read_evaluation(output),
        search.metric,
        split_seed=run.config.seeds.split_seed,
        held_out_fraction=held_out_share(arm),
      )
      # A diverged run has the score of its last good checkpoint.
      scores.append(math.nan if run.diverged_checkpoint() else score)
      kept = scores[-1] if math.isfinite(scores[-1]) else None
      self._state.update([run.name], score=kept)
    tried = [run.rates for run in runs]
    return choose(search, group, tried, scores, num_clients)


def _require_runs(configs: Sequence[TrainConfig]) -> None:
  """Raises UserError unless all runs could start."""
  # Apart, as tokenizing imports TensorFlow, whose memory the runs need.
  with concurrent.futures.ProcessPoolExecutor(
    1,
    mp_context=multiprocessing.get_context('spawn'),
    # As the command line does; tensorflow_hub still uses it.
    initializer=warnings.filterwarnings,
    initargs=('ignore', 'pkg_resources is deprecated'),
  ) as pool:
    lines = pool.submit(check.problems_of, configs).result()
  if lines:
    raise UserErrors([UserError(line) for line in lines])


def _row(
  run: SweepRun, unit: str, count: int | None, has_status: bool
) -> dict[str, str]:
  num_local_epochs = run.config.client_work.num_local_epochs
  row = {
    'run': run.run.name,
    'rounds': f'{run.num_rounds:,}',
    'local epochs': f'{num_local_epochs:,}',
    'in all': f'{run.num_rounds * num_local_epochs:,}',
    f'{unit}, at most': '-' if count is None else f'{count:,}',
  }
  if has_status:
    num_rounds, _ = run.rounds_and_loss()
    row['status'] = f'after round {num_rounds:,}' if num_rounds else 'new'
    # Rates that a search has yet to choose are not in the run's config.
    if dataclasses.replace(run, config=None).is_done():
      is_diverged = run.diverged_checkpoint()
      row['status'] = sweep_state.DIVERGED if is_diverged else sweep_state.DONE
  return row | ({'budget': ', '.join(run.budgets)} if run.is_arm else {})
