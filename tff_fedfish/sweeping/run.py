"""Runs a sweep: searches, then all arms; continues by itself."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import sys
import warnings
from collections.abc import Iterator, Sequence

from tff_fedfish import files
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError, UserErrors
from tff_fedfish.run import run_directory, run_inputs
from tff_fedfish.sweeping import arms as arms_lib
from tff_fedfish.sweeping import choosing, record, sweep_jobs, workers
from tff_fedfish.sweeping.arms import Arm, SearchRun
from tff_fedfish.sweeping.job import Job
from tff_fedfish.sweeping.memory import require_memory
from tff_fedfish.sweeping.progress import JobsProgress
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.training import run_checks


def run_sweep(
  file: SweepFile, workdir: str | os.PathLike, *, num_jobs: int = 1
) -> int:
  """Carries out what is left of a sweep.

  Args:
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
  search_runs = arms_lib.expand_search(file)
  arms = arms_lib.expand_arms(file)
  arms_lib.print_unread(file, arms)
  workdir = files.require_usable_output(
    workdir, '--workdir', marker=record.NAME
  )
  with _lock(workdir):
    record.require_same_sweep(workdir, file)
    configs = [run.config for run in (*search_runs, *arms)]
    _require_runs(configs)
    _require_other_corpora(file, configs)
    sweep = _Sweep(file, workdir, num_jobs, search_runs, arms)
    sweep.require_memory()
    return sweep.run()


