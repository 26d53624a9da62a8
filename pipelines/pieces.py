"""Pieces: a shard's records in parts of bounded size, sorted, then merged.

A runner holds all values of a key at once, and a shard may be of any size. So a
runner groups pieces, each the records of a few reading tasks for one shard. A
piece is sorted and written to a file. The shard is merged from the files of its
pieces, of which only a little is in memory at a time.
"""

import contextlib
import dataclasses
import heapq
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.blocks import (
  SORTED_SCHEMA,
  SortedRecord,
  encode_block,
  new_stream,
)
from tff_fedfish.data import places

MAX_PIECE_BYTES = 64 << 20
"""Examples and group ids of a piece, unless one record has more by itself."""

# How much raw files grow when they are unpacked, roughly: it decides how large
# most pieces become, not how large they can be.
_EXPANSION = 4
_BATCH_BYTES = 512 << 10
# Far below what systems allow a process to have open.
_MAX_OPEN_PIECES = 256
# Of all pieces of a shard that are open, if they are in a store.
_READ_BYTES = 256 << 20
_MERGED_ROWS = 256

PieceKey = tuple[int, int, int]
"""(shard, level, tasks): names a piece.

The number of the shard is counted through all parts of the split: that of part
i and shard j is i * num_shards + j. At level l, tasks_per_piece / 2**l tasks
share a piece; the last number is that group of tasks."""


@dataclasses.dataclass
class _OpenPiece:
  """The piece that the next record of a shard goes to."""

  key: PieceKey
  max_bytes: int
  num_bytes: int = 0
  rows: list[tuple] = dataclasses.field(default_factory=list)
  """Records that are in no block yet."""


class PieceBlocks:
  """Collects the records of one reading task into blocks, each of one piece.

  At level 0, `tasks_per_piece` tasks share a piece, and each may fill an equal
  part of it. A task that has more for a shard goes on at level 1, where half as
  many share a piece, and so on, until it has pieces to itself. No piece is too
  large, however unevenly records fall on shards and tasks, and where they fall
  evenly, pieces are few.
  """

  def __init__(self, task_num: int, tasks_per_piece: int, max_bytes: int):
    """Starts without records.

    Args:
      task_num: 0-based number of the task.
      tasks_per_piece: A power of two; see `tasks_per_piece`.
      max_bytes: Size of the examples with which blocks are full.
    """
    self._task_num = task_num
    self._tasks_per_piece = tasks_per_piece
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._open: dict[int, _OpenPiece] = {}
    self._filled: list[_OpenPiece] = []

  def add(self, shard: int, row: tuple) -> bool:
    """Adds a record of a shard; returns whether the blocks are full.

    Args:
      shard: Number of the shard, counted through all parts of the split.
      row: The values of a `SortedRecord`, and the optional features as bits.
    """
    num_bytes = len(row[0]) + len(row[4])
    piece = self._open.get(shard)
    if piece is None or piece.num_bytes + num_bytes > piece.max_bytes:
      piece = self._next_piece(shard, piece, num_bytes)
    piece.num_bytes += num_bytes
    piece.rows.append(row)
    self._num_bytes += num_bytes
    return self._num_bytes >= self._max_bytes

  def _next_piece(
    self, shard: int, piece: _OpenPiece | None, num_bytes: int
  ) -> _OpenPiece:
    """Opens the first of the next pieces that has room for so many bytes."""
    if piece is None:
      level = 0
    else:
      level = piece.key[1] + 1
      self._filled.append(piece)
    while True:
      num_tasks = self._tasks_per_piece >> level or 1
      max_bytes = MAX_PIECE_BYTES // num_tasks
      # Whoever is alone may put a record of any size into an empty piece.
      if num_bytes <= max_bytes or num_tasks == 1:
        key = shard, level, self._task_num // num_tasks
        self._open[shard] = _OpenPiece(key, max_bytes)
        return self._open[shard]
      level += 1

  def take(self) -> Iterator[tuple[PieceKey, bytes]]:
    """Yields the (key, block) pairs of all records, and starts again."""
    pieces = [*self._filled, *self._open.values()]
    self._filled, self._num_bytes = [], 0
    for piece in pieces:
      if piece.rows:
        block = encode_block(piece.rows)
        # They need not be in memory beside all blocks.
        piece.rows = []
        yield piece.key, block


