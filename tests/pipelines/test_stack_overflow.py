"""Stack Overflow: what a file is, the split, real dumps to the last post."""

import collections
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


@pytest.mark.parametrize(
  ('author', 'timestamp', 'part'),
  [
    # The last moment before 2018 in UTC, and the first of it.
    ('7', '2017-12-31T23:59:59.999', 'train'),
    ('7', '2018-01-01T00:00:00.000', 'test'),
    # 10 % 10 == 0: held out, on every date.
    ('10', '2018-01-01T00:00:00.000', 'held_out'),
    ('10', '', 'held_out'),
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


def _summary(path):
  """Returns counts of what was kept and dropped, authors, and the split."""
  counts, authors, parts = collections.Counter(), set(), collections.Counter()
  for _, record in _read(path):
    if isinstance(record, Drop):
      counts[record.reason] += 1
      continue
    counts['kept'] += 1
    if 'author' in record:
      counts['owned'] += 1
      authors.add(record['author'])
      parts[_SOURCE.split('', record)] += 1
  return dict(counts), len(authors), dict(parts)


def test_real_dump(shared_data):
  site = shared_data('stackexchange_dev') / 'bicycles.meta.stackexchange.com'
  # 1,380 + 44 + 22 = 1,446 rows. 41 of the 44 have an owner: with them the
  # 1,339 become the 1,380 posts that the corpus's own description counts.
  assert _summary(site / 'Posts.xml.xz') == (
    {'kept': 1380, 'owned': 1339, 'empty_text': 44, 'other_post_type': 22},
    233,
    {'train': 1063, 'held_out': 69, 'test': 207},
  )
