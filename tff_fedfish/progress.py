"""Progress of a loop, and of what precedes it; on standard error."""

import collections
import contextlib
import datetime
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from tff_fedfish.printing import format_count

if TYPE_CHECKING:
  from rich.console import Console

# Rates are those of the last steps: the first one of a run, which traces and
# compiles, would spoil the estimate for long.
_WINDOW_STEPS = 20
_NUM_PLAIN_LINES = 10
_LINE_SECONDS = 30.0
_MIN_STAGE_SECONDS = 1.0


def never_failing(stream: TextIO | None) -> TextIO | None:
  """Returns a standard stream whose writes never raise.

  What is shown must not end the work: without a reader (`| tee log`, a
  terminal that was closed) or on a full disk, lines are lost.

  Args:
    stream: `sys.stdout` or `sys.stderr`. One without a file is returned as is.
  """
  try:
    raw = _NeverFailing(stream.fileno(), 'w', closefd=False)
  except (AttributeError, OSError):
    return stream
  return io.TextIOWrapper(
    io.BufferedWriter(raw),
    encoding=stream.encoding,
    # Ids and paths may have characters that the terminal's encoding lacks.
    errors='backslashreplace',
    line_buffering=True,
  )


class _NeverFailing(io.FileIO):
  def write(self, data):
    try:
      # None: a file that does not wait is not ready.
      return super().write(data) or len(data)
    except OSError:
      return len(data)


class Progress:
  """Shows how far a loop over rounds or clients is; on standard error.

      with Progress('train', num_rounds, completed=restored_round) as progress:
        for round_num in ...:
          progress.advance(num_tokens=..., loss=...)

  On a terminal: one bar with position, loss, score, tokens in all and per
  second, and time left. Elsewhere: lines with the same facts, after the first
  step, the first with a time left, the last and each tenth, and whenever 30
  seconds have passed since the last line.

  Args:
    label: What runs, such as 'train'; it opens the line.
    total: How many steps the loop has, >= 0.
    unit: What a step is, in the singular: 'round', 'client'.
    completed: Steps done before the loop starts, as in a resumed run.
    num_tokens: Tokens that they processed. None: the sum is not shown.
    weights: Expected time of each step, in any unit; 0 for a step that was
      done before the loop. (): all are alike.
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
    weights: Sequence[float] = (),
    console: 'Console | None' = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    from rich.console import Console

    self._console = console or Console(stderr=True)
    self._label, self._total, self._unit = label, total, unit
    self._completed, self._weights, self._clock = completed, weights, clock
    self._num_tokens, self._shows_sum = num_tokens or 0, num_tokens is not None
    self._loss, self._score = None, ''
    self._bar = None
    # The step and the time at which a line is due.
    self._next_step, self._next_time = completed + 1, math.inf
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
    score: str = '',
  ) -> None:
    """Says that steps are done.

    Args:
      num_steps: How many since the last call.
      num_tokens: Tokens that they processed; None where that is not counted.
      loss: The latest loss, in nats per token; None: the one before stands.
        One that is not finite is shown as '-'.
      score: The latest score, as it is shown; '': the one before stands.
    """
    self._completed += num_steps
    self._num_tokens += num_tokens or 0
    self._loss = self._loss if loss is None else loss
    self._score = score or self._score
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
    now = self._clock()
    if self._completed < self._next_step and now < self._next_time:
      return False
    # The first step of the next tenth.
    tenth = _NUM_PLAIN_LINES * self._completed // max(self._total, 1) + 1
    self._next_step = math.ceil(tenth * self._total / _NUM_PLAIN_LINES)
    if not self._work(self._steps[0][1], self._completed):
      # The first line with the time left.
      self._next_step = self._completed + 1
    self._next_time = now + _LINE_SECONDS
    return True

  def _work(self, start: int, stop: int) -> float:
    """Returns the weight of the steps after `start`, up to `stop`."""
    if self._weights:
      return sum(self._weights[start:stop])
    return max(stop - start, 0)

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
    """Returns loss, score, tokens, speed and time left, as far as known."""
    facts = []
    if self._loss is not None:
      is_finite = math.isfinite(self._loss)
      facts.append(f'loss {self._loss:.4f}' if is_finite else 'loss -')
    if self._score:
      facts.append(self._score)
    if self._shows_sum:
      facts.append(f'tokens {format_count(self._num_tokens)}')
    start_time, start_completed, start_tokens = self._steps[0]
    seconds = self._steps[-1][0] - start_time
    work = self._work(start_completed, self._completed)
    if seconds <= 0 or not work:
      return facts
    if num_tokens := self._num_tokens - start_tokens:
      facts.append(f'{num_tokens / seconds:,.0f} tokens/s')
    left = self._work(self._completed, self._total) * seconds / work
    if left := datetime.timedelta(seconds=round(left)):
      facts.append(f'{left} left')
    return facts


@contextlib.contextmanager
def stage(name: str, *, console: 'Console | None' = None) -> Iterator[None]:
  """Says on standard error how long a stage of a command takes.

  On a terminal: `building the model ...` appears at once and is completed in
  place, `building the model ... 7.2 s`. Elsewhere only the completed line is
  written. A stage that ends within a second or that raises leaves no line.

  Args:
    name: What is done, such as 'building the model'.
    console: Where to write. None: standard error.
  """
  from rich.console import Console

  console = console or Console(stderr=True)
  # Not through the console, which drops control codes.
  stream = console.file
  in_place = console.is_terminal and not console.is_dumb_terminal
  start = time.monotonic()
  if in_place:
    stream.write(f'{name} ...')
    stream.flush()
  try:
    yield
    seconds = time.monotonic() - start
  finally:
    # Also what others, such as TensorFlow, wrote after it on the same line.
    if in_place:
      stream.write('\r\x1b[K')
      stream.flush()
  if seconds >= _MIN_STAGE_SECONDS:
    stream.write(f'{name} ... {seconds:.1f} s\n')
    stream.flush()


def _start_bar(console, label, total):
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
