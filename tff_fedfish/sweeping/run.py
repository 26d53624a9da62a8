"""Runs a sweep: searches, then all arms; continues by itself."""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence

from tff_fedfish.config import load
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError, UserErrors
from tff_fedfish.progress import Progress
from tff_fedfish.run import client_data, corpus_identity, run_directory
from tff_fedfish.sweeping import jobs, record
from tff_fedfish.sweeping.expand import ARMS, expand_arms
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.searches import arms_with_rates, read_searches
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.training import check

_LINE_SECONDS = 30.0


def run_sweep(
  run_command: Callable[[Sequence[str]], int],
  file: SweepFile,
  workdir: str | os.PathLike,
  *,
  num_jobs: int = 1,
  train_options: Sequence[str] = (),
) -> int:
  """Carries out what is left of a sweep.

  Args:
    run_command: As for `jobs.run_jobs`.
    file: The sweep.
    workdir: New, or of an earlier start of the same sweep.
    num_jobs: Runs at a time, >= 1.
    train_options: Further options of every `fedfish train`.

  Returns:
    0; 1 if a run failed, after all others; 130 or 143 after a signal.

  Raises:
    UserError: If the sweep or its corpora cannot be used, the directory holds
      another sweep, or the runs do not fit into memory side by side.
  """
  if num_jobs < 1:
    raise UserError(f'`--jobs` must be at least 1, found {num_jobs}. Raise it.')
  workdir = pathlib.Path(workdir).resolve()
  arms = expand_arms(file, workdir)
  with contextlib.ExitStack() as stack:
    stack.enter_context(run_directory.lock(workdir))
    record.require_same_sweep(workdir, file)
    searches = read_searches(file, arms)
    runs = [*(run for search in searches for run in search.runs), *arms]
    _require_runs([run.config for run in runs])
    corpora = {
      (run.config.data, request.data): run.config
      for run in runs
      for request in file.evaluations
      if request.data
    }
    for (_, directory), config in corpora.items():
      client_data.open_corpus(config, directory)
    _require_same_corpora(runs)
    left = [run.config for run in runs if not run.is_done()]
    jobs.require_memory(left, num_jobs)
    return _Sweep(file, workdir, num_jobs, arms, train_options).run(run_command)


@dataclasses.dataclass
class _Sweep:
  """A sweep that is under way; everything but failures is read from disk."""

  _file: SweepFile
  _workdir: pathlib.Path
  _num_jobs: int
  _arms: Sequence[Run]
  """With the base's learning rates until a search has chosen theirs."""
  _options: Sequence[str]
  _failed: set[str] = dataclasses.field(default_factory=set)

  def run(self, run_command: Callable[[Sequence[str]], int]) -> int:
    """Carries out all runs that are not done; returns the exit code."""
    code, searches = 0, read_searches(self._file, self._arms)
    record.write_record(self._workdir, self._file, searches, self._arms)
    while not code:
      runs = [run for search in searches for run in search.runs]
      if not self._left(runs):
        break
      code = self._run_jobs(run_command, 'search', runs)
      # Further values beyond an edge are runs, too.
      searches = read_searches(self._file, self._arms)
    arms, waiting = arms_with_rates(self._file, self._arms, searches)
    by_name = {arm.name: arm for arm in [*self._arms, *arms]}
    record.write_record(
      self._workdir, self._file, searches, list(by_name.values())
    )
    if not code:
      for search in searches:
        if search.rates:
          _say(search.line())
      for problem, without_rates in waiting.items():
        self._failed |= {arm.name for arm in without_rates}
        _say(
          f'fedfish: error: {len(without_rates)} runs, such as '
          f'{without_rates[0].name}, have no learning rates: {problem}.'
        )
      code = self._run_jobs(run_command, 'sweep', arms)
    if code:
      _say('fedfish: interrupted; the same command continues.')
      return code
    self._print_end(arms)
    return 1 if self._failed else 0

  def _left(self, runs: Sequence[Run]) -> list[Run]:
    """Returns the runs that are neither done nor have failed in this start."""
    return [r for r in runs if r.name not in self._failed and not r.is_done()]

  def _run_jobs(self, run_command, title: str, runs: Sequence[Run]) -> int:
    """Carries out runs; returns 130 or 143 after a signal, otherwise 0."""
    pending = [
      dataclasses.replace(run, train_options=tuple(self._options))
      for run in self._left(runs)
    ]
    if not pending:
      return 0
    for run in pending:
      # Editing the sweep file must not change runs that are to come.
      run.config_path.parent.mkdir(parents=True, exist_ok=True)
      load.write_config(run.config_path, run.config)
    num_done = len(runs) - len(pending)
    with Progress(title, len(runs), unit='run', completed=num_done) as progress:
      next_time = time.monotonic() + _LINE_SECONDS

      def on_wait(running: Sequence[Run]) -> None:
        nonlocal next_time
        if time.monotonic() > next_time:
          next_time = time.monotonic() + _LINE_SECONDS
          progress.write_line(', '.join(run.progress() for run in running))

      def on_end(run: Run, exit_code: int) -> None:
        line = f'{run.name}: done'
        if exit_code:
          self._failed.add(run.name)
          line = jobs.failure_line(run, exit_code)
        elif good := run.diverged_checkpoint():
          line = f'{run.name}: diverged; its last good checkpoint is {good}'
        progress.write_line(line)
        progress.advance()

      return jobs.run_jobs(
        run_command,
        pending,
        self._num_jobs,
        lambda run: progress.write_line(f'{run.name}: started'),
        on_end,
        on_wait,
      )

  def _print_end(self, arms: Sequence[Run]) -> None:
    num_arms = len(self._arms)
    num_failed = len(self._failed.intersection(arm.name for arm in self._arms))
    num_diverged = sum(arm.diverged_checkpoint() is not None for arm in arms)
    print(
      f'{num_arms - num_failed} of {num_arms} runs done'
      + (f', {num_diverged} of them diverged' if num_diverged else '')
      + (f', {num_failed} failed' if num_failed else '')
      + f': {self._workdir / ARMS}'
    )
    if num_failed < num_arms:
      print(f'On one page: fedfish report --runs {self._workdir} --output DIR')


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


def _require_same_corpora(runs: Sequence[Run]) -> None:
  """Raises UserError if a run that was started is of another corpus now."""
  identities = {}
  for run in runs:
    kept = corpus_identity.read_identity(run.directory)
    if kept is None:
      continue
    config = run.config
    key = config.data, config.partition
    if key not in identities:
      corpus = client_data.open_corpus(config, config.data.directory)
      identities[key] = corpus_identity.identify(config, corpus)
    if identities[key] != kept:
      raise UserError(
        f'The run {run.name!r} was trained on another corpus than '
        f'{config.data.directory!r} holds now. Name the corpus it was started '
        'with, or another --workdir.'
      )


def _say(line: str) -> None:
  print(line, file=sys.stderr)
