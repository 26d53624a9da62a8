"""Runs a sweep: searches, then all arms; continues by itself."""

import concurrent.futures
import contextlib
import math
import multiprocessing
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError, UserErrors
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import run_directory, run_inputs
from tff_fedfish.sweeping import job_pool, sweep_runs, sweep_state
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.jobs import Job, job_of, require_memory, write_config
from tff_fedfish.sweeping.learning_rate_search import (
  at_edge,
  best,
  choice_line,
  validation_score,
)
from tff_fedfish.sweeping.progress import JobsProgress
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.sweeping.sweep_runs import SweepRun
from tff_fedfish.training import run_checks


def run_sweep(
  run_command: Callable[[Sequence[str]], int],
  file: SweepFile,
  workdir: str | os.PathLike,
  *,
  num_jobs: int = 1,
) -> int:
  """Carries out what is left of a sweep.

  Args:
    run_command: As for `job_pool.run_jobs`.
    file: The sweep.
    workdir: New, or of an earlier start of the same sweep.
    num_jobs: Runs at a time, >= 1.

  Returns:
    0; 1 if a run failed, after all others; 130 or 143 after a signal.

  Raises:
    UserError: If the sweep, its corpora or the directory cannot be used, or
      the runs do not fit into memory side by side.
  """
  if num_jobs < 1:
    raise UserError(f'`--jobs` must be at least 1, found {num_jobs}. Raise it.')
  search_runs, arms = sweep_runs.expand(file)
  workdir = files.require_usable_output(
    workdir, '--workdir', marker=sweep_state.NAME
  )
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
    _require_other_corpora(file, configs)
    sweep = _Sweep(file, workdir, num_jobs, search_runs, arms)
    return sweep.run(run_command)


