"""TFF's SQLite databases: plain, packed, damaged, and of other content."""

import lzma
import os
import random
import sqlite3
import subprocess
import sys

import pytest

from pipelines import client_sqlite, raw_bytes
from pipelines.source import Drop
from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

_ID_TO_TEXT = {f'{i}': f'text {i} ' + 'x' * 300 for i in range(400)}


def _example(**features):
  example = messages().Example()
  for name, value in features.items():
    feature = example.features.feature[name]
    if isinstance(value, int):
      feature.int64_list.value.append(value)
    else:
      feature.bytes_list.value.append(
        value if isinstance(value, bytes) else value.encode()
      )
  return example.SerializeToString(deterministic=True)


def _write(path, rows):
  """Writes (split name, client id, serialized example) rows as TFF does."""
  connection = sqlite3.connect(path)
  connection.execute(
    'CREATE TABLE examples (split_name TEXT NOT NULL, '
    'client_id TEXT, serialized_example_proto BLOB)'
  )
  connection.execute(
    'CREATE TABLE client_metadata (client_id TEXT NOT NULL, '
    'split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)'
  )
  connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
  connection.execute('CREATE INDEX by_client ON examples (client_id)')
  connection.commit()
  connection.close()
  return path


def _read(path, max_document_bytes=1000):
  """Returns the records, and the drops by number."""
  kept, drops = [], {}
  found = client_sqlite.read_examples(
    raw_bytes.read_chunks(str(path)), str(path), max_document_bytes
  )
  for i, (num, record) in enumerate(found, start=1):
    assert num == i
    if isinstance(record, Drop):
      drops[num] = record
    else:
      kept.append(record)
  return kept, drops


def _many(path):
  return _write(
    path,
    [
      ('train', client_id, _example(tokens=text))
      for client_id, text in _ID_TO_TEXT.items()
    ],
  )


def test_all_features(tmp_path):
  example = _example(
    tokens='css3 does finally define the',
    creation_date='2008-08-10 08:28:52.1 UTC',
    title='rounded corners',
    tags='css|css3',
    type='answer',
    score=-1,
    other='unknown',
  )
  rows = [('heldout', '20', example), ('test', '3', _example(tokens='a'))]
  assert _read(_write(tmp_path / 'a', rows)) == (
    [
      {
        'text': 'css3 does finally define the',
        'timestamp': '2008-08-10 08:28:52.1 UTC',
        'url': '',
        'author': '20',
        'title': 'rounded corners',
        'tags': 'css|css3',
        'type': 'answer',
        'score': '-1',
        'split': 'held_out',
      },
      {'text': 'a', 'timestamp': '', 'url': '', 'author': '3', 'split': 'test'},
    ],
    {},
  )


def test_client_that_is_a_number_or_missing(tmp_path):
  rows = [('train', 7, _example(tokens='a')), ('', None, _example(tokens='b'))]
  kept, _ = _read(_write(tmp_path / 'a', rows))
  assert kept[0]['author'] == '7'
  assert kept[1] == {'text': 'b', 'timestamp': '', 'url': ''}


@pytest.mark.parametrize(
  ('client_id', 'example', 'reason'),
  [
    ('1', b'\xff', 'malformed_example'),
    ('1', None, 'malformed_example'),
    ('1', 7, 'malformed_example'),
    ('1', _example(title='a'), 'missing_text'),
    ('1', _example(tokens=7), 'missing_text'),
    ('1', _example(tokens=' '), 'empty_text'),
    ('1', _example(tokens=b'\xff'), 'invalid_utf8'),
    (b'\xff', _example(tokens='a'), 'invalid_utf8'),
    ('1', _example(tokens='x' * 1001), 'document_too_large'),
    ('1', _example(tokens='ß' * 501), 'document_too_large'),
    ('1', _example(tokens='x' * (2 << 20)), 'document_too_large'),
  ],
)
def test_dropped_row(tmp_path, client_id, example, reason):
  good = ('train', '1', _example(tokens='x' * 1000))
  rows = [good, ('train', client_id, example), good]
  kept, drops = _read(_write(tmp_path / 'a', rows))
  assert len(kept) == 2
  assert {num: drop.reason for num, drop in drops.items()} == {2: reason}


def test_rows_come_in_the_order_written(tmp_path):
  # Not in that of the index.
  assert list(_ID_TO_TEXT) != sorted(_ID_TO_TEXT)
  kept, drops = _read(_many(tmp_path / 'a'))
  assert [record['author'] for record in kept] == list(_ID_TO_TEXT)
  assert not drops


