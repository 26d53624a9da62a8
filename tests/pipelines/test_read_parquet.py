"""Rows of whole, cut and corrupt tables."""

import subprocess
import sys
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import read_parquet
from pipelines.objects import read_objects
from pipelines.source import Drop

_ROWS = [{'text': f'text {i} ' * 20, 'url': f'u{i}'} for i in range(400)]


def _read(path, column_names=None):
  """Returns (rows or reasons, the last Drop or None)."""
  found = list(read_objects(str(path), 1000, column_names))
  assert [num for num, _ in found] == [*range(1, len(found) + 1)]
  values = [
    value.reason if isinstance(value, Drop) else value for _, value in found
  ]
  drops = [value for _, value in found if isinstance(value, Drop)]
  return values, drops[-1] if drops else None


def _write(path, rows=_ROWS, **options):
  pq.write_table(pa.Table.from_pylist(rows), path, **options)
  return path


@pytest.mark.parametrize('compression', ['none', 'zstd'])
def test_rows(tmp_path, compression):
  pq.write_table(pa.table({'text': pa.array([], pa.string())}), tmp_path / 'a')
  assert _read(tmp_path / 'a') == ([], None)
  path = _write(tmp_path / 'a', compression=compression, row_group_size=150)
  assert _read(path) == (_ROWS, None)


def test_values(tmp_path):
  row = {
    'text': None,
    'number': 1.5,
    'list': ['a', None],
    'object': {'a': 'b'},
    'bytes': 'é'.encode(),
  }
  path = _write(tmp_path / 'a', [row])
  assert _read(path) == ([{**row, 'bytes': 'é'}], None)


@pytest.mark.parametrize(
  ('value', 'kind', 'text'),
  [
    (1556197074, pa.timestamp('s'), '2019-04-25T12:57:54Z'),
    (1556197074_000_000_000, pa.timestamp('ns'), '2019-04-25T12:57:54Z'),
    # The zone says how to show the time, not which it is.
    (
      1556197074_000_001,
      pa.timestamp('us', 'America/New_York'),
      '2019-04-25T12:57:54.000001Z',
    ),
    (-1, pa.timestamp('ms'), '1969-12-31T23:59:59.999Z'),
    (-62135596800, pa.timestamp('s'), '0001-01-01T00:00:00Z'),
    (253402300799, pa.timestamp('s'), '9999-12-31T23:59:59Z'),
  ],
)
def test_times(tmp_path, value, kind, text):
  # 1556197074 = 18011 * 86400 + 46674; 46674 s = 12 h 57 min 54 s.
  table = pa.table({'time': pa.array([value, None, 0], kind)})
  pq.write_table(table, tmp_path / 'a')
  texts = [text, None, '1970-01-01T00:00:00Z']
  assert _read(tmp_path / 'a') == ([{'time': text} for text in texts], None)


@pytest.mark.parametrize('kind', [pa.binary(), pa.large_binary()])
def test_bytes_that_are_no_text(tmp_path, kind):
  array = pa.array([b'a', b'\xff\xfe', 'ö'.encode(), None], kind)
  pq.write_table(pa.table({'text': array}), tmp_path / 'a')
  rows, drop = _read(tmp_path / 'a')
  assert rows == [{'text': 'a'}, 'invalid_utf8', {'text': 'ö'}, {'text': None}]
  assert (drop.damage, drop.excerpt) == (False, b'\xff\xfe')


# What Python has no value for.
_STRANGE = [
  pa.array([1], pa.duration('ns')),
  pa.array([{'time': 1}], pa.struct([('time', pa.time64('ns'))])),
  pa.array([[1]], pa.list_(pa.timestamp('s', 'No/Zone'))),
  pa.array([2**62], pa.timestamp('us', 'UTC')),
  # The second after 9999-12-31T23:59:59.
  pa.array([253402300800], pa.timestamp('s')),
  pa.array([2**31 - 1], pa.date32()),
]


@pytest.mark.parametrize('array', _STRANGE, ids=lambda array: str(array.type))
def test_strange_values(tmp_path, array):
  column = pa.concat_arrays([array, pa.nulls(1, array.type)])
  texts = pa.array(['a', 'b'])
  table = pa.table({'text': texts, 'x': column, 'text.x': column})
  pq.write_table(table, tmp_path / 'a')
  rows = [{'text': 'a'}, {'text': 'b'}]
  assert _read(tmp_path / 'a', ['text', 'url']) == (rows, None)
  (first, second), drop = _read(tmp_path / 'a', ['text', 'x'])
  # Whatever it is, it is neither text nor a number.
  assert not isinstance(first.pop('x'), str | int | float)
  assert (first, second) == ({'text': 'a'}, {'text': 'b', 'x': None})
  assert drop is None