class _Sweep:
  """The jobs of a sweep, its record and its progress."""

  def __init__(
    self,
    file: SweepFile,
    workdir: pathlib.Path,
    num_jobs: int,
    search_runs: Sequence[SearchRun],
    arms: Sequence[Arm],
  ):
    self._file = file
    self._workdir = workdir
    self._num_jobs = num_jobs
    self._search_runs = search_runs
    self._arms = arms
    self._record = record.Record(workdir, file, search_runs, arms)
    self._search_jobs = [
      sweep_jobs.search_job(workdir, run, file.sweep.search)
      for run in search_runs
    ]
    # Before a search with the base's learning rates: for the progress.
    self._arm_jobs = [self._arm_job(arm) for arm in arms]
    self._failed, self._diverged = set(), set()
    self._running = set()

  def require_memory(self) -> None:
    """Raises UserError unless the runs that are left fit side by side."""
    jobs = [*self._search_jobs, *self._arm_jobs]
    require_memory(
      [job.config for job in jobs if not job.is_done()], self._num_jobs
    )

  def run(self) -> int:
    """Runs all jobs that are not done; returns the exit code."""
    jobs = [*self._search_jobs, *self._arm_jobs]
    with JobsProgress(jobs, title='sweep') as self._progress:
      code = self._run_jobs(self._search_jobs)
      if not code:
        code = self._run_jobs([self._arm_job(arm) for arm in self._ready()])
    if code:
      print(workers.CONTINUES, file=sys.stderr)
      return code
    self._print_end()
    return 1 if self._failed else 0

  def _run_jobs(self, jobs: Sequence[Job]) -> int:
    """Runs jobs; returns 130 or 143 after a signal, otherwise 0."""
    pending = {job.name: job for job in jobs if not job.is_done()}
    for job in jobs:
      if job.name not in pending:
        self._finish(job)
    for job in pending.values():
      sweep_jobs.write_config(job)
    self._record.write()
    if not pending:
      return 0
    ended = {}

    def on_end(name, exit_code):
      ended[name] = exit_code
      self._end(pending[name], exit_code)

    exit_codes = workers.run_jobs(
      {
        name: (job.pending_commands(), job.log) for name, job in pending.items()
      },
      min(self._num_jobs, len(pending)),
      self._tick,
      on_end,
      {name: job.commands_if_diverged for name, job in pending.items()},
    )
    if exit_codes == ended:
      return 0
    # After a signal all have its code, and the last ones did not end by
    # themselves.
    stopped = [name for name in exit_codes if name in pending.keys() - ended]
    self._record.set_status(stopped, record.INTERRUPTED)
    self._record.write()
    return next(iter(exit_codes.values()))

  def _tick(self, running: set[str], ended: set[str]) -> None:
    if running - self._running:
      self._record.set_status(running, record.RUNNING)
      self._record.write()
    self._running = running
    self._progress.update(running, ended)

  def _end(self, job: Job, exit_code: int) -> None:
    if exit_code:
      self._fail([job.name], job.failure(exit_code))
    else:
      self._finish(job)
    self._record.write()

  def _finish(self, job: Job) -> None:
    status = record.DONE
    if good := job.diverged_checkpoint():
      status = record.DIVERGED
      self._diverged.add(job.name)
      self._progress.write_line(
        f'{job.name}: diverged, stopped after round {job.num_rounds_done()}; '
        f'its last good checkpoint is {good}'
      )
    self._progress.finish([job.name])
    self._record.set_status([job.name], status)

  def _fail(self, names: Sequence[str], line: str) -> None:
    self._failed |= set(names)
    self._progress.fail(names)
    self._progress.write_line(line)
    self._record.set_status(names, record.FAILED)

  def _ready(self) -> list[Arm]:
    """Returns the arms that can run, with the learning rates chosen."""
    search = self._file.sweep.search
    if search is None:
      return list(self._arms)
    rates_of = []
    for group in arms_lib.search_groups(self._file):
      arms = [a for a in self._arms if search.group_of(a.point) == group]
      runs = [
        (run, job)
        for run, job in zip(self._search_runs, self._search_jobs, strict=True)
        if run.group == group
      ]
      if not runs:
        # Their method reads nothing of what is searched.
        rates_of += [(arm, {}) for arm in arms]
        continue
      missing = [job.name for _, job in runs if not job.is_done()]
      if missing:
        # To choose among the others would compare with other rates later.
        self._fail_group(arms, f'the run {missing[0]} did not end well')
        continue
      choice = choosing.choose_rates(search, runs)
      for (_, job), score in zip(runs, choice.scores, strict=True):
        self._record.set_score(job.name, score)
      if choice.rates is None:
        self._fail_group(arms, 'no run of its search has a finite score')
        continue
      self._record.add_choice(choice.to_json_dict(search, group))
      self._progress.write_line(choice.line(search, group))
      rates_of += [(arm, choice.rates) for arm in arms]
    ready = {
      arm.name: arms_lib.with_rates(self._file, arm, rates)
      for arm, rates in rates_of
    }
    for arm in ready.values():
      self._record.set_rates(arm)
    # In the order in which they were expanded.
    return [ready[arm.name] for arm in self._arms if arm.name in ready]

  def _fail_group(self, arms, reason):
    names = [arm.name for arm in arms]
    self._fail(
      names,
      f'fedfish: error: {len(names)} runs, such as {names[0]}, have no '
      f'learning rates: {reason}.',
    )

  def _arm_job(self, arm: Arm) -> Job:
    return sweep_jobs.arm_job(self._workdir, arm, self._file.sweep.evaluations)

  def _print_end(self):
    names = {arm.name for arm in self._arms}
    num_failed = len(self._failed & names)
    num_diverged = len(self._diverged & names)
    runs = self._workdir / sweep_jobs.ARMS
    print(
      f'{len(self._arms) - num_failed} of {len(self._arms)} runs done'
      + (f', {num_diverged} of them diverged' if num_diverged else '')
      + (f', {num_failed} failed' if num_failed else '')
      + f': {runs}'
    )
    if num_failed < len(self._arms):
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
  others = [request.data for request in file.sweep.evaluations if request.data]
  opened = set()
  for config in configs:
    for directory in others:
      if (config.data, directory) not in opened:
        run_inputs.open_corpus(config, directory)
        opened.add((config.data, directory))


@contextlib.contextmanager
def _lock(workdir: pathlib.Path) -> Iterator[None]:
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(run_directory.lock(workdir))
    except UserError as error:
      raise UserError(
        f'`--workdir` {str(workdir)!r} is in use by another `fedfish sweep`. '
        'Wait until it ends, or name another directory.'
      ) from error
    yield