@pytest.mark.parametrize('container', [lzma.FORMAT_XZ, lzma.FORMAT_ALONE])
def test_packed_database(tmp_path, monkeypatch, container):
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(temporary))
  plain = _many(tmp_path / 'a')
  packed = tmp_path / 'a.lzma'
  packed.write_bytes(lzma.compress(plain.read_bytes(), container))
  assert _read(packed) == _read(plain)
  assert not list(temporary.iterdir())


def test_reader_that_stops_leaves_no_file(tmp_path, monkeypatch):
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(temporary))
  packed = tmp_path / 'a.xz'
  packed.write_bytes(lzma.compress(_many(tmp_path / 'a').read_bytes()))
  chunks = raw_bytes.read_chunks(str(packed))
  found = client_sqlite.read_examples(chunks, str(packed), 1000)
  next(found)
  assert len(list(temporary.iterdir())) == 1
  found.close()
  assert not list(temporary.iterdir())


def test_database_in_a_directory_with_an_odd_name_is_left_alone(tmp_path):
  directory = tmp_path / 'a?b #%20'
  directory.mkdir()
  path = _many(directory / 'c.sqlite')
  before = path.stat()
  os.chmod(path, 0o400)
  os.chmod(directory, 0o500)
  kept, _ = _read(path)
  assert len(kept) == 400
  assert os.listdir(directory) == ['c.sqlite']
  assert path.stat().st_mtime_ns == before.st_mtime_ns
  os.chmod(directory, 0o700)


def test_database_cut_off_anywhere_keeps_what_is_there(tmp_path):
  # Every tenth row takes pages of its own: it must not be filled up with zeros.
  expected = [
    (client_id, text + '.' * (5000 if client_id.endswith('7') else 0))
    for client_id, text in _ID_TO_TEXT.items()
  ]
  path = tmp_path / 'a'
  rows = [('train', name, _example(tokens=text)) for name, text in expected]
  data = _write(path, rows).read_bytes()
  nums_kept = []
  for size in range(100, len(data), 9973):
    path.write_bytes(data[:size])
    kept, drops = _read(path, max_document_bytes=10_000)
    found = [(record['author'], record['text']) for record in kept]
    assert found == expected[: len(kept)]
    ((num, drop),) = drops.items()
    assert num == len(kept) + 1
    assert (drop.reason, drop.damage) == ('truncated_file', True)
    assert drop.byte == size
    nums_kept.append(len(kept))
  assert nums_kept == sorted(nums_kept)
  # The index takes a few pages at the end.
  assert nums_kept[0] == 0
  assert nums_kept[-1] > 370


def test_packed_database_cut_off_keeps_what_is_there(tmp_path):
  path = tmp_path / 'a'
  numbers = random.Random(3)
  expected = [numbers.randbytes(500).hex() for _ in range(200)]
  rows = [('train', '1', _example(tokens=text)) for text in expected]
  packed = lzma.compress(_write(path, rows).read_bytes())
  size = len(packed) // 2
  path.write_bytes(packed[:size])
  kept, drops = _read(path, max_document_bytes=2000)
  assert 80 < len(kept) < 100
  assert [record['text'] for record in kept] == expected[: len(kept)]
  ((num, drop),) = drops.items()
  assert (num, drop.reason, drop.byte) == (
    len(kept) + 1,
    'truncated_file',
    size,
  )


@pytest.mark.parametrize('num_bytes', [16, 90, 100, 4095])
def test_hardly_anything_of_a_database(tmp_path, num_bytes):
  path = tmp_path / 'a'
  path.write_bytes(_many(path).read_bytes()[:num_bytes])
  kept, drops = _read(path)
  assert not kept
  assert [drop.reason for drop in drops.values()] == ['truncated_file']


def test_corrupt_database_keeps_what_precedes(tmp_path):
  path = tmp_path / 'a'
  data = bytearray(_many(path).read_bytes())
  place = data.index(b'text 200 ') // 4096 * 4096
  data[place : place + 4096] = bytes(4096)
  path.write_bytes(data)
  kept, drops = _read(path)
  # A page holds a dozen rows. One more is lost, as Python reads ahead.
  assert 180 < len(kept) < 200
  expected = list(_ID_TO_TEXT)[: len(kept)]
  assert [record['author'] for record in kept] == expected
  ((num, drop),) = drops.items()
  assert num == len(kept) + 1
  assert (drop.reason, drop.damage, drop.byte) == ('corrupt_file', True, None)