def test_times_in_structs(tmp_path):
  kind = pa.struct(
    [
      ('sent', pa.timestamp('ns', 'America/New_York')),
      ('inner', pa.struct([('day', pa.date32())])),
      ('bytes', pa.binary()),
    ]
  )
  values = [
    {'sent': 1, 'inner': {'day': 1}, 'bytes': b'\xff'},
    {'sent': 0, 'inner': None, 'bytes': None},
    None,
  ]
  pq.write_table(pa.table({'x': pa.array(values, kind)}), tmp_path / 'a')
  rows, drop = _read(tmp_path / 'a')
  times = '1970-01-01T00:00:00.000000001Z', '1970-01-01T00:00:00Z'
  inner = {'day': '1970-01-02T00:00:00Z'}
  assert [row['x'] for row in rows] == [
    {'sent': times[0], 'inner': inner, 'bytes': b'\xff'},
    {'sent': times[1], 'inner': None, 'bytes': None},
    None,
  ]
  assert drop is None


def test_no_column_of_those(tmp_path):
  path = _write(tmp_path / 'a')
  assert _read(path, ['maintext']) == ([{}] * 400, None)


@pytest.mark.parametrize('value_type', [pa.string(), pa.binary()])
def test_dictionary(tmp_path, value_type):
  array = pa.array(['é', None, 'b', 'é']).cast(value_type).dictionary_encode()
  pq.write_table(pa.table({'text': array}), tmp_path / 'a')
  assert pq.read_schema(tmp_path / 'a').field('text').type == array.type
  rows = [{'text': text} for text in ['é', None, 'b', 'é']]
  assert _read(tmp_path / 'a') == (rows, None)


def test_corrupt_row_group(tmp_path):
  path = _write(
    tmp_path / 'a',
    row_group_size=100,
    compression='none',
    use_dictionary=False,
    write_page_checksum=True,
  )
  # A text is stored where a row group's data are: the third's is 200 to 299.
  data = bytearray(path.read_bytes())
  data[data.index(b'text 250 ')] ^= 1
  path.write_bytes(data)
  rows, drop = _read(path)
  assert rows == [*_ROWS[:200], 'corrupt_file']
  assert drop.damage


@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
def test_cut_table_has_no_contents(tmp_path_factory, data):
  path = _write(tmp_path_factory.getbasetemp() / 'table')
  whole = path.read_bytes()
  path.write_bytes(whole[: data.draw(st.integers(4, len(whole) - 1))])
  rows, drop = _read(path)
  assert rows == ['truncated_file']
  assert drop.damage


def test_rows_that_go_without_an_error(tmp_path):
  path = _write(tmp_path / 'a', row_group_size=100, write_page_checksum=True)
  data = bytearray(path.read_bytes())
  # The header of the first page, which a group of no rows begins with now.
  data[5] ^= 2
  path.write_bytes(data)
  assert _read(path)[0] == ['corrupt_file']


@hypothesis.settings(max_examples=25)
@hypothesis.given(data=st.data())
def test_one_wrong_byte(tmp_path_factory, data):
  path = tmp_path_factory.getbasetemp() / 'table'
  _write(path, row_group_size=100, write_page_checksum=True)
  packed = bytearray(path.read_bytes())
  # The table of contents, the last thing in a file, has no checksum.
  end = len(packed) - 8 - int.from_bytes(packed[-8:-4], 'little')
  position = data.draw(st.integers(4, end - 1))
  packed[position] ^= 1 << data.draw(st.integers(0, 7))
  path.write_bytes(packed)
  rows, drop = _read(path)
  if drop is not None:
    assert drop.damage
    assert rows.pop() == 'corrupt_file'
  assert rows == _ROWS[: len(rows)]
  assert len(rows) == 400 or drop is not None


def test_damage_of_the_table_of_contents_ends_no_process(tmp_path):
  path = _write(tmp_path / 'a', _ROWS[:20], row_group_size=10)
  program = (
    'import sys\n'
    'from pipelines.objects import read_objects\n'
    "whole = open(sys.argv[1], 'rb').read()\n"
    "size = int.from_bytes(whole[-8:-4], 'little')\n"
    'for place in range(len(whole) - 8 - size, len(whole) - 8, 3):\n'
    '  data = bytearray(whole)\n'
    '  data[place] ^= 2 if place % 2 else 8\n'
    "  open(sys.argv[1], 'wb').write(data)\n"
    '  list(read_objects(sys.argv[1], 1000))\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program, path], stderr=subprocess.PIPE, text=True
  )
  assert done.returncode == 0, done.stderr[-2000:]


