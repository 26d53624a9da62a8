"""Posts.xml: what is a post, what of it is stored, every reason to drop one."""

import gzip
import tracemalloc
from xml.sax import saxutils

import hypothesis
import hypothesis.strategies as st
import pytest

from pipelines import stack_overflow
from pipelines.source import Drop

_HEAD = b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>\r\n<posts>\r\n'
_NAME = 'stackoverflow.com-Posts.xml'


def _read(directory, data, name=_NAME, max_document_bytes=1000):
  """Returns the records of a file, and (number, reason) of the drops."""
  path = directory / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(data)
  kept, drops = [], []
  found = stack_overflow.read_records(str(path), max_document_bytes)
  for i, (num, record) in enumerate(found, start=1):
    assert num == i
    if isinstance(record, Drop):
      drops.append((num, record.reason))
    else:
      kept.append(record)
  return kept, drops


def _file(*rows):
  return _HEAD + b''.join(b'  %b\r\n' % row for row in rows) + b'</posts>'


def _row(num, body='x', **attributes):
  attributes = {'Id': num, 'PostTypeId': 2, 'Body': body} | attributes
  text = ' '.join(
    f'{name}={saxutils.quoteattr(str(value))}'
    for name, value in attributes.items()
  )
  return f'<row {text} />'.encode()


_QUESTION = (
  b'<row Id="1" PostTypeId="1" AcceptedAnswerId="4" '
  b'CreationDate="2014-01-21T20:26:05.383" Score="-3" ViewCount="795" '
  b'Body="&lt;p&gt;I &amp;amp; &lt;em&gt;you&lt;/em&gt;?&lt;/p&gt;&#xA;&lt;pre'
  b'&gt;a&#xA;  b&lt;/pre&gt;" OwnerUserId="7" Title="Hops &amp; malt?" '
  b'Tags="&lt;hops&gt;&lt;history&gt;" AnswerCount="1" />'
)
_QUESTION_RECORD = {
  'text': 'I & you?\na\n  b',
  'timestamp': '2014-01-21T20:26:05.383',
  'url': 'https://stackoverflow.com/q/1',
  'author': '7',
  'title': 'Hops & malt?',
  'tags': 'hops|history',
  'type': 'question',
  'score': '-3',
}


def test_posts(tmp_path):
  answer = b'<row Id="5" PostTypeId="2" Body="yes" />'
  assert _read(tmp_path, _file(_QUESTION, answer)) == (
    [
      _QUESTION_RECORD,
      {
        'text': 'yes',
        'timestamp': '',
        'url': 'https://stackoverflow.com/a/5',
        'type': 'answer',
      },
    ],
    [],
  )


def test_another_site_in_a_new_dump(tmp_path):
  # The same number is another person there. Tags have other marks since 2024.
  name = 'dumps/beer.stackexchange.com/Posts.xml'
  row = _row(1, OwnerUserId=7, Tags='|hops|history|')
  (record,), _ = _read(tmp_path, _file(row), name)
  assert record['author'] == '7@beer.stackexchange.com'
  assert record['url'] == 'https://beer.stackexchange.com/a/1'
  assert record['tags'] == 'hops|history'


@pytest.mark.parametrize(
  ('path', 'site'),
  [
    ('Posts.xml', 'stackoverflow.com'),
    ('/a/Beer.StackExchange.com.xml.gz', 'beer.stackexchange.com'),
    (
      'gs://bucket/bicycles.meta.stackexchange.com/2023/Posts.xml.xz',
      'bicycles.meta.stackexchange.com',
    ),
    ('beer.stackexchange.com/superuser.com.xml.gz', 'superuser.com'),
    ('2024_es.meta.stackoverflow.com-Posts.xml', 'es.meta.stackoverflow.com'),
    ('notserverfault.community/Posts.xml', 'stackoverflow.com'),
  ],
)
def test_site(path, site):
  assert stack_overflow.site_of(path) == site


@pytest.mark.parametrize(
  ('row', 'reason'),
  [
    (_row(1, PostTypeId=5), 'other_post_type'),
    (b'<row Id="1" Body="x" />', 'other_post_type'),
    (b'<row Id="1" PostTypeId="2" />', 'missing_text'),
    (_row(1, body='<p><img src="x"></p>'), 'empty_text'),
    (_row(1, body='x' * 1001), 'document_too_large'),
    # 1,002 bytes.
    (_row(1, body='ß' * 501), 'document_too_large'),
    (_row(1, body='x' * (2 << 20)), 'document_too_large'),
    (b'<row Id="1" PostTypeId="2" Body="\xff" />', 'invalid_utf8'),
    (b'<row Id="1" PostTypeId="2" Body="x />', 'malformed_xml'),
    (b'<row Id="1" Id="2" PostTypeId="2" Body="x" />', 'malformed_xml'),
    (b'<row Id="1" PostTypeId="2" Body="x" /> x', 'malformed_xml'),
    (b'no row', 'malformed_xml'),
  ],
  ids=range(12),
)
def test_dropped_row_costs_no_other(tmp_path, row, reason):
  longest = _row(9, body='x' * 1000)
  kept, drops = _read(tmp_path, _file(longest, row, longest))
  assert len(kept) == 2
  assert drops == [(2, reason)]


