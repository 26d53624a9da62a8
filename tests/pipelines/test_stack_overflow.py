"""Stack Overflow: what a file is, the split, real dumps to the last post."""

import gzip
import lzma

import pytest

from pipelines.source import Drop, load_source
from tff_fedfish.errors import UserError

_SOURCE = load_source('stack_overflow')
_ROW = b'<row Id="1" PostTypeId="2" Body="x" />'


def _read(path, max_document_bytes=1 << 20):
  return list(_SOURCE.read_records(str(path), max_document_bytes))


@pytest.mark.parametrize(
  'data', [_ROW, b'\xef\xbb\xbf \r\n<?xml version="1.0"?>' + _ROW]
)
@pytest.mark.parametrize('pack', [bytes, gzip.compress, lzma.compress])
def test_posts_whatever_the_name(tmp_path, data, pack):
  path = tmp_path / 'any.name'
  path.write_bytes(pack(data))
  ((num, record),) = _read(path)
  assert (num, record['text']) == (1, 'x')


@pytest.mark.parametrize('data', [b'', b'\n', gzip.compress(b'', mtime=0)])
def test_nothing(tmp_path, data):
  path = tmp_path / 'a'
  path.write_bytes(data)
  assert _read(path) == []


@pytest.mark.parametrize(
  ('data', 'start'),
  [
    (b'{"text": 1}', '{"text": 1}'),
    (b'\0' * 99, r'\x00'),
    (b'<?xml version="1.0"?>\n<users>\n<row Id="1" />', '<users'),
    (b'<p/>', '<p'),
  ],
)
def test_neither_posts_nor_a_database(tmp_path, data, start):
  path = tmp_path / 'a.json'
  path.write_bytes(data)
  with pytest.raises(UserError) as raised:
    _read(path)
  message = str(raised.value)
  assert message.startswith(
    "`--input` must name Posts.xml files or TFF's stackoverflow.sqlite, but "
    f"'{path}' is neither: it begins with b'{start}"
  )
  assert message.endswith('. Leave it out.')


def test_damage_at_the_very_start(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(gzip.compress(_ROW)[:19])
  ((num, drop),) = _read(path)
  assert (num, drop.reason, drop.damage) == (1, 'truncated_file', True)


@pytest.mark.parametrize(
  ('author', 'timestamp', 'part'),
  [
    # The last moment before 2018 in UTC, and the first of it.
    ('7', '2017-12-31T23:59:59.999', 'train'),
    ('7', '2018-01-01T00:00:00.000', 'test'),
    ('7', '2008-07-31T21:42:52.667', 'train'),
    ('7', '2023-08-09T14:46:43.017', 'test'),
    # 10 % 10 == 0: held out, on every date.
    ('10', '2017-12-31T23:59:59.999', 'held_out'),
    ('10', '2018-01-01T00:00:00.000', 'held_out'),
    ('10', '', 'held_out'),
    ('0', '2017-01-01T00:00:00', 'held_out'),
    ('101', '2017-01-01T00:00:00', 'train'),
    ('20@beer.stackexchange.com', '2017-01-01T00:00:00', 'held_out'),
    ('21@beer.stackexchange.com', '2017-01-01T00:00:00', 'train'),
    # The user that owns what belongs to all.
    ('-1', '2017-01-01T00:00:00', 'train'),
    ('x0', '2017-01-01T00:00:00', 'train'),
    (None, '2017-01-01T00:00:00', 'train'),
  ],
)
def test_split_of_posts(author, timestamp, part):
  record = {'text': 'x', 'timestamp': timestamp, 'url': ''}
  if author is not None:
    record['author'] = author
  assert _SOURCE.split('Posts.xml', record) == part
  assert part in _SOURCE.split_names


@pytest.mark.parametrize(
  ('record', 'reason'),
  [
    ({'timestamp': '', 'author': '7'}, 'missing_timestamp'),
    ({'timestamp': 'May', 'author': '7'}, 'malformed_timestamp'),
    ({'timestamp': '', 'split': 'validation'}, 'unknown_split'),
  ],
)
def test_no_split(record, reason):
  with pytest.raises(Drop, match=f'^{reason}$'):
    _SOURCE.split('a', record)


def test_database_names_its_split():
  # By its number and date it would be held out.
  record = {'timestamp': '', 'author': '10', 'split': 'test'}
  assert _SOURCE.split('a.sqlite', record) == 'test'
