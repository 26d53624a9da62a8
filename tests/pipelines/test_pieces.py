"""Pieces of a shard: never too large, few where they can be, and merged."""

import pyarrow as pa
import pytest

from pipelines import pieces
from pipelines.blocks import SORTED_SCHEMA
from pipelines.pieces import PieceBlocks, merge_pieces, write_piece


def _row(num_bytes):
  return b'', b'', b'', b'', b'x' * num_bytes, 0, 0


def _record(i):
  return b'g%d' % (i % 3), b'', b'', b'%05d' % i, b'example %d' % i, i


def _write(path, records):
  columns = zip(*sorted(records), strict=True)
  table = pa.table(list(map(pa.array, columns)), schema=SORTED_SCHEMA)
  write_piece(str(path), table)
  return str(path)


@pytest.fixture
def max_bytes(monkeypatch):
  monkeypatch.setattr(pieces, 'MAX_PIECE_BYTES', 64)
  return 64


def _keys(blocks, *added):
  """Returns where records go: the key of each, which has a block of its own."""
  keys = []
  for shard, num_bytes in added:
    blocks.add(shard, _row(num_bytes))
    ((key, _),) = blocks.take()
    keys.append(key)
  return keys


def test_keys_by_hand(max_bytes):
  blocks = PieceBlocks(task_num=5, tasks_per_piece=4, max_bytes=1 << 20)
  # Four tasks share 64 bytes: room for 16. Task 5 is in the second group of 4.
  assert _keys(blocks, (7, 10), (7, 6)) == [(7, 0, 1)] * 2
  # Full. Two tasks share the next one, room for 32; 5 is in the third group.
  assert _keys(blocks, (7, 1)) == [(7, 1, 2)]
  # Too large for what is left of 32: on its own, room for 64.
  assert _keys(blocks, (7, 32), (7, 32)) == [(7, 2, 5)] * 2
  # Larger than any piece may be: one of its own.
  assert _keys(blocks, (7, 100), (7, 1)) == [(7, 3, 5), (7, 4, 5)]
  # Other shards are not concerned.
  assert _keys(blocks, (8, 1)) == [(8, 0, 1)]


def test_tasks_per_piece():
  mib = 1 << 20
  # 4 * 16 MiB of text in a task, 64 KiB for each of 1024 shards: 512 tasks fill
  # 32 of the 64 MiB.
  assert pieces.tasks_per_piece(2048 * 16 * mib, 2048, 1024) == 512
  # A little more in each, and 512 are too many.
  assert pieces.tasks_per_piece(2048 * 17 * mib, 2048, 1024) == 256
  # 100 small tasks fit into one piece, of the next power of two.
  assert pieces.tasks_per_piece(10 * mib, 100, 8) == 128
  assert pieces.tasks_per_piece(0, 1, 1) == 1
  # One task has more for a shard than a piece can hold.
  assert pieces.tasks_per_piece(1000 * mib, 1, 1) == 1


@pytest.mark.parametrize('max_open', [256, 2])
def test_merged_order(tmp_path, monkeypatch, max_open):
  monkeypatch.setattr(pieces, '_MAX_OPEN_PIECES', max_open)
  monkeypatch.setattr(pieces, '_MERGED_ROWS', 4)
  monkeypatch.setattr(pieces, '_BATCH_BYTES', 100)
  found = [_record(i) for i in range(60)]
  paths = [_write(tmp_path / f'{i}', found[i::7]) for i in range(7)]
  with merge_pieces(paths) as rows:
    assert list(rows) == sorted(found)
  with merge_pieces([]) as rows:
    assert list(rows) == []


def test_batches_of_a_piece_are_small(tmp_path, monkeypatch):
  monkeypatch.setattr(pieces, '_BATCH_BYTES', 1000)
  path = _write(tmp_path / 'x', [_record(i) for i in range(100)])
  with pa.ipc.open_stream(path) as batches:
    sizes = [batch.num_rows for batch in batches]
  # Some 50 bytes a record, with offsets.
  assert len(sizes) > 3
  assert sum(sizes) == 100
