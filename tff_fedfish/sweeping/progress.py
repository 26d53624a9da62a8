"""Progress of several jobs, read from the files that they write."""

import datetime
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from tff_fedfish.sweeping.jobs import Job

if TYPE_CHECKING:
  import rich.console

# An evaluation takes about as long as a fifth of the rounds.
_EVALUATION_SHARE = 1 / 5


class JobsProgress:
  """Shows how far each job is; on standard error.

  On a terminal a moving bar per job; elsewhere a line when a stage begins.
  With a title there is also a bar or, now and then, a line for all jobs
  together, and only running jobs have a bar.

  Args:
    jobs: All jobs.
    title: Name of all jobs together. None: no line for all.
    interval_seconds: Time between two lines for all.
    console: Console to write to. None: standard error.
    clock: Seconds that never run backwards.
  """

  def __init__(
    self,
    jobs: Sequence[Job],
    *,
    title: str | None = None,
    interval_seconds: float = 60.0,
    console: 'rich.console.Console | None' = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    from rich import progress
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._jobs = {}
    self._title, self._clock = title, clock
    self._interval_seconds = interval_seconds
    self._start_time = self._line_time = clock()
    width = max(12, len(title or ''), *(len(job.name) for job in jobs))
    # Elsewhere than on a terminal it only counts and is never started.
    self._bar = progress.Progress(
      progress.TextColumn(f'{{task.fields[arm]:{width}}}', markup=False),
      # Names of a grid are long, and a terminal may have only 80 columns.
      progress.BarColumn(bar_width=24 if title is None else 10),
      progress.TextColumn('{task.description}'),
      progress.TimeElapsedColumn(),
      console=self._console,
      refresh_per_second=2,
    )
    if title is not None:
      self._title_task = self._bar.add_task('', arm=title, total=0)
    self._tasks, self._done_at_start = {}, {}
    self.add(jobs)

  def __enter__(self) -> 'JobsProgress':
    if self._console.is_terminal:
      self._bar.start()
    return self

  def __exit__(self, *_) -> None:
    if self._console.is_terminal:
      self._bar.stop()

  def add(self, jobs: Sequence[Job]) -> None:
    """Adds jobs to those that are shown."""
    for job in jobs:
      self._jobs[job.name] = job
      self._bar.add_task(
        'waiting',
        arm=job.name,
        stage='',
        start=False,
        visible=self._title is None,
      )
      task = self._tasks[job.name] = self._bar.tasks[-1]
      self._count(job)
      # What was done before the start says nothing about the speed.
      self._done_at_start[job.name] = task.completed
    if self._title is not None:
      self._bar.update(self._title_task, total=len(self._jobs))

  def write_line(self, line: str) -> None:
    """Writes a line of the caller's, above the bars where there are any."""
    self._console.print(
      line, markup=False, highlight=False, emoji=False, soft_wrap=True
    )

  def update(
    self,
    running: set[str],
    ended: set[str],
    done: Collection[str] = (),
    failed: Collection[str] = (),
  ) -> None:
    """Looks at the files of every job that has been started.

    All are names of jobs. Those that `ended` did so well or not. Those that are
    `done`, and that `failed` or cannot be started, are for the line for all.
    """
    for name, task in self._tasks.items():
      job, former = self._jobs[name], task.fields['stage']
      if name in running or (name in ended and former != 'ended'):
        stage = self._count(job)
        stage = 'ended' if name in ended else stage
        facts = f', {task.fields["position"]}' if stage == 'training' else ''
        self._bar.start_task(task.id)
        self._bar.update(
          task.id,
          description=stage + facts,
          stage=stage,
          visible=self._title is None or stage != 'ended',
        )
        if stage == 'ended':
          self._bar.stop_task(task.id)
        if stage != former and not self._console.is_terminal:
          self.write_line(f'{name}: {stage}')
    if self._title is not None:
      self._update_title(running, set(done), set(failed))

  def _count(self, job: Job) -> str:
    """Reads a job's files into its task, in rounds; returns its stage."""
    num_rounds, loss = job.rounds_and_loss()
    pending = job.pending_evaluations()
    position = f'round {num_rounds}/{job.num_rounds}'
    if self._title is not None and loss is not None:
      position += f', loss {loss:.4f}'
    num_evaluations = len(job.evaluations)
    weight = job.num_rounds * _EVALUATION_SHARE
    self._bar.update(
      self._tasks[job.name].id,
      total=job.num_rounds + weight * num_evaluations,
      completed=num_rounds + weight * (num_evaluations - len(pending)),
      position=position,
    )
    if num_rounds < job.num_rounds:
      return 'training'
    return f'evaluating on {pending[0].name}' if pending else 'finishing'

  def _update_title(self, running, done, failed):
    waiting = self._jobs.keys() - done - failed - running
    facts = [
      f'{len(done)}/{len(self._jobs)} done',
      *([f'{len(failed)} failed'] if failed else []),
      f'{len(running)} running',
      f'{len(waiting)} left',
    ]
    time_left = self._time_left(self._jobs.keys() - done - failed)
    self._bar.update(
      self._title_task,
      description=', '.join(facts + time_left),
      completed=len(done | failed),
    )
    is_due = self._clock() - self._line_time >= self._interval_seconds
    if is_due and not self._console.is_terminal:
      self._line_time = self._clock()
      facts += [
        f'{name} {self._tasks[name].fields["position"]}'
        for name in sorted(running)
      ]
      self.write_line(f'{self._title}: {", ".join(facts + time_left)}')

  def _time_left(self, names: Collection[str]) -> list[str]:
    """Returns the time left for some jobs at the speed so far, or nothing."""
    done = left = 0.0
    for name, task in self._tasks.items():
      cost = self._jobs[name].round_cost
      done += cost * (task.completed - self._done_at_start[name])
      if name in names:
        left += cost * (task.total - task.completed)
    if done <= 0 or left <= 0:
      return []
    seconds = (self._clock() - self._start_time) * left / done
    return [f'{datetime.timedelta(seconds=round(seconds))} left']
