"""Runs: files of sorted rows, which are merged into shards.

A run holds the rows of a task, or of many, by shard and in order: a stream of
Arrow batches for each shard, then where each begins. So the rows of a shard are
merged from many runs, of which a batch each is in memory (external merge sort:
Knuth, The Art of Computer Programming, volume 3, section 5.4).
"""

import contextlib
import heapq
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from pipelines.rows import (
  ROW_SCHEMA,
  FeatureFiller,
  Row,
  rows_of,
  size_of,
  to_batch,
)
from tff_fedfish.data import places

MAX_OPEN = 256
"""Runs that are merged at a time: far below what a process may have open."""

# A batch has as many bytes, or one row.
_BATCH_BYTES = 64 << 10
# Of each open run: in a store, and on a local disk.
_READ_BYTES, _LOCAL_READ_BYTES = 1 << 20, 32 << 10
# A footer, and its length, tell where each shard begins and which features rows
# have.
_LENGTH_BYTES, _TAIL_BYTES = 8, 64 << 10


class RunWriter:
  """Collects the rows of one reading task, and writes them as runs.

  Attributes:
    paths: The runs.
  """

  def __init__(self, new_path: Callable[[], str], max_bytes: int):
    """Starts without a row.

    Args:
      new_path: Returns the path of the next run.
      max_bytes: Size of the rows with which a run is written.
    """
    self.paths: list[str] = []
    self._new_path, self._max_bytes = new_path, max_bytes
    self._rows: list[tuple[int, Row]] = []
    self._num_bytes = 0

  def add(self, shard: int, row: Row) -> None:
    """Adds a row of a shard, counted through all parts of the split."""
    self._rows.append((shard, row))
    self._num_bytes += size_of(row)
    if self._num_bytes >= self._max_bytes:
      self.write()

  def write(self) -> None:
    """Writes a run of the rows that are in none."""
    if not self._rows:
      return
    self._rows.sort()
    path = self._new_path()
    write_run(path, self._rows)
    self.paths.append(path)
    self._rows, self._num_bytes = [], 0


def write_run(path: str, rows: Iterable[tuple[int, Row]]) -> None:
  """Writes sorted pairs of a shard and a row."""
  shards: dict[int, int] = {}
  masks: set[int] = set()
  with places.write(path) as file:
    for shard, pairs in itertools.groupby(rows, operator.itemgetter(0)):
      shards[shard] = file.tell()
      with _new_stream(file) as writer:
        for batch in _batches(row for _, row in pairs):
          masks.update(row[-1] for row in batch)
          writer.write_batch(to_batch(batch, ROW_SCHEMA))
    footer = json.dumps([list(shards.items()), sorted(masks)]).encode()
    file.write(footer + len(footer).to_bytes(_LENGTH_BYTES, 'big'))


class Runs:
  """Runs that are read together, shard by shard; a context manager."""

  def __init__(self, paths: Sequence[str], fill: FeatureFiller):
    """Opens at most `MAX_OPEN` runs.

    Args:
      paths: The runs.
      fill: Completes rows that were written before a feature was met.
    """
    self._fill = fill
    with contextlib.ExitStack() as stack:
      self._runs = [_Run(path, stack) for path in paths]
      self._stack = stack.pop_all()

  def __enter__(self) -> 'Runs':
    return self

  def __exit__(self, *error) -> None:
    self._stack.close()

  def shards(self) -> list[int]:
    """Returns the shards that have rows, ascending."""
    return sorted({shard for run in self._runs for shard in run.offsets})

  @contextlib.contextmanager
  def rows(
    self, shard: int, name: Callable[[], str]
  ) -> Iterator[Iterator[Row]]:
    """Yields the rows of a shard, in order, with all features.

    Args:
      shard: The shard.
      name: Returns the path of a run that is needed meanwhile.
    """
    with contextlib.ExitStack() as stack:
      found = []
      for run in self._runs:
        if shard in run.offsets and run.masks != {self._fill.mask}:
          run = self._filled(run, shard, name(), stack)
        found.append(run.rows(shard))
      yield heapq.merge(*found)

  def _filled(self, run, shard, path, stack):
    """Returns a run of one shard with all features.

    One at a time: that of a reading task is as small as its memory.
    """
    stack.callback(places.remove, path)
    rows = sorted(map(self._fill, run.rows(shard)))
    write_run(path, ((shard, row) for row in rows))
    return _Run(path, stack)


def combine(
  paths: Sequence[str], fill: FeatureFiller, name: Callable[[], str]
) -> str:
  """Merges at most `MAX_OPEN` runs into one, with all features; returns it."""
  path = name()

  def rows():
    for shard in runs.shards():
      with runs.rows(shard, name) as found:
        for row in found:
          yield shard, row

  with Runs(paths, fill) as runs:
    write_run(path, rows())
  return path


class _Run:
  """An open run.

  Attributes:
    offsets: Shard -> where its rows begin in the file.
    masks: All values of the column 'features'.
  """

  def __init__(self, path: str, stack: contextlib.ExitStack):
    read_bytes = _READ_BYTES if places.is_remote(path) else _LOCAL_READ_BYTES
    file = stack.enter_context(places.open_file(path, read_bytes))
    end = file.seek(0, os.SEEK_END)
    # In one request of a store, for nearly every run.
    file.seek(max(0, end - _TAIL_BYTES))
    tail = file.read()
    length = int.from_bytes(tail[-_LENGTH_BYTES:], 'big') + _LENGTH_BYTES
    if length > len(tail):
      file.seek(end - length)
      tail = file.read()
    offsets, masks = json.loads(tail[-length:-_LENGTH_BYTES])
    self.offsets: dict[int, int] = dict(offsets)
    self.masks = set(masks)
    self._file = file

  def rows(self, shard: int) -> Iterator[Row]:
    """Yields the rows of a shard; a batch of them is in memory."""
    if shard not in self.offsets:
      return
    self._file.seek(self.offsets[shard])
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_stream(self._file, options=options) as batches:
      for batch in batches:
        yield from rows_of(batch)


def _new_stream(file):
  options = pa.ipc.IpcWriteOptions(
    compression=pa.Codec('zstd', compression_level=1), use_threads=False
  )
  return pa.ipc.new_stream(file, ROW_SCHEMA, options=options)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
  batch, num_bytes = [], 0
  for row in rows:
    if batch and num_bytes + size_of(row) > _BATCH_BYTES:
      yield batch
      batch, num_bytes = [], 0
    batch.append(row)
    num_bytes += size_of(row)
  if batch:
    yield batch
