"""Asks whether the machines of a Ray cluster still answer.

Ray waits a minute for a head that is gone and then ends the process from C++,
without a word; a machine that a cut cable has silenced is given up after a
minute, too. Here ports are asked, which the kernel answers however busy the
machine is.
"""

import contextlib
import socket
import sys
import threading
import time

from tff_fedfish.errors import FailedError

Address = tuple[str, int]
"""Host and port."""

LIMIT_SECONDS = 20.0
"""Silence after which a machine counts as gone; a shorter one is waited out."""
# Between two questions, and until one is given up. Unit: seconds.
_PERIOD_SECONDS = 2.0
_CONNECT_SECONDS = 2.0
# Silence of the head after which it is said from here, as the thread that
# should raise an error stands elsewhere. Ray ends the process after 60 s.
_LAST_WORD_SECONDS = 45.0


def answers(address: Address) -> bool:
  """Returns whether something listens at the port; asks for 2 seconds."""
  return _error_at(address) is None


class Watch:
  """Asks one port again and again, in a thread; to be closed in the end."""

  def __init__(self, address: Address):
    """Starts to ask."""
    self.address = address
    # Of the first question that was not answered; a process that was stopped
    # for a while has asked none.
    self._silent_since: float | None = None
    self.has_answered = False
    """Whether it has answered since the watch began."""
    self._closed = threading.Event()
    threading.Thread(target=self._ask, name='ray_watch', daemon=True).start()

  @property
  def silent_seconds(self) -> float:
    """For how long it has not answered."""
    since = self._silent_since
    return 0.0 if since is None else time.monotonic() - since

  @property
  def is_gone(self) -> bool:
    """Whether it has not answered for `LIMIT_SECONDS`."""
    return self.silent_seconds >= LIMIT_SECONDS

  def close(self) -> None:
    """Stops asking."""
    self._closed.set()

  def _ask(self):
    while not self._closed.is_set():
      asked = time.monotonic()
      if answers(self.address):
        self._silent_since, self.has_answered = None, True
      elif self._silent_since is None:
        self._silent_since = asked
      self.on_asked()
      self._closed.wait(_PERIOD_SECONDS)

  def on_asked(self) -> None:
    """Called in the thread after each question."""


class HeadWatch(Watch):
  """Watches the head of a cluster, and Ray's own process on this machine."""

  def __init__(self, head: Address, own: Address):
    """Starts to ask Ray's control store; `own` is this machine's raylet."""
    self._own = own
    self._is_said = False
    super().__init__(head)

  def require(self) -> None:
    """Raises FailedError where the head or this machine's Ray is gone.

    To be called before anything that Ray answers by ending the process.
    """
    # It does not come back, and the next large value would end the process.
    has_own = not _is_refused(self._own)
    if self.is_gone or not has_own and not answers(self.address):
      self._is_said = True
      raise FailedError(self._describe())
    if not has_own:
      self._is_said = True
      raise FailedError(
        f"Ray's process on this machine, {_join(self._own)}, is gone. It may "
        'have been killed for memory. Start Ray again on this machine; the '
        'same command then continues from the last checkpoint.'
      )

  def wait(self) -> None:
    """Returns when the head answers; Ray would wait for it without an end.

    Raises:
      FailedError: As `require`.
    """
    while not answers(self.address):
      self.require()
      time.sleep(_PERIOD_SECONDS / 4)

  def on_asked(self) -> None:
    """See `Watch`."""
    if self.silent_seconds >= _LAST_WORD_SECONDS and not self._is_said:
      self._is_said = True
      with contextlib.suppress(OSError):
        print(f'fedfish: failed: {self._describe()}', file=sys.stderr)
        sys.stderr.flush()

  def _describe(self):
    return (
      f"Ray's head at {_join(self.address)} no longer answers "
      f'({self.silent_seconds:.0f} s), and no round can go on without it. '
      'Start Ray again on all machines; the same command then continues from '
      'the last checkpoint.'
    )


def _is_refused(address):
  """Returns whether the machine is there, and nothing listens at the port."""
  return isinstance(_error_at(address), ConnectionRefusedError)


def _error_at(address):
  try:
    socket.create_connection(address, _CONNECT_SECONDS).close()
  except OSError as error:
    return error
  return None


def _join(address):
  return f'{address[0]}:{address[1]}'