def test_characters_that_xml_forbids_are_left_out(tmp_path):
  row = _row(1, body='<p>a\x0eb&#xA;c</p>', Title='\x00\x1f d \ufffe')
  row = row.replace(b'a\x0eb', b'a\x0e&#x0E;&#x1f;&#11;&#xFFFF;&#xD800;b')
  (record,), drops = _read(tmp_path, _file(row))
  assert (record['text'], record['title']) == ('ab c', ' d ')
  assert not drops


def test_only_short_rows_are_mended(tmp_path, monkeypatch):
  monkeypatch.setattr(stack_overflow, '_MAX_MENDED_BYTES', 100)
  rows = [_row(1, body='x' * size).replace(b'x', b'\x0e') for size in (9, 99)]
  _, drops = _read(tmp_path, _file(*rows))
  assert drops == [(1, 'empty_text'), (2, 'malformed_xml')]


def test_what_stands_around_the_rows(tmp_path):
  row = _QUESTION.replace(b' />', b'></row>')
  for data in (
    _QUESTION + b'\n\n<!-- a <row> - -->\r\n  ' + row,
    b'<?xml version="1.0"?> <!-- x --><posts>' + row + b'\n' + row,
    b'<posts >\n' + row + b'\n' + row + b'</posts>',
  ):
    kept, drops = _read(tmp_path, data)
    assert kept == [_QUESTION_RECORD] * 2
    is_whole = b'<posts' not in data or b'</posts>' in data
    assert drops == ([] if is_whole else [(3, 'truncated_file')])


def test_several_rows_in_a_line(tmp_path):
  bad = b'<row Id="1" PostTypeId="2" Body="&unknown;" />'
  line = _row(1) + b' ' + bad + _row(3) + b'<!-- x -->' + _row(4)
  for data in (_file(line), b'<posts>' + line + b'</posts>'):
    kept, drops = _read(tmp_path, data)
    assert [record['url'][-1] for record in kept] == ['1', '3', '4']
    assert drops == [(2, 'malformed_xml')]


def test_huge_row_is_not_held(tmp_path):
  row = b'<row Id="1" PostTypeId="2" Body="%b" />' % (b'x' * (32 << 20))
  data = _file(_row(1), row, _row(2))
  tracemalloc.start()
  try:
    kept, drops = _read(tmp_path, data, max_document_bytes=1 << 17)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert len(kept) == 2
  assert drops == [(2, 'document_too_large')]
  # The row is held up to 3 * 2**17 + 2**20 bytes.
  assert peak < 10 << 20


def test_too_long_a_line_of_many_rows_is_damage(tmp_path):
  path = tmp_path / _NAME
  path.write_bytes(_file(_row(1) * 30_000, _row(2)))
  (_, drop), (_, record) = stack_overflow.read_records(str(path), 1000)
  assert (drop.reason, drop.damage) == ('document_too_large', True)
  assert record['text'] == 'x'


def test_row_that_would_take_gigabytes_is_not_parsed(tmp_path):
  path = tmp_path / _NAME
  path.write_bytes(_file(_row(1, body='x' * (5 << 20))))
  ((_, drop),) = stack_overflow.read_records(str(path), 1 << 20)
  # Else it would be one row with too long a text.
  assert (drop.reason, drop.damage) == ('document_too_large', True)


def test_row_over_several_lines_is_counted(tmp_path):
  kept, drops = _read(tmp_path, _file(_QUESTION.replace(b' Score', b'\nScore')))
  assert not kept
  assert drops == [(1, 'malformed_xml'), (2, 'malformed_xml')]


@pytest.mark.parametrize('pack', [bytes, gzip.compress])
def test_file_cut_off_anywhere(tmp_path, pack):
  data = _file(_QUESTION, _QUESTION)
  packed = pack(data)
  start = data.index(b'<posts>') + len(b'<posts>')
  for size in range(start, len(packed) - 10, 7):
    kept, drops = _read(tmp_path, packed[:size])
    assert kept == [_QUESTION_RECORD] * len(kept)
    assert drops[-1] == (len(kept) + len(drops), 'truncated_file')
  assert kept


@hypothesis.settings(max_examples=50)
@hypothesis.given(
  st.lists(
    st.sampled_from(
      [b'<row ', b'<', b'"', b' />', b'>', b'Id="1" ', b'PostTypeId="1" ']
      + [b'Body="x" ', b'</posts>', b'&#', b'\xff', b'&amp;', b'\n', b'<posts>']
    )
  ).map(b''.join)
)
def test_every_row_is_a_record_or_dropped(tmp_path_factory, data):
  directory = tmp_path_factory.getbasetemp()
  kept, drops = _read(directory, b'<posts>\n' + data)
  # Without a bare start at the end of a line, which holds nothing.
  num_rows = sum(line.strip().count(b'<row ') for line in data.split(b'\n'))
  assert num_rows <= len(kept) + len(drops)