@pytest.mark.parametrize('byte', [47, 100])
def test_database_whose_start_is_corrupt(tmp_path, byte):
  path = tmp_path / 'a'
  data = bytearray(_many(path).read_bytes())
  data[byte] = 99
  path.write_bytes(data)
  kept, drops = _read(path)
  assert not kept
  assert [drop.reason for drop in drops.values()] == ['corrupt_file']


@pytest.mark.parametrize(
  ('statement', 'missing'),
  [
    (
      'CREATE TABLE other (a)',
      '`client_id`, `serialized_example_proto`, `split_name`',
    ),
    (
      'CREATE TABLE examples (client_id, split_name)',
      '`serialized_example_proto`',
    ),
  ],
)
def test_database_of_something_else(tmp_path, statement, missing):
  path = tmp_path / 'a.sqlite'
  connection = sqlite3.connect(path)
  connection.execute(statement)
  connection.close()
  with pytest.raises(UserError) as raised:
    _read(path)
  assert str(raised.value) == (
    "`--input` must name databases of TFF's simulation datasets, but "
    f"'{path}' has no table `examples` with {missing}. Leave it out."
  )


def test_no_room_for_the_temporary_file_is_shown_as_it_is(tmp_path):
  def chunks():
    yield client_sqlite.MAGIC
    raise OSError(28, 'No space left on device')

  path = tmp_path / 'a.xz'
  path.write_bytes(b'')
  with pytest.raises(OSError, match='No space left'):
    list(client_sqlite.read_examples(chunks(), str(path), 1000))


def test_needs_no_tensorflow(tmp_path):
  path = _many(tmp_path / 'a')
  code = (
    'import sys\n'
    'from pipelines import stack_overflow\n'
    'assert len(list(stack_overflow.read_records(sys.argv[1], 1000))) == 400\n'
    "assert 'tensorflow' not in sys.modules\n"
  )
  subprocess.run([sys.executable, '-c', code, path], check=True, timeout=300)


_ENDLESS = (
  'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) '
  "SELECT 'train' AS split_name, i AS client_id, "
  'NULL AS serialized_example_proto FROM n WHERE i < 0'
)


def _with_view(path, is_hidden):
  connection = sqlite3.connect(path)
  if not is_hidden:
    connection.execute(f'CREATE VIEW Examples AS {_ENDLESS}')
  else:
    # The list of tables calls it a table of another name.
    connection.execute('CREATE TABLE other (a)')
    connection.execute('PRAGMA writable_schema = ON')
    connection.execute(
      'UPDATE sqlite_master SET rootpage = 0, sql = ?',
      [f'CREATE VIEW examples AS {_ENDLESS}'],
    )
  connection.commit()
  connection.close()
  return path


@pytest.mark.parametrize('is_hidden', [False, True])
@pytest.mark.parametrize('is_cut', [False, True])
def test_view_is_refused_and_not_run(tmp_path, is_hidden, is_cut):
  path = _with_view(tmp_path / 'a.sqlite', is_hidden)
  if is_cut:
    # One page more than there is.
    data = bytearray(path.read_bytes())
    data[28:32] = (len(data) // 4096 + 1).to_bytes(4, 'big')
    path.write_bytes(data)
  # In a process of its own: it would not end, and hear no signal.
  code = (
    'import sys\n'
    'from pipelines import stack_overflow\n'
    'from tff_fedfish.errors import UserError\n'
    'try:\n'
    '  list(stack_overflow.read_records(sys.argv[1], 1000))\n'
    'except UserError as error:\n'
    '  print(error)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code, path],
    timeout=300,
    capture_output=True,
    text=True,
  )
  assert done.stdout == (
    "`--input` must name databases of TFF's simulation datasets, whose "
    f"`examples` is a table, but in '{path}' it is a view. Leave it out.\n"
  ), done.stderr


def test_virtual_table_is_refused(tmp_path):
  path = tmp_path / 'a.sqlite'
  connection = sqlite3.connect(path)
  connection.execute(
    'CREATE VIRTUAL TABLE examples USING fts4 '
    '(split_name, client_id, serialized_example_proto)'
  )
  connection.close()
  with pytest.raises(UserError, match='it is a virtual table. Leave it out'):
    _read(path)
