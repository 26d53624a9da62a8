"""How far several runs are, from the files that they write."""

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tff_fedfish.sweeping.job import Job

if TYPE_CHECKING:
  import rich.console

# An evaluation takes about as long as a fifth of the rounds.
_EVALUATION_SHARE = 1 / 5


class JobsProgress:
  """Shows how far each job is; on standard error.

  On a terminal a moving bar per job; elsewhere a line when a stage begins.
  With a title there is besides a bar or, now and then, a line for all jobs
  together, and only running jobs have a bar.

  Args:
    jobs: All jobs.
    title: What they are together; None: no line for all.
    interval_seconds: Time between two lines for all.
    console: Where to write. None: standard error.
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
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._jobs = {job.name: job for job in jobs}
    self._title = title
    self._interval_seconds = interval_seconds
    self._stages = dict.fromkeys(self._jobs, '')
    self._done, self._failed = set(), set()
    self._clock = clock
    self._start_time = self._line_time = clock()
    self._work = {job.name: _Work(job) for job in jobs}
    # What was done before the start says nothing about the speed.
    self._start_rounds = {name: work.done for name, work in self._work.items()}
    self._bar = None
    self._tasks = {}
    if self._console.is_terminal:
      # Names of a grid are long, and a terminal may have but 80 columns.
      bar_width = 24 if title is None else 10
      self._bar = _bar(self._console, [*self._jobs, title or ''], bar_width)
      if title is None:
        for name in self._jobs:
          self._add_task(name)
      else:
        self._title_task = self._bar.add_task('', arm=title, total=1)

  def __enter__(self) -> 'JobsProgress':
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *_) -> None:
    if self._bar:
      self._bar.stop()

  def finish(self, names: Iterable[str]) -> None:
    """Says that jobs are done, now or before all this."""
    self._done |= set(names)

  def fail(self, names: Iterable[str]) -> None:
    """Says that jobs have failed, or cannot be started."""
    self._failed |= set(names)

  def write_line(self, line: str) -> None:
    """Writes a line of the caller's, above the bars where there are any."""
    self._console.print(
      line, markup=False, highlight=False, emoji=False, soft_wrap=True
    )

  def update(self, running: set[str], ended: set[str]) -> None:
    """Looks at the files of every job that has been started.

    Args:
      running: Names of the jobs that run.
      ended: Names of those that have ended, well or not.
    """
    for name in self._jobs:
      if name in running or (name in ended and self._stages[name] != 'ended'):
        self._update_job(name, has_ended=name in ended)
    if self._title is not None:
      self._update_title(running)

  def _update_job(self, name, has_ended):
    job = self._jobs[name]
    work = self._work[name] = _Work(job)
    stage = 'ended' if has_ended else work.stage
    if self._bar:
      if name not in self._tasks:
        self._add_task(name)
      task = self._tasks[name]
      if not self._stages[name]:
        self._bar.start_task(task)
      facts = f', {_position(job, work, self._title)}'
      self._bar.update(
        task,
        description=stage + (facts if stage == 'training' else ''),
        total=work.total,
        completed=work.done,
      )
      if has_ended:
        self._bar.stop_task(task)
        if self._title is not None:
          self._bar.remove_task(task)
    elif stage != self._stages[name]:
      self.write_line(f'{name}: {stage}')
    self._stages[name] = stage

  def _update_title(self, running):
    facts = [
      f'{len(self._done)}/{len(self._jobs)} done',
      *([f'{len(self._failed)} failed'] if self._failed else []),
      f'{len(running)} running',
      f'{len(self._jobs.keys() - self._done - self._failed - running)} left',
    ]
    if self._bar:
      facts += self._time_left()
      self._bar.update(
        self._title_task,
        description=', '.join(facts),
        total=len(self._jobs),
        completed=len(self._done | self._failed),
      )
    elif self._clock() - self._line_time >= self._interval_seconds:
      self._line_time = self._clock()
      for name in sorted(running):
        position = _position(self._jobs[name], self._work[name], self._title)
        facts.append(f'{name} {position}')
      self.write_line(f'{self._title}: {", ".join(facts + self._time_left())}')

  def _time_left(self) -> list[str]:
    """Returns the time left at the speed since the start, [] if unknown."""
    done = left = 0.0
    for name, work in self._work.items():
      cost = self._jobs[name].round_cost
      done += cost * (work.done - self._start_rounds[name])
      if name not in self._done | self._failed:
        left += cost * (work.total - work.done)
    if done <= 0 or left <= 0:
      return []
    seconds = (self._clock() - self._start_time) * left / done
    return [f'{datetime.timedelta(seconds=round(seconds))} left']

  def _add_task(self, name):
    self._tasks[name] = self._bar.add_task(
      'waiting', arm=name, total=1, start=False
    )


class _Work:
  """How far a job is, in rounds."""

  def __init__(self, job: Job):
    self.num_rounds = job.num_rounds_done()
    pending = [o.name for o in job.evaluations if not o.exists()]
    num_evaluated = len(job.evaluations) - len(pending)
    weight = job.num_rounds * _EVALUATION_SHARE
    self.total = job.num_rounds + weight * len(job.evaluations)
    self.done = self.num_rounds + weight * num_evaluated
    self.stage = 'training'
    if self.num_rounds >= job.num_rounds:
      self.stage = f'evaluating on {pending[0]}' if pending else 'finishing'


def _position(job, work, title):
  position = f'round {work.num_rounds}/{job.num_rounds}'
  loss = None if title is None else job.last_loss()
  return position if loss is None else f'{position}, loss {loss:.4f}'


def _bar(console, names, bar_width):
  from rich import progress

  width = max(12, *map(len, names))
  return progress.Progress(
    progress.TextColumn(f'{{task.fields[arm]:{width}}}', markup=False),
    progress.BarColumn(bar_width=bar_width),
    progress.TextColumn('{task.description}'),
    progress.TimeElapsedColumn(),
    console=console,
    refresh_per_second=2,
  )
