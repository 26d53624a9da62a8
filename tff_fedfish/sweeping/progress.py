"""Progress of several jobs, read from the files that they write."""

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
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
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._views = {job.name: _View(job) for job in jobs}
    self._title = title
    self._interval_seconds = interval_seconds
    self._done, self._failed = set(), set()
    self._clock = clock
    self._start_time = self._line_time = clock()
    self._bar = None
    if self._console.is_terminal:
      self._bar = _bar(self._console, [*self._views, title or ''], title)
      if title is not None:
        self._title_task = self._bar.add_task('', arm=title, total=1)
      for view in self._views.values() if title is None else ():
        self._add_task(view)

  def __enter__(self) -> 'JobsProgress':
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *_) -> None:
    if self._bar:
      self._bar.stop()

  def finish(self, names: Iterable[str]) -> None:
    """Marks jobs as done."""
    self._done |= set(names)

  def fail(self, names: Iterable[str]) -> None:
    """Marks jobs that have failed, or cannot be started."""
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
      ended: Names of the jobs that have ended, well or not.
    """
    for name, view in self._views.items():
      if name in running or (name in ended and view.stage != 'ended'):
        self._update_job(view, has_ended=name in ended)
    if self._title is not None:
      self._update_title(running)

  def _update_job(self, view, has_ended):
    former = view.stage
    view.look(has_ended)
    if self._bar:
      if view.task is None:
        self._add_task(view)
      if not former:
        self._bar.start_task(view.task)
      is_training = view.stage == 'training'
      facts = f', {view.position(self._title)}' if is_training else ''
      self._bar.update(
        view.task,
        description=view.stage + facts,
        total=view.total,
        completed=view.done,
      )
      if has_ended:
        self._bar.stop_task(view.task)
        if self._title is not None:
          self._bar.remove_task(view.task)
    elif view.stage != former:
      self.write_line(f'{view.job.name}: {view.stage}')

  def _update_title(self, running):
    left = self._views.keys() - self._done - self._failed - running
    facts = [
      f'{len(self._done)}/{len(self._views)} done',
      *([f'{len(self._failed)} failed'] if self._failed else []),
      f'{len(running)} running',
      f'{len(left)} left',
    ]
    if self._bar:
      self._bar.update(
        self._title_task,
        description=', '.join(facts + self._time_left()),
        total=len(self._views),
        completed=len(self._done | self._failed),
      )
    elif self._clock() - self._line_time >= self._interval_seconds:
      self._line_time = self._clock()
      facts += [
        f'{name} {self._views[name].position(self._title)}'
        for name in sorted(running)
      ]
      self.write_line(f'{self._title}: {", ".join(facts + self._time_left())}')

  def _time_left(self) -> list[str]:
    """Returns the time left at the speed since the start, [] if unknown."""
    done = left = 0.0
    for name, view in self._views.items():
      done += view.job.round_cost * (view.done - view.done_at_start)
      if name not in self._done | self._failed:
        left += view.job.round_cost * (view.total - view.done)
    if done <= 0 or left <= 0:
      return []
    seconds = (self._clock() - self._start_time) * left / done
    return [f'{datetime.timedelta(seconds=round(seconds))} left']

  def _add_task(self, view):
    view.task = self._bar.add_task(
      'waiting', arm=view.job.name, total=1, start=False
    )


class _View:
  """How far a job was when it was last looked at; `done` is in rounds."""

  def __init__(self, job: Job):
    self.job, self.task = job, None
    self.look()
    self.stage = ''
    # What was done before the start says nothing about the speed.
    self.done_at_start = self.done

  def look(self, has_ended: bool = False) -> None:
    """Reads the job's files."""
    pending = [output.name for output in self.job.pending_evaluations()]
    num_evaluations = len(self.job.evaluations)
    weight = self.job.num_rounds * _EVALUATION_SHARE
    self.num_rounds = self.job.num_rounds_done()
    self.total = self.job.num_rounds + weight * num_evaluations
    self.done = self.num_rounds + weight * (num_evaluations - len(pending))
    if has_ended:
      self.stage = 'ended'
    elif self.num_rounds < self.job.num_rounds:
      self.stage = 'training'
    else:
      self.stage = f'evaluating on {pending[0]}' if pending else 'finishing'

  def position(self, title: str | None) -> str:
    """Returns the last round, and its loss where there is a title."""
    position = f'round {self.num_rounds}/{self.job.num_rounds}'
    loss = None if title is None else self.job.last_loss()
    return position if loss is None else f'{position}, loss {loss:.4f}'


def _bar(console, names, title):
  from rich import progress

  width = max(12, *map(len, names))
  return progress.Progress(
    progress.TextColumn(f'{{task.fields[arm]:{width}}}', markup=False),
    # Names of a grid are long, and a terminal may have only 80 columns.
    progress.BarColumn(bar_width=24 if title is None else 10),
    progress.TextColumn('{task.description}'),
    progress.TimeElapsedColumn(),
    console=console,
    refresh_per_second=2,
  )
