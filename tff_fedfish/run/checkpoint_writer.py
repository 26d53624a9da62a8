"""Writes checkpoints beside the rounds, one at a time and in order."""

import concurrent.futures
import os
import pathlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tff_fedfish.run import checkpoints
from tff_fedfish.run.store import RoundStore


class CheckpointWriter:
  """Writes the checkpoints of a run in a background thread.

  While a checkpoint is written the next rounds are computed, so at most two
  states are alive. A failure is raised by the next `save`, by `wait`, or at the
  end of the `with` block, which comes when all is on disk. An exception inside
  the block is passed on; a failed write is then one line of warning.

  Args:
    directory: The run's `checkpoints`, created when absent. No other process
      may write there.
    keep_last: Checkpoints to keep beside round 0's, >= 1; 0 keeps all.
    keep_every_num_rounds: Multiples of it are kept too, >= 1; 0: none. They do
      count where they are among the newest.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    keep_last: int,
    keep_every_num_rounds: int = 0,
  ):
    self._store = RoundStore(directory)
    self._keep_last = keep_last
    self._keep_every = keep_every_num_rounds
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'write_checkpoint')
    # Stays after a failure: no later checkpoint is written.
    self._writing: concurrent.futures.Future | None = None

  def save(
    self,
    round_num: int,
    tensors: Mapping[str, np.ndarray],
    contents: Mapping[str, Any],
    keep_rounds: Collection[int] = (),
  ) -> None:
    """Starts to write a checkpoint, once the one before is on disk.

    Old checkpoints, but for those of `keep_rounds`, are removed after it is
    written, and later ones, which the run passed over when it was resumed. The
    tensors must not change until the next call of `save` or `wait` has
    returned. See `save_checkpoint`.

    Raises:
      OSError, TypeError: What an earlier write raised. This one is not written
        then, nor any other.
    """
    self.wait()
    self._writing = self._thread.submit(
      self._write, round_num, dict(tensors), contents, keep_rounds
    )

  def wait(self) -> None:
    """Returns once every checkpoint is on disk; raises what `save` raises."""
    if self._writing is not None:
      self._writing.result()

  def __enter__(self) -> 'CheckpointWriter':
    return self

  def __exit__(self, _, error: BaseException | None, trace: Any) -> None:
    self._thread.shutdown()
    if error is None:
      self.wait()
    elif self._writing is not None:
      failure = self._writing.exception()
      if failure is not None and failure is not error:
        line = ' '.join((str(failure) or type(failure).__name__).split())
        print(f'fedfish: warning: {line}.', file=sys.stderr)

  def _write(self, round_num, tensors, contents, keep_rounds):
    """Runs in the background thread; `wait` raises what this raises."""
    try:
      # Before the write: they may take the room that it needs.
      self._store.remove_leftovers()
      save_checkpoint(self._store.directory, round_num, tensors, contents)
    finally:
      # The thread keeps its arguments a little longer than others wait.
      tensors.clear()
    # Before others go: counted as the newest, they would push out good ones.
    self._store.discard_after(round_num)
    old = [r for r in self._store.rounds() if r > 0]
    old = old[: -self._keep_last] if self._keep_last else []
    for old_round in old:
      is_multiple = self._keep_every and old_round % self._keep_every == 0
      if not is_multiple and old_round not in keep_rounds:
        self._store.remove(old_round)


def save_checkpoint(
  directory: str | os.PathLike,
  round_num: int,
  tensors: Mapping[str, np.ndarray],
  contents: Mapping[str, Any],
) -> pathlib.Path:
  """Writes the checkpoint of a round, to the disk.

  Args:
    directory: The run's `checkpoints` directory; created when absent.
    round_num: Rounds that the state has seen, >= 0. A checkpoint that already
      stands at this round is replaced: it is one that a resumed run found
      damaged, or the same.
    tensors: Arrays by name; see `tensor_files.require_types`.
    contents: JSON values to keep beside them.

  Returns:
    The checkpoint's path.

  Raises:
    TypeError: If a tensor is of another type, or `contents` not JSON.
    OSError: If it cannot be written, such as on a full disk; names the file.
  """
  with RoundStore(directory).begin(round_num, syncs=True) as writer:
    writer.add(checkpoints.STATE_KEY, checkpoints.STATE_FILE, tensors)
    writer.commit(contents)
  return writer.path
