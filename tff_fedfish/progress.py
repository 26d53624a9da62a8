"""Progress of a loop, and of what precedes it; on standard error."""

import collections
import contextlib
import datetime
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tff_fedfish.printing import format_count

if TYPE_CHECKING:
  import rich.console

# Rates are those of the last steps: the first one of a run, which traces and
# compiles, would spoil the estimate for long.
_WINDOW_STEPS = 20
_NUM_PLAIN_LINES = 10


class Progress:
  """Shows how far a loop over rounds or clients is; on standard error.

      with Progress('train', num_rounds, completed=restored_round) as progress:
        for round_num in ...:
          progress.advance(num_tokens=..., loss=...)

  On a terminal: one bar with position, loss, tokens in all and per second, and
  time left.
  Elsewhere: plain lines with the same facts, the first step and the last, and
  between them one whenever another tenth is done or `interval_seconds` have
  passed since the line before.

  Args:
    label: What runs, such as 'train'; it opens the line.
    total: How many steps the loop has, >= 0.
    unit: What a step is, in the singular: 'round', 'client'.
    completed: Steps done before the loop starts, as in a resumed run.
    num_tokens: Tokens that they processed. None: the sum is not shown.
    interval_seconds: See above; of plain lines only.
    console: Where to write. None: standard error.
    clock: Seconds that never run backwards.
  """

  def __init__(
    self,
    label: str,
    total: int,
    *,
    unit: str = 'round',
    completed: int = 0,
    num_tokens: int | None = None,
    interval_seconds: float = 30.0,
    console: 'rich.console.Console | None' = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._label = label
    self._total = total
    self._unit = unit
    self._completed = completed
    self._interval_seconds = interval_seconds
    self._clock = clock
    self._num_tokens, self._shows_sum = num_tokens or 0, num_tokens is not None
    self._loss = None
    self._bar = None
    self._line_time = None
    self._line_tenth = 0
    self._steps = collections.deque(maxlen=_WINDOW_STEPS + 1)

  def __enter__(self) -> 'Progress':
    self._steps.append((self._clock(), self._completed, self._num_tokens))
    if self._console.is_terminal and not self._console.is_dumb_terminal:
      self._bar = _start_bar(self._console, self._label, self._total)
      self._show_bar()
    return self

  def __exit__(self, *_) -> None:
    if self._bar is not None:
      self._bar.stop()
      self._bar = None

  def advance(
    self,
    num_steps: int = 1,
    *,
    num_tokens: int | None = None,
    loss: float | None = None,
  ) -> None:
    """Says that steps are done.

    Args:
      num_steps: How many since the last call.
      num_tokens: Tokens that they processed; None where that is not counted.
      loss: The latest loss, in nats per token; None: the one before stands.
        One that is not finite is shown as '-'.
    """
    self._completed += num_steps
    self._num_tokens += num_tokens or 0
    self._loss = self._loss if loss is None else loss
    self._steps.append((self._clock(), self._completed, self._num_tokens))
    if self._bar is not None:
      self._show_bar()
    elif self._is_line_due():
      position = f'{self._label}: {self._position()}'
      self.write_line(', '.join([position, *self._facts()]))

  def write_line(self, line: str) -> None:
    """Writes a line of the caller's, above the bar where there is one."""
    self._console.print(
      line, markup=False, highlight=False, emoji=False, soft_wrap=True
    )

  def _is_line_due(self) -> bool:
    now, tenth = self._clock(), 0
    if self._total:
      tenth = _NUM_PLAIN_LINES * self._completed // self._total
    is_due = (
      self._line_time is None
      or self._completed >= self._total
      or tenth > self._line_tenth
      or now - self._line_time >= self._interval_seconds
    )
    if is_due:
      self._line_time, self._line_tenth = now, tenth
    return is_due

  def _show_bar(self) -> None:
    self._bar.update(
      self._bar.task_ids[0],
      completed=self._completed,
      position=self._position(),
      facts='  '.join(self._facts()),
      refresh=True,
    )

  def _position(self) -> str:
    return f'{self._unit} {self._completed:,}/{self._total:,}'

  def _facts(self) -> list[str]:
    """Returns loss, tokens, their speed and time left, those that are known."""
    facts = []
    if self._loss is not None:
      is_finite = math.isfinite(self._loss)
      facts.append(f'loss {self._loss:.4f}' if is_finite else 'loss -')
    if self._shows_sum:
      facts.append(f'tokens {format_count(self._num_tokens)}')
    start_time, start_completed, start_tokens = self._steps[0]
    seconds = self._steps[-1][0] - start_time
    num_steps = self._completed - start_completed
    if seconds <= 0 or num_steps <= 0:
      return facts
    if num_tokens := self._num_tokens - start_tokens:
      facts.append(f'{num_tokens / seconds:,.0f} tokens/s')
    left = max(self._total - self._completed, 0) * seconds / num_steps
    if left := datetime.timedelta(seconds=round(left)):
      facts.append(f'{left} left')
    return facts


class Stages:
  """Says what a command does before its loop starts, and how long that takes.

      stages = Stages()
      with stages('opening the corpus'):
        ...
      stages.release()  # Nothing will be refused any more.
      with stages('building the model'):
        ...

  On a terminal: `building the model ...` appears at once and is completed in
  place, `building the model ... 7.2 s`. A stage that raises is erased.

  Elsewhere: the completed line, when the stage ends, and before it the one
  without seconds once the stage has lasted `patience_seconds`. Until `release`,
  lines of shorter stages are held back, so that a command that refuses its
  input at once prints only why; a stage that lasts writes them.

  Args:
    console: Where to write. None: standard error.
    clock: Seconds that never run backwards.
    patience_seconds: See above.
  """

  def __init__(
    self,
    *,
    console: 'rich.console.Console | None' = None,
    clock: Callable[[], float] = time.monotonic,
    patience_seconds: float = 1.0,
  ):
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._clock = clock
    self._patience_seconds = patience_seconds
    self._in_place = (
      self._console.is_terminal and not self._console.is_dumb_terminal
    )
    # None: nothing is held back.
    self._held: list[str] | None = None if self._in_place else []

  @contextlib.contextmanager
  def __call__(self, name: str) -> Iterator[None]:
    """Times what runs in the context, such as 'building the model'."""
    line, start = f'{name} ...', self._clock()
    timer = threading.Timer(self._patience_seconds, self._show_lasting, [line])
    timer.daemon = True
    if self._in_place:
      self._write(line, end='')
    else:
      timer.start()
    try:
      yield
    except BaseException:
      self._erase()
      raise
    finally:
      timer.cancel()
      # Lines have one writer at a time.
      if not self._in_place:
        timer.join()
    self._erase()
    seconds = self._clock() - start
    if seconds >= self._patience_seconds:
      self.release()
    line += f' {seconds:.1f} s'
    if self._held is None:
      self._write(line)
    else:
      self._held.append(line)

  def release(self) -> None:
    """Writes what is held back; from now on every line is written at once."""
    held, self._held = self._held, None
    for line in held or ():
      self._write(line)

  def _show_lasting(self, line: str) -> None:
    self.release()
    self._write(line)

  def _erase(self) -> None:
    # Also what others, such as TensorFlow, wrote after it on the same line.
    if self._in_place:
      self._write('\r\x1b[K', end='')

  def _write(self, text: str, end: str = '\n') -> None:
    # Not through the console, which drops control codes.
    self._console.file.write(text + end)
    self._console.file.flush()


def _start_bar(console: 'rich.console.Console', label: str, total: int):
  from rich import progress

  bar = progress.Progress(
    progress.TextColumn('{task.description}', markup=False),
    progress.BarColumn(bar_width=20),
    progress.TextColumn('{task.fields[position]}', markup=False),
    progress.TextColumn('{task.fields[facts]}', markup=False),
    # Ticks between two steps, so that a long round does not look dead.
    progress.TimeElapsedColumn(),
    console=console,
    refresh_per_second=2,
  )
  bar.add_task(label, total=total, position='', facts='')
  bar.start()
  return bar