def tasks_per_piece(num_bytes: int, num_tasks: int, num_shards: int) -> int:
  """Returns how many reading tasks should share a piece.

  Args:
    num_bytes: Size of all raw files, as they are stored.
    num_tasks: How many tasks read them.
    num_shards: How many shards are written, of all parts of a split.

  Returns:
    A power of two, with which shards of average size half fill their pieces; at
    least `num_tasks`, if that fills them less.
  """
  per_task = max(1, _EXPANSION * num_bytes // (num_tasks * num_shards))
  wanted = MAX_PIECE_BYTES // 2 // per_task
  if wanted >= num_tasks:
    return 1 << (num_tasks - 1).bit_length()
  return 1 << max(0, wanted.bit_length() - 1)


def write_piece(path: str, table: pa.Table) -> None:
  """Writes sorted records, in batches that are small in memory."""
  rows = max(1, table.num_rows * _BATCH_BYTES // max(1, table.nbytes))
  with (
    places.write(path) as file,
    new_stream(file, SORTED_SCHEMA) as writer,
  ):
    writer.write_table(table, max_chunksize=rows)


@contextlib.contextmanager
def merge_pieces(paths: Sequence[str]) -> Iterator[Iterator[SortedRecord]]:
  """Yields the records of pieces in the stored order, from their files.

  Takes space for temporary files only if a shard has very many pieces.
  """
  with contextlib.ExitStack() as stack:
    directory = None
    while len(paths) > _MAX_OPEN_PIECES:
      directory = directory or stack.enter_context(
        tempfile.TemporaryDirectory()
      )
      merged = os.path.join(directory, f'{len(paths)}')
      with (
        _merge(paths[:_MAX_OPEN_PIECES]) as rows,
        open(merged, 'wb') as file,
        new_stream(file, SORTED_SCHEMA) as writer,
      ):
        while batch := list(_take(rows)):
          columns = map(pa.array, zip(*batch, strict=True), SORTED_SCHEMA.types)
          writer.write_batch(
            pa.record_batch(list(columns), schema=SORTED_SCHEMA)
          )
      # Behind the others: every record is merged again about equally often.
      paths = [*paths[_MAX_OPEN_PIECES:], merged]
    with _merge(paths) as rows:
      yield rows


@contextlib.contextmanager
def _merge(paths: Sequence[str]) -> Iterator[Iterator[SortedRecord]]:
  buffer_bytes = _READ_BYTES // max(1, len(paths))
  with contextlib.ExitStack() as stack:
    yield heapq.merge(
      *(
        stack.enter_context(contextlib.closing(_read_piece(path, buffer_bytes)))
        for path in paths
      )
    )


def _take(rows: Iterator[SortedRecord]) -> Iterator[SortedRecord]:
  """Yields the next rows, until they are as large as a batch should be."""
  num_bytes = 0
  for row in itertools.islice(rows, _MERGED_ROWS):
    yield row
    num_bytes += len(row[0]) + len(row[4])
    if num_bytes >= _BATCH_BYTES:
      return


def _read_piece(path: str, buffer_bytes: int) -> Iterator[SortedRecord]:
  options = pa.ipc.IpcReadOptions(use_threads=False)
  with (
    places.open_file(path, buffer_bytes) as file,
    pa.ipc.open_stream(file, options=options) as batches,
  ):
    for batch in batches:
      yield from zip(
        *(column.to_pylist() for column in batch.columns), strict=True
      )
