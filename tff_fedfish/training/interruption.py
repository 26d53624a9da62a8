"""Ctrl-C, SIGTERM, SIGHUP: the first asks for a clean end, the second ends now.

Python runs a handler only between two bytecodes of the main thread, and the
training of a client may be one call of an hour. `Interruption` therefore hears
of signals in a thread: Python's C handler writes their numbers to a pipe at
once.
"""

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = '\x1b[?25h'

_Handler = Callable[[int, types.FrameType | None], None]


@contextlib.contextmanager
def signals_handled(handle: _Handler) -> Iterator[None]:
  """Lets a handler have the signals, and puts back the previous ones.

  A signal that is ignored (as SIGINT is in the background of a script, SIGHUP
  under `nohup`) stays ignored. Python runs handlers only in the main thread; in
  any other this does nothing.

  Args:
    handle: Called with the signal's number and the current stack frame.
  """
  previous = {}
  if threading.current_thread() is threading.main_thread():
    for signal_num in _SIGNALS:
      if signal.getsignal(signal_num) != signal.SIG_IGN:
        previous[signal_num] = signal.signal(signal_num, handle)
  try:
    yield
  finally:
    for signal_num, handler in previous.items():
      # None: a handler that was not installed from Python, so not known here.
      signal.signal(signal_num, signal.SIG_DFL if handler is None else handler)


class Abandoned(KeyboardInterrupt):
  """Ends a command that a signal may end at any point.

  A `KeyboardInterrupt`, so that no `except Exception` on the way swallows it.

  Attributes:
    signal_num: The signal's number.
    exit_code: 128 + that number: 130 for SIGINT, 143 for SIGTERM, 129 for
      SIGHUP.
  """

  def __init__(self, signal_num: int):
    super().__init__(f'abandoned by {signal.Signals(signal_num).name}')
    self.signal_num = signal_num
    self.exit_code = 128 + signal_num


@contextlib.contextmanager
def abandonable() -> Iterator[None]:
  """Lets a signal raise `Abandoned` at any point.

  Python ignores what a handler raises within a callback of the garbage
  collector (JAX has one) or a destructor. It is raised once more then, soon
  after; see `signals_handled`.
  """

  def abandon(signal_num, frame):
    raise Abandoned(signal_num)

  def report(unraisable):
    if not isinstance(unraisable.exc_value, Abandoned):
      return previous(unraisable)
    arguments = main_thread, unraisable.exc_value.signal_num
    threading.Timer(0.01, signal.pthread_kill, arguments).start()

  previous, main_thread = sys.unraisablehook, threading.main_thread().ident
  try:
    sys.unraisablehook = report
    with signals_handled(abandon):
      yield
  finally:
    sys.unraisablehook = previous


class Interruption:
  """Catches SIGINT, SIGTERM and SIGHUP while a loop over rounds runs.

  The first signal prints one line and sets `requested`, also while the main
  thread computes; the loop looks at it between rounds, writes its checkpoint
  and returns `exit_code`. The second ends the process at once, like a kill,
  with 128 + its number: what was being written has a temporary name, and goes
  when the run is continued. SIGHUP never is the second: a terminal that closes
  may send it twice. See `signals_handled`.

  Args:
    unit: What is finished after the first signal, such as 'round'.
    on_second: Called before the second ends the process, such as to kill its
      children.

  Attributes:
    requested: The number of the first signal that came, or None.
  """

  def __init__(
    self, unit: str = 'round', on_second: Callable[[], object] = lambda: None
  ):
    self._unit, self._on_second = unit, on_second
    self.requested: int | None = None
    self._heard = threading.Event()
    self._stack = contextlib.ExitStack()

  @property
  def exit_code(self) -> int:
    """128 + the first signal's number: 129, 130 or 143; 0 where none came."""
    return 0 if self.requested is None else 128 + self.requested

  def __enter__(self) -> 'Interruption':
    if threading.current_thread() is not threading.main_thread():
      return self
    read, write = os.pipe()
    os.set_blocking(write, False)
    thread = threading.Thread(target=self._listen, args=[read], daemon=True)
    thread.start()
    # In reverse: its pipe closed, the thread ends, once it has read all.
    self._stack.callback(thread.join)
    self._stack.callback(os.close, write)
    previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    self._stack.callback(signal.set_wakeup_fd, previous)
    # Without a handler of Python's no number would be written. It runs where
    # the main thread goes on, which finds `requested` set.
    self._stack.enter_context(signals_handled(lambda *_: self._heard.wait(1)))
    return self

  def __exit__(self, *_) -> None:
    self._stack.close()

  def _listen(self, pipe):
    with open(pipe, 'rb', buffering=0) as stream:
      while number := stream.read(1):
        if number[0] in _SIGNALS:
          self._handle(number[0])

  def _handle(self, signal_num):
    # Below a progress bar, whose line has no end.
    start = '\n' if os.isatty(2) else ''
    if self.requested is not None:
      if signal_num == signal.SIGHUP:
        return
      # A progress bar has hidden the cursor.
      _write(f'{start and _SHOW_CURSOR}{start}fedfish: interrupted.\n')
      self._on_second()
      os._exit(128 + signal_num)
    self.requested = signal_num
    self._heard.set()
    is_key = signal_num == signal.SIGINT
    how = 'press Ctrl-C again' if is_key else 'send SIGTERM'
    _write(
      f'{start}fedfish: finishing the {self._unit} in hand; {how} to end at '
      'once.\n'
    )


def _write(line):
  # A closed terminal must not turn a clean end into an unclean one.
  with contextlib.suppress(OSError):
    # Past Python's buffers, which may be in mid-write.
    os.write(2, line.encode())
