"""Writes checkpoints beside the rounds, one at a time and in order."""

import concurrent.futures
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tff_fedfish.run import checkpoints
from tff_fedfish.run.store import RoundStore


class CheckpointWriter:
  """Writes the checkpoints of a run in a background thread.

  While a checkpoint is written the next rounds are computed, so at most two
  states are alive. Leaving the `with` block waits for the last write.

  Args:
    directory: The run's `checkpoints`, created when absent. No other process
      may write there.
    keep_last: Regular checkpoints to keep beside round 0's, >= 1; 0 keeps all.
    keep_every_num_rounds: Multiples of it are kept too, >= 1; 0: none. They do
      count where they are among the newest.
    is_regular: Says of a round whether an uninterrupted run saves it. With
      `keep_last`, others are removed once a later one is written.
  """

  def __init__(
    self,
    directory: str | os.PathLike,
    *,
    keep_last: int,
    keep_every_num_rounds: int = 0,
    is_regular: Callable[[int], bool] = lambda round_num: True,
  ):
    self._store = RoundStore(directory)
    self._keep_last = keep_last
    self._keep_every = keep_every_num_rounds
    self._is_regular = is_regular
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'write_checkpoint')
    self._writing: concurrent.futures.Future | None = None

  def save(
    self,
    round_num: int,
    tensors: Mapping[str, np.ndarray],
    contents: Mapping[str, Any],
    keep_rounds: Collection[int] = (),
    superseded: Collection[int] = (),
  ) -> None:
    """Starts to write a checkpoint, once the write before has ended.

    Old checkpoints, but for those of `keep_rounds`, are removed after it is
    written (of a run that keeps all, those of `superseded` rounds that are not
    regular), and later ones, which the run passed over when it was resumed. The
    tensors must not change until the next call of `save` or `wait` has
    returned. See `save_checkpoint`.
    """
    self.wait()
    self._writing = self._thread.submit(
      *(self._write, round_num, dict(tensors), contents),
      *({*keep_rounds}, {*superseded}),
    )

  def wait(self) -> BaseException | None:
    """Waits for the last write; returns what it raised, None: it succeeded."""
    return self._writing and self._writing.exception()

  @property
  def has_failed(self) -> bool:
    """Whether the last write has ended with an error."""
    return bool(self._writing and self._writing.done() and self.wait())

  def __enter__(self) -> 'CheckpointWriter':
    return self

  def __exit__(self, *_) -> None:
    self._thread.shutdown()

  def _write(self, round_num, tensors, contents, keep_rounds, superseded):
    """Runs in the background thread; `wait` returns what this raises."""
    try:
      # Before the write: they may take the room that it needs.
      self._store.remove_leftovers()
      save_checkpoint(self._store.directory, round_num, tensors, contents)
    finally:
      # The thread keeps its arguments a little longer than others wait.
      tensors.clear()
    # Before others go: counted as the newest, they would push out good ones.
    self._store.discard_after(round_num)
    rounds = [r for r in self._store.rounds() if r > 0]
    regular = [r for r in rounds if self._is_regular(r)]
    kept = {round_num, *regular[-self._keep_last :], *keep_rounds}
    for old_round in rounds:
      is_multiple = self._keep_every and old_round % self._keep_every == 0
      may_go = self._keep_last or old_round in superseded
      if may_go and not is_multiple and old_round not in kept:
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
    tensors: Arrays by name; see `tensor_files.write`.
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
