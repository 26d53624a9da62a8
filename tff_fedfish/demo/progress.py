"""One line per arm while the demo runs."""

import pathlib
from collections.abc import Sequence

from tff_fedfish.demo import plan


class ArmsProgress:
  """Shows how far each arm is, from the files that it writes.

  A moving bar per arm on a terminal; elsewhere a line when a stage begins.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    arms: Sequence[plan.Arm],
    num_rounds: int,
    settings: plan.DemoSettings,
    console=None,
  ):
    """Writes to standard error unless a rich console is given."""
    from rich import progress
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._outputs = {
      arm.name: list(plan.evaluate_commands(workdir, arm, settings))
      for arm in arms
    }
    self._metrics = {
      arm.name: plan.run_directory(workdir, arm) / 'metrics.csv' for arm in arms
    }
    self._num_rounds = num_rounds
    self._stages = dict.fromkeys(self._outputs, '')
    self._bar = None
    if self._console.is_terminal:
      self._bar = progress.Progress(
        progress.TextColumn('{task.fields[arm]:12}'),
        progress.BarColumn(bar_width=24),
        progress.TextColumn('{task.description}'),
        progress.TimeElapsedColumn(),
        console=self._console,
        refresh_per_second=2,
      )
      self._tasks = {
        name: self._bar.add_task('waiting', arm=name, total=1, start=False)
        for name in self._outputs
      }

  def __enter__(self) -> 'ArmsProgress':
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *_) -> None:
    if self._bar:
      self._bar.stop()

  def update(self, running: set[str], ended: set[str]) -> None:
    """Looks at the files of every arm that has been started."""
    for name in self._outputs:
      if name not in running | ended:
        continue
      rounds = self._rounds(name)
      evaluated = sum(output.exists() for output in self._outputs[name])
      stage = self._stage(name, rounds, evaluated, name in ended)
      if self._bar:
        task = self._tasks[name]
        if not self._stages[name]:
          self._bar.start_task(task)
        # An evaluation takes about as long as a fifth of the rounds.
        weight = self._num_rounds / 5
        self._bar.update(
          task,
          description=f'{stage}, round {rounds}/{self._num_rounds}'
          if stage == 'training'
          else stage,
          total=self._num_rounds + weight * len(self._outputs[name]),
          completed=rounds + weight * evaluated,
        )
        if name in ended:
          self._bar.stop_task(task)
      elif stage != self._stages[name]:
        self._console.print(f'{name}: {stage}', highlight=False)
      self._stages[name] = stage

  def _stage(self, name, rounds, evaluated, has_ended):
    if has_ended:
      return 'ended'
    if rounds < self._num_rounds:
      return 'training'
    pending = [o.name for o in self._outputs[name] if not o.exists()]
    return f'evaluating on {pending[0]}' if pending else 'finishing'

  def _rounds(self, name):
    try:
      # The header and round 0 are no rounds of training.
      return max(0, self._metrics[name].read_bytes().count(b'\n') - 2)
    except FileNotFoundError:
      return 0
