"""TFF's SQLite databases: plain, packed, damaged, and of other content."""

import contextlib
import lzma
import os
import sqlite3
import subprocess
import sys

import pytest
import tff_databases
from tff_databases import encode

from pipelines.source import Drop, load_source
from tff_fedfish.errors import UserError

_ID_TO_TEXT = {f'{i}': f'text {i} ' + 'x' * 300 for i in range(400)}


def _read(path, max_document_bytes=1000):
  """Returns the records, and the drops by number."""
  kept, drops = [], {}
  found = load_source('stack_overflow').read_records(
    str(path), max_document_bytes
  )
  for i, (num, record) in enumerate(found, start=1):
    assert num == i
    if isinstance(record, Drop):
      drops[num] = record
    else:
      kept.append(record)
  return kept, drops


def _write(path, rows):
  tff_databases.write(path, rows)
  return path


def _many(path):
  return _write(
    path,
    [
      ('train', client_id, encode(tokens=text))
      for client_id, text in _ID_TO_TEXT.items()
    ],
  )


def test_all_features(tmp_path):
  example = encode(
    tokens='css3 does finally define the',
    creation_date='2008-08-10 08:28:52.1 UTC',
    title='rounded corners',
    tags='css|css3',
    type='answer',
    score=-1,
    other='unknown',
  )
  rows = [('heldout', '20', example), ('test', '3', encode(tokens='a'))]
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
  rows = [('train', 7, encode(tokens='a')), ('', None, encode(tokens='b'))]
  kept, _ = _read(_write(tmp_path / 'a', rows))
  assert kept[0]['author'] == '7'
  assert kept[1] == {'text': 'b', 'timestamp': '', 'url': ''}


@pytest.mark.parametrize(
  ('client_id', 'example', 'reason'),
  [
    ('1', b'\xff', 'malformed_example'),
    ('1', None, 'malformed_example'),
    ('1', encode(title='a'), 'missing_text'),
    ('1', encode(tokens=7), 'missing_text'),
    ('1', encode(tokens=' '), 'empty_text'),
    ('1', encode(tokens=b'\xff'), 'invalid_utf8'),
    (b'\xff', encode(tokens='a'), 'invalid_utf8'),
    ('1', encode(tokens='x' * 1001), 'document_too_large'),
    ('1', encode(tokens='ß' * 501), 'document_too_large'),
  ],
)
def test_dropped_row(tmp_path, client_id, example, reason):
  good = ('train', '1', encode(tokens='x' * 1000))
  rows = [good, ('train', client_id, example), good]
  kept, drops = _read(_write(tmp_path / 'a', rows))
  assert len(kept) == 2
  assert {num: drop.reason for num, drop in drops.items()} == {2: reason}


def test_packed_database_is_refused(tmp_path):
  packed = tmp_path / 'a.lzma'
  packed.write_bytes(lzma.compress(_many(tmp_path / 'a').read_bytes()))
  with pytest.raises(UserError) as raised:
    _read(packed)
  assert str(raised.value) == (
    "`--input` must name TFF's stackoverflow.sqlite as a plain local file, but "
    f'{str(packed)!r} is packed or in a store. Unpack it, for example with '
    '`xz -dk`, or copy it.'
  )


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


@pytest.mark.parametrize('num_missing', [1, 4096])
def test_database_that_is_cut_off_is_refused(tmp_path, num_missing):
  path = tmp_path / 'a'
  data = _many(path).read_bytes()
  path.write_bytes(data[:-num_missing])
  with pytest.raises(UserError) as raised:
    _read(path)
  assert str(raised.value) == (
    f'{str(path)!r} must have the {len(data):,} bytes that its header names, '
    f'found {len(data) - num_missing:,}. Get it again.'
  )


def _corrupt(path):
  data = bytearray(_many(path).read_bytes())
  place = data.index(b'text 200 ') // 4096 * 4096
  data[place : place + 4096] = bytes(4096)
  path.write_bytes(data)


def test_workers_need_no_tensorflow(tmp_path):
  code = (
    'import sys\n'
    'from pipelines import write_groups\n'
    'from pipelines.options import GroupJob\n'
    'from pipelines.read_files import FileReader\n'
    'from pipelines.reports import Input\n'
    'from pipelines.runs import RunWriter\n'
    "job = GroupJob(source_name='stack_overflow', key='author', num_shards=1,\n"
    '  max_record_bytes=1 << 20, paths=(sys.argv[1],))\n'
    "runs = RunWriter(lambda: sys.argv[1] + '.run', job.run_bytes)\n"
    'reader = FileReader(job, runs)\n'
    "reader.read([Input(sys.argv[1], 'a')])\n"
    'runs.write()\n'
    'assert reader.reports[0].records_out() == 400\n'
    "assert 'tensorflow' not in sys.modules\n"
  )
  path = _many(tmp_path / 'a')
  subprocess.run([sys.executable, '-c', code, path], check=True, timeout=300)


@pytest.mark.parametrize(
  ('statement', 'found'),
  [
    ('CREATE TABLE other (a)', 'no such table'),
    ('CREATE TABLE examples (split_name)', 'no such column'),
    (None, 'malformed'),
  ],
)
def test_database_of_something_else(tmp_path, statement, found):
  path = tmp_path / 'a.sqlite'
  if statement is None:
    _corrupt(path)
  else:
    with contextlib.closing(sqlite3.connect(path)) as connection:
      connection.execute(statement)
      connection.commit()
  with pytest.raises(
    UserError, match=f'table `examples` of TFF, but it .*{found}.* Get it again'
  ):
    _read(path)