class _Sweep:
  """The jobs of a sweep, its state and its progress."""

  def __init__(
    self,
    file: SweepFile,
    workdir: pathlib.Path,
    num_jobs: int,
    search_runs: Sequence[SweepRun],
    arms: Sequence[SweepRun],
  ):
    self._file, self._workdir, self._num_jobs = file, workdir, num_jobs
    self._search_runs, self._arms = search_runs, arms
    runs = [*search_runs, *arms]
    # Arms have the base's learning rates until a search has chosen theirs.
    self._jobs = {run.job_name: job_of(workdir, run) for run in runs}
    self._state = sweep_state.SweepState(workdir, file, runs)
    self._progress = None

  def run(self, run_command: Callable[[Sequence[str]], int]) -> int:
    """Runs all jobs that are not done; returns the exit code."""
    left = [job.config for job in self._jobs.values() if not job.is_done()]
    require_memory(left, self._num_jobs)
    jobs = list(self._jobs.values())
    with JobsProgress(jobs, title='sweep') as self._progress:
      code = self._run_jobs(run_command, self._search_runs)
      code = code or self._run_jobs(run_command, self._arms_with_rates())
    if code:
      print(job_pool.CONTINUES, file=sys.stderr)
      return code
    self._print_end()
    return 1 if self._state.names_with(sweep_state.FAILED) else 0

  def _run_jobs(self, run_command, runs: Sequence[SweepRun]) -> int:
    """Runs jobs; returns 130 or 143 after a signal, otherwise 0."""
    pending = []
    for job in (self._jobs[run.job_name] for run in runs):
      if job.is_done():
        self._finish(job)
      else:
        write_config(job)
        pending.append(job)
    self._state.write()
    if not pending:
      return 0
    num_at_a_time = min(self._num_jobs, len(pending))
    code = job_pool.run_jobs(
      run_command, pending, num_at_a_time, self._tick, self._end
    )
    # After a signal.
    self._set_status(
      self._state.names_with(sweep_state.RUNNING), sweep_state.INTERRUPTED
    )
    return code

  def _tick(self, running: set[str], ended: set[str]) -> None:
    waiting = self._state.names_with(sweep_state.WAITING)
    # After a signal a job may end before it was ever seen running.
    self._set_status(
      (running | ended).intersection(waiting), sweep_state.RUNNING
    )
    self._progress.update(running, ended)

  def _end(self, job: Job, exit_code: int) -> None:
    if exit_code:
      self._fail([job.name], job.failure(exit_code))
    else:
      self._finish(job)
    self._state.write()

  def _finish(self, job: Job) -> None:
    status = sweep_state.DONE
    if good := job.diverged_checkpoint():
      status = sweep_state.DIVERGED
      self._progress.write_line(
        f'{job.name}: diverged, stopped after round {job.num_rounds_done()}; '
        f'its last good checkpoint is {good}'
      )
    self._progress.finish([job.name])
    self._state.update([job.name], status=status)

  def _fail(self, names: Sequence[str], line: str) -> None:
    self._progress.fail(names)
    self._progress.write_line(line)
    self._state.update(names, status=sweep_state.FAILED)

  def _set_status(self, names, status):
    if names:
      self._state.update(names, status=status)
      self._state.write()

  def _arms_with_rates(self) -> Sequence[SweepRun]:
    """Returns the arms that can run, with the learning rates chosen."""
    search, ready = self._file.search, {}
    if search is None:
      return self._arms
    for group in sweep_runs.search_groups(self._file):
      arms = [a for a in self._arms if search.group_of(a.point) == group]
      rates, problem = self._choose_rates(group)
      if problem:
        names = [arm.name for arm in arms]
        self._fail(
          names,
          f'fedfish: error: {len(names)} runs, such as {names[0]}, have no '
          f'learning rates: {problem}.',
        )
        continue
      for arm in arms:
        arm = sweep_runs.with_rates(self._file, arm, rates)
        self._jobs[arm.name] = job_of(self._workdir, arm)
        self._state.update([arm.name], settings=arm.point | arm.rates)
        ready[arm.name] = arm
    # In the order in which they were expanded.
    return [ready[arm.name] for arm in self._arms if arm.name in ready]

  def _choose_rates(self, group: Settings) -> tuple[Settings, str]:
    """Returns the best rates of a group's search, and what prevents a choice.

    There are no rates where its method reads nothing of what is searched.
    """
    search, scores = self._file.search, []
    runs = [run for run in self._search_runs if run.point == group]
    jobs = [self._jobs[run.job_name] for run in runs]
    for job in jobs:
      if not job.is_done():
        # To choose among the others would compare with other rates later.
        return {}, f'the run {job.name} did not end well'
    for run, job in zip(runs, jobs, strict=True):
      [output] = job.evaluations
      score, num_clients = validation_score(
        read_evaluation(output).clients,
        search.metric,
        split_seed=run.config.seeds.split_seed,
        held_out_fraction=run.held_out_fraction,
      )
      # A diverged run has the score of its last good checkpoint.
      scores.append(math.nan if job.diverged_checkpoint() else score)
      kept = scores[-1] if math.isfinite(scores[-1]) else None
      self._state.update([job.name], score=kept)
    position = best(scores, search.metric)
    if position is None:
      return {}, 'no run of its search has a finite score' if runs else ''
    choice = {
      'for': group,
      'chosen': runs[position].rates,
      'metric': search.metric,
      'score': scores[position],
      'num_validation_clients': num_clients,
      'at_edge': at_edge(search.axes, runs[position].rates),
    }
    self._state.choices.append(choice)
    self._progress.write_line(choice_line(search, choice))
    return choice['chosen'], ''

  def _print_end(self) -> None:
    names = {arm.name for arm in self._arms}
    num_failed, num_diverged = (
      len(names.intersection(self._state.names_with(status)))
      for status in (sweep_state.FAILED, sweep_state.DIVERGED)
    )
    runs = self._workdir / sweep_runs.ARMS
    print(
      f'{len(names) - num_failed} of {len(names)} runs done'
      + (f', {num_diverged} of them diverged' if num_diverged else '')
      + (f', {num_failed} failed' if num_failed else '')
      + f': {runs}'
    )
    if num_failed < len(names):
      print(f'On one page: fedfish report --runs {runs}/* --output DIR')


def _require_runs(configs: Sequence[TrainConfig]) -> None:
  """Raises UserError unless all runs could start.

  In a process of its own, as tokenizing imports TensorFlow, whose memory the
  runs need.
  """
  with concurrent.futures.ProcessPoolExecutor(
    1,
    mp_context=multiprocessing.get_context('spawn'),
    # As the command line does; tensorflow_hub still uses it.
    initializer=warnings.filterwarnings,
    initargs=('ignore', 'pkg_resources is deprecated'),
  ) as pool:
    lines = pool.submit(run_checks.problems_of, configs).result()
  if lines:
    raise UserErrors([UserError(line) for line in lines])


def _require_other_corpora(
  file: SweepFile, configs: Sequence[TrainConfig]
) -> None:
  """Raises UserError unless all corpora of evaluations can be opened."""
  others = [request.data for request in file.evaluations if request.data]
  opened = set()
  for config in configs:
    for directory in others:
      if (config.data, directory) not in opened:
        run_inputs.open_corpus(config, directory)
        opened.add((config.data, directory))
