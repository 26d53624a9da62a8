"""Sorted runs: small in memory, complete, and merged in the stored order."""

import hashlib
import itertools

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from group_records import encode_example

from pipelines import runs
from pipelines.rows import FeatureFiller, size_of
from pipelines.runs import Runs, RunWriter, combine
from tff_fedfish.data import records

_FILL = FeatureFiller(('text',), ('author', 'title'), 0)


def _row(text, author=None, group=b'g'):
  features = {'text': text} | ({} if author is None else {'author': author})
  example = encode_example(features)
  digest = hashlib.sha256(example).digest()
  return group, b'', b'', digest, example, 1, int(author is not None)


def _namer(directory):
  numbers = itertools.count()
  return lambda: str(directory / f'{next(numbers)}.run')


def _write(name, rows, max_bytes=1):
  writer = RunWriter(name, max_bytes)
  for shard, row in rows:
    writer.add(shard, row)
  writer.write()
  return writer.paths


def _read(paths, name, fill=_FILL):
  with Runs(paths, fill) as opened:
    found = []
    for shard in opened.shards():
      with opened.rows(shard, name) as rows:
        found += [(shard, row) for row in rows]
  return found


@hypothesis.settings(max_examples=20)
@hypothesis.given(
  numbers=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99))),
  max_bytes=st.sampled_from([1, 2000, 1 << 20]),
  batch_bytes=st.sampled_from([1, 1000, 1 << 20]),
)
def test_rows_come_in_order(tmp_path_factory, numbers, max_bytes, batch_bytes):
  name = _namer(tmp_path_factory.mktemp('runs'))
  rows = [(shard, _row(b'%d' % number)) for shard, number in numbers]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(runs, '_BATCH_BYTES', batch_bytes)
    paths = _write(name, rows, max_bytes)
  assert _read(paths, name) == sorted(rows)
  # Many runs of one row, or one of all.
  if max_bytes != 2000:
    assert len(paths) == (len(rows) if max_bytes == 1 else bool(rows))
  assert _read([combine(paths, _FILL, name)], name) == sorted(rows)


def test_batches_are_cut_by_their_own_size(tmp_path, monkeypatch):
  rows = [_row(bytes(size) * 1000) for size in (1, 1, 1, 90, 1)]
  limit = 2 * size_of(rows[0]) + 1
  monkeypatch.setattr(runs, '_BATCH_BYTES', limit)
  [path] = _write(_namer(tmp_path), [(0, row) for row in rows], 1 << 20)
  with pa.ipc.open_stream(path) as batches:
    sizes = [batch.num_rows for batch in batches]
  # Sorted by a hash: the long one, wherever it is, is alone.
  assert sum(sizes) == 5 and max(sizes) <= 2 and len(sizes) >= 3


def test_features_that_a_reader_had_not_met_yet(tmp_path):
  name = _namer(tmp_path)
  rows = [_row(b'%d' % i) for i in range(20)] + [_row(b'x', author=b'me')]
  paths = _write(name, [(0, row) for row in rows], 3000)
  assert len(paths) > 2
  fill = FeatureFiller(('text',), ('author', 'title'), 1)
  for found in (paths, [combine(paths, fill, name)]):
    before = sorted(tmp_path.iterdir())
    read = [row for _, row in _read(found, name, fill)]
    # What it needed meanwhile is gone.
    assert sorted(tmp_path.iterdir()) == before
    # The order among equal keys is that of the bytes that are stored.
    assert [row[3] for row in read] == sorted(
      hashlib.sha256(row[4]).digest() for row in read
    )
    values = [records.decode_example(row[4]) for row in read]
    assert len(values) == 21
    assert sorted(v['author'] for v in values) == [b''] * 20 + [b'me']