# Arrow's threads may free what they hold after a reader is closed: a pool that
# were collected by then would end the process.
_POOLS = []


def _peak_bytes(path, max_document_bytes):
  """Returns (what there is of each row, what reading takes in memory)."""
  found, default = [], pa.default_memory_pool()
  pool = pa.proxy_memory_pool(default)
  _POOLS.append(pool)
  pa.set_memory_pool(pool)
  tracemalloc.start()
  try:
    for _, row in read_objects(str(path), max_document_bytes):
      found.append(row.reason if isinstance(row, Drop) else len(row['text']))
      del row
    return found, pool.max_memory() + tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
    pa.set_memory_pool(default)


@pytest.mark.parametrize('kind', ['plain', 'struct', 'list', 'map', 'unknown'])
def test_one_long_value_in_many_rows(tmp_path, monkeypatch, kind):
  # Some kilobytes that stand for 100 MB.
  monkeypatch.setattr(read_parquet, '_BYTES_PER_BATCH', 4 << 20)
  column = pa.DictionaryArray.from_arrays(
    pa.array([0] * 100, pa.int32()), pa.array(['x' * 1_000_000])
  )
  if kind == 'struct':
    column = pa.StructArray.from_arrays([column], ['text'])
  elif kind == 'list':
    column = pa.ListArray.from_arrays([0, 100, 100], column)
  elif kind == 'map':
    numbers = pa.array(range(100))
    column = pa.MapArray.from_arrays([0, 100, 100], numbers, column)
  pq.write_table(
    pa.table({'text': column}),
    tmp_path / 'a',
    compression='zstd',
    dictionary_pagesize_limit=1 << 30,
    # Without it, nothing says that the column is to be kept as it is stored.
    store_schema=kind != 'unknown',
  )
  found, peak = _peak_bytes(tmp_path / 'a', 1 << 20)
  size = 1 if kind == 'struct' else 1_000_000
  in_list = ['document_too_large', 0]
  assert found == (in_list if kind in ('list', 'map') else [size] * 100)
  assert peak < 16e6


def test_row_that_is_too_large_is_not_read(tmp_path):
  table = pa.table({'text': ['x' * 80_000_000]})
  pq.write_table(
    table, tmp_path / 'a', compression='zstd', use_dictionary=False
  )
  found, peak = _peak_bytes(tmp_path / 'a', 10 << 20)
  assert found == ['document_too_large']
  assert peak < 10e6


def test_short_rows_beside_a_very_long_one(tmp_path, monkeypatch):
  # On the average they are three times as long as a row may be, 4 MiB.
  monkeypatch.setattr(read_parquet, '_BYTES_PER_BATCH', 1 << 20)
  texts = ['short', 'x' * 40_000_000, 'short']
  for use_dictionary in (True, False):
    table = pa.table({'text': texts})
    pq.write_table(table, tmp_path / 'a', use_dictionary=use_dictionary)
    found, _ = _peak_bytes(tmp_path / 'a', 1 << 20)
    assert found == [5, 'document_too_large', 5]


@pytest.mark.parametrize(
  'kind', [pa.string_view(), pa.binary_view(), pa.large_string()]
)
def test_batch_of_long_rows(tmp_path, monkeypatch, kind):
  monkeypatch.setattr(read_parquet, '_BYTES_PER_BATCH', 1 << 20)
  texts = ['short'] * 1000 + [None, *(c * 1_000_000 for c in 'abcd')]
  pq.write_table(pa.table({'text': pa.array(texts).cast(kind)}), tmp_path / 'a')
  assert _read(tmp_path / 'a') == ([{'text': text} for text in texts], None)


def test_long_rows_among_short_ones(tmp_path, monkeypatch):
  # 64 rows as they are on the average are 1 MB, and 20 MB at the end.
  texts = ['short'] * 1000 + ['x' * 1_000_000] * 20
  pq.write_table(
    pa.table({'text': texts}),
    tmp_path / 'a',
    compression='zstd',
    use_dictionary=False,
    # Else one page holds a thousand rows, whatever their size.
    write_batch_size=1,
  )
  monkeypatch.setattr(read_parquet, '_GROUP_BYTES', 1 << 18)
  found, peak = _peak_bytes(tmp_path / 'a', 10 << 20)
  assert found == [5] * 1000 + [1_000_000] * 20
  assert peak < 12e6
