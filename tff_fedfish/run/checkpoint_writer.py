"""Writes checkpoints beside the rounds, one at a time and in order."""

import os
import pathlib
import sys
import threading
import types
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tff_fedfish.run import checkpoints

# A write looks for the order to stop before every chunk, then removes what it
# has written.
_GIVE_UP_SECONDS = 5


class CheckpointWriter:
  """Writes the checkpoints of a run in a background thread.

  While a checkpoint is written the next rounds are computed, so at most two
  states are alive. A failure is raised by the next `save`, by `wait`, or at the
  end of the `with` block, which comes when all is on disk.

  An exception inside the block is passed on, even if a write fails too; that
  failure is then one line of warning. An exception that asks for a quick end,
  such as the `Abandoned` of a second Ctrl-C, stops the write in progress, of
  which nothing is left. To be used from one thread.

  Args:
    directory: The run's `checkpoints` directory; created when absent. No
      other process may write there.
    keep_last: See `remove_old_checkpoints`.
    keep_every_num_rounds: See `remove_old_checkpoints`.

  Raises:
    ValueError: If a number to keep is negative.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    keep_last: int,
    keep_every_num_rounds: int = 0,
  ):
    checkpoints.require_keep_rules(keep_last, keep_every_num_rounds)
    self._directory = pathlib.Path(directory)
    self._keep_last = keep_last
    self._keep_every_num_rounds = keep_every_num_rounds
    self._is_first = True
    self._must_stop = threading.Event()
    self._failure = None
    self._is_failure_raised = False
    # Held while a write goes on. Not `Thread.join`: a join that a signal
    # interrupts takes the thread for ended (Python 3.11).
    self._writing = threading.Lock()

  def save(
    self,
    round_num: int,
    tensors: Mapping[str, np.ndarray],
    contents: Mapping[str, Any],
    keep_rounds: Collection[int] = (),
  ) -> None:
    """Starts to write a checkpoint, once the one before is on disk.

    Old checkpoints are removed after it is written.

    Args:
      round_num: See `save_checkpoint`.
      tensors: See `save_checkpoint`. They must not change until the next call
        of `save` or `wait` has returned.
      contents: See `save_checkpoint`.
      keep_rounds: Rounds whose checkpoints are not removed either.

    Raises:
      OSError, ValueError, TypeError: What an earlier write raised. This one is
        not written then, nor any other.
    """
    self.wait()
    self._writing.acquire()
    # A daemon: the end of the process must not wait for gigabytes that the
    # user gave up. What is written so far has a temporary name, and the next
    # writer of the run removes it.
    thread = threading.Thread(
      target=self._write,
      args=(round_num, dict(tensors), contents, keep_rounds),
      name=f'checkpoint of round {round_num}',
      daemon=True,
    )
    try:
      thread.start()
    except RuntimeError:  # The system has no thread to give.
      self._writing.release()
      raise

  def wait(self) -> None:
    """Returns once every checkpoint is on disk; raises what `save` raises."""
    with self._writing:
      pass
    if self._failure is not None:
      self._is_failure_raised = True
      raise self._failure

  def __enter__(self) -> 'CheckpointWriter':
    return self

  def __exit__(
    self,
    error_type: type[BaseException] | None,
    error: BaseException | None,
    trace: types.TracebackType | None,
  ) -> None:
    if error is not None and not isinstance(error, Exception):
      self._give_up()
      return
    try:
      with self._writing:
        pass
    except BaseException:  # The second Ctrl-C, and the lock is not held.
      self._give_up()
      raise
    if error is None:
      self.wait()
    else:
      self._warn_of_failure()

  def _give_up(self):
    """Stops a write in progress, and does not wait long for it to end."""
    self._must_stop.set()
    if self._writing.acquire(timeout=_GIVE_UP_SECONDS):
      self._writing.release()
      self._warn_of_failure()
    else:
      _warn('the last checkpoint is not finished')

  def _warn_of_failure(self):
    if self._failure is not None and not self._is_failure_raised:
      self._is_failure_raised = True
      _warn(str(self._failure) or type(self._failure).__name__)

  def _write(self, round_num, tensors, contents, keep_rounds):
    """Runs in the background thread; `wait` raises what this catches."""

    def require_wanted():
      if self._must_stop.is_set():
        raise _GivenUpError(
          f'the checkpoint of round {round_num} was given up, and nothing of '
          'it is left'
        )

    try:
      if self._is_first:
        # Before, not after: they may take the room that this one needs.
        checkpoints.remove_leftovers(self._directory)
        self._is_first = False
      checkpoints.save_checkpoint(
        self._directory,
        round_num,
        tensors,
        contents,
        before_chunk=require_wanted,
      )
      checkpoints.remove_old_checkpoints(
        self._directory,
        self._keep_last,
        keep_every_num_rounds=self._keep_every_num_rounds,
        current_round=round_num,
        keep_rounds=keep_rounds,
      )
    except BaseException as error:
      self._failure = error
    finally:
      # The thread keeps its arguments a little longer than the lock.
      tensors.clear()
      self._writing.release()


class _GivenUpError(Exception):
  """A write that was told to stop."""


def _warn(what: str) -> None:
  line = ' '.join(what.split())
  print(f'fedfish: warning: {line}.', file=sys.stderr)
