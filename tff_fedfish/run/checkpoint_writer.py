"""Writes checkpoints beside the rounds, one at a time and in order.

A checkpoint is written under a temporary name (with a leading dot), synced to
disk and renamed last, so a directory with a checkpoint's name is complete.
"""

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import require
from tff_fedfish.run import checkpoints, old_checkpoints

# A second or less to write, hash and sync: how long it takes to give up.
_CHUNK_BYTES = 2**26
_GIVE_UP_SECONDS = 5
_SIGNAL_SECONDS = 1


class CheckpointWriter:
  """Writes the checkpoints of a run in a background thread.

  While a checkpoint is written the next rounds are computed, so at most two
  states are alive. A failure is raised by the next `save`, by `wait`, or at the
  end of the `with` block, which comes when all is on disk.

  An exception inside the block is passed on, even if a write fails too; that
  failure is then one line of warning. An exception that asks for a quick end,
  such as the `Abandoned` of a second Ctrl-C, stops the write in progress, of
  which nothing is left. To be used from one thread.

  Its directory, the run's `checkpoints`, is created when absent; no other
  process may write there. See `old_checkpoints` for what is kept.

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
    old_checkpoints.require_keep_rules(keep_last, keep_every_num_rounds)
    self._directory = pathlib.Path(directory)
    self._keep_last = keep_last
    self._keep_every_num_rounds = keep_every_num_rounds
    self._must_stop = threading.Event()
    self._is_failure_raised = False
    # Becomes the last write's failure, or None, once it is done. Not
    # `Thread.join`: a join that a signal interrupts takes the thread for ended
    # (Python 3.11).
    self._written = concurrent.futures.Future()
    self._written.set_result(None)

  def save(
    self,
    round_num: int,
    tensors: Mapping[str, np.ndarray],
    contents: Mapping[str, Any],
    keep_rounds: Collection[int] = (),
  ) -> None:
    """Starts to write a checkpoint, once the one before is on disk.

    Old checkpoints, but for those of `keep_rounds`, are removed after it is
    written. The tensors must not change until the next call of `save` or `wait`
    has returned. See `save_checkpoint`.

    Raises:
      OSError, ValueError, TypeError: What an earlier write raised. This one is
        not written then, nor any other.
    """
    self.wait()
    earlier, self._written = self._written, concurrent.futures.Future()
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
    except (RuntimeError, MemoryError):  # The system has no thread to give.
      self._written = earlier
      raise

  def wait(self) -> None:
    """Returns once every checkpoint is on disk; raises what `save` raises."""
    if (failure := self._result()) is not None:
      self._is_failure_raised = True
      raise failure

  def __enter__(self) -> 'CheckpointWriter':
    return self

  def __exit__(self, _, error: BaseException | None, trace: Any) -> None:
    if error is not None and not isinstance(error, Exception):
      self._give_up()
      return
    try:
      self._result()
    except BaseException:  # The second Ctrl-C.
      self._give_up()
      raise
    if error is None:
      self.wait()
    else:
      self._warn_of_failure()

  def _result(self):
    """Returns the failure of the last write, or None, once it has ended.

    In turns: a wait that begins as a signal arrives ends before Python calls
    the signal's handler.
    """
    while True:
      with contextlib.suppress(TimeoutError):
        return self._written.result(timeout=_SIGNAL_SECONDS)

  def _give_up(self):
    """Stops a write in progress, and does not wait long for it to end."""
    self._must_stop.set()
    try:
      self._written.result(timeout=_GIVE_UP_SECONDS)
    except TimeoutError:
      _warn('the last checkpoint is not finished')
    else:
      self._warn_of_failure()

  def _warn_of_failure(self):
    failure = self._written.result()
    if failure is not None and not self._is_failure_raised:
      self._is_failure_raised = True
      _warn(str(failure) or type(failure).__name__)

  def _write(self, round_num, tensors, contents, keep_rounds):
    """Runs in the background thread; `wait` raises what this catches."""

    def require_wanted():
      if self._must_stop.is_set():
        raise RuntimeError(
          f'the checkpoint of round {round_num} was given up, and nothing of '
          'it is left'
        )

    try:
      # Before the write: they may take the room that it needs.
      checkpoints.remove_leftovers(self._directory)
      save_checkpoint(
        self._directory,
        round_num,
        tensors,
        contents,
        before_chunk=require_wanted,
      )
      old_checkpoints.remove_old_checkpoints(
        self._directory,
        self._keep_last,
        keep_every_num_rounds=self._keep_every_num_rounds,
        current_round=round_num,
        keep_rounds=keep_rounds,
      )
      failure = None
    except BaseException as error:
      failure = error
    # The thread keeps its arguments a little longer than others wait for it.
    tensors.clear()
    self._written.set_result(failure)


def save_checkpoint(
  directory: str | os.PathLike,
  round_num: int,
  tensors: Mapping[str, np.ndarray],
  contents: Mapping[str, Any],
  *,
  before_chunk: Callable[[], None] = lambda: None,
) -> pathlib.Path:
  """Writes the checkpoint of a round; it appears whole or not at all.

  Args:
    directory: The run's `checkpoints` directory; created when absent.
    round_num: Rounds that the state has seen, >= 0. A checkpoint that already
      stands at this round is replaced: it is one that a resumed run found
      damaged, or the same.
    tensors: Arrays by name: booleans, integers of 8 to 64 bits, float16,
      bfloat16 (of ml_dtypes), float32 or float64, of any shape.
    contents: JSON values to keep beside them.
    before_chunk: Called before every 64 MiB, or less, of tensors; what it
      raises ends the write, which then leaves nothing.

  Returns:
    The checkpoint's path.

  Raises:
    ValueError: If `round_num` is negative.
    TypeError: If a tensor is of another type, or `contents` not JSON.
    OSError: If it cannot be written, such as on a full disk; names the path.
  """
  require(round_num >= 0, 'round_num', 'at least 0', round_num)
  arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
  dtypes = checkpoints.DTYPE_CODES
  for name, array in arrays.items():
    if array.dtype.name not in dtypes:
      raise TypeError(
        f'Tensor {name!r} must be of a type that a checkpoint can hold '
        f'({", ".join(sorted(dtypes))}), found {array.dtype.name}.'
      )
  described = {
    name: {'dtype': array.dtype.name, 'shape': list(array.shape)}
    for name, array in arrays.items()
  }
  description = {
    'round': round_num,
    'tensors': described,
    'contents': json.loads(json.dumps(dict(contents))),
  }
  path = checkpoints.path_of(directory, round_num)
  with _replace_directory(path) as temporary:
    _write_files(temporary, description, arrays, before_chunk)
  return path


def _warn(what):
  line = ' '.join(what.split())
  print(f'fedfish: warning: {line}.', file=sys.stderr)


@contextlib.contextmanager
def _replace_directory(path):
  """Yields a temporary directory that becomes `path`, synced to disk.

  Raises:
    OSError: If it cannot be written; names the checkpoint.
  """
  try:
    with files.replace_directory_atomically(path) as temporary:
      yield temporary
  except OSError as error:
    code = error.errno or errno.EIO
    raise OSError(
      code,
      f'{os.strerror(code)}; the checkpoint was not written, and nothing of it '
      'is left',
      str(path),
    ) from error


def _write_files(path, description, arrays, before_chunk):
  """Writes both files into an existing directory, synced to disk.

  The tensors are not written by the library of the format, whose bytes these
  are: it writes all at once, so that nobody could give up in the middle, and is
  not safe in a thread that the end of the process may cut short.
  """
  digest = hashlib.sha256()
  num_bytes = num_unsynced = 0
  with open(path / checkpoints.STATE_FILE, 'wb') as stream:
    for chunk in state_chunks(arrays):
      before_chunk()
      stream.write(chunk)
      digest.update(chunk)
      num_bytes += len(chunk)
      num_unsynced += len(chunk)
      # In parts: a process cannot end during a sync of gigabytes.
      if num_unsynced >= _CHUNK_BYTES:
        stream.flush()
        os.fdatasync(stream.fileno())
        num_unsynced = 0
    stream.flush()
    os.fsync(stream.fileno())
  state = {'num_bytes': num_bytes, 'sha256': digest.hexdigest()}
  version = {'schema_version': checkpoints.SCHEMA_VERSION}
  files.write_json(
    path / checkpoints.DESCRIPTION_FILE,
    {**version, 'state': state, **description},
  )


def state_chunks(
  arrays: Mapping[str, np.ndarray],
) -> Iterator[bytes | np.ndarray]:
  """Yields a file of the safetensors format in parts, in order.

  The size of the header (8 bytes, little-endian), the header (JSON, filled
  up with spaces to a multiple of 8 bytes), the tensors.
  """
  codes = checkpoints.DTYPE_CODES
  ranks = {name: rank for rank, name in enumerate(codes)}
  ordered = sorted(
    arrays.items(), key=lambda item: (ranks[item[1].dtype.name], item[0])
  )
  header, end = {}, 0
  for name, array in ordered:
    begin, end = end, end + array.nbytes
    header[name] = {
      'dtype': codes[array.dtype.name],
      'shape': list(array.shape),
      'data_offsets': [begin, end],
    }
  text = json.dumps(header, ensure_ascii=False, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  yield len(text).to_bytes(8, 'little')
  yield text
  for _, array in ordered:
    # Copies what is not contiguous or not little-endian, one array at a time.
    array = np.asarray(array, array.dtype.newbyteorder('<'), order='C')
    # As bytes: a bfloat16 array is no buffer.
    data = array.reshape(-1).view(np.uint8)
    for begin in range(0, len(data), _CHUNK_BYTES):
      yield data[begin : begin + _CHUNK_BYTES]
