"""Posts.xml: what is a post, what of it is stored, every reason to drop one."""

import functools
import tracemalloc
from xml.sax import saxutils

import hypothesis
import hypothesis.strategies as st
import pytest

from pipelines import stack_overflow
from pipelines.source import Drop
from tff_fedfish.errors import UserError

_HEAD = b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>\r\n<posts>\r\n'
_PATH = 'stackoverflow.com-Posts.xml'


def _read(data, path=_PATH, max_document_bytes=1000, chunk_bytes=1 << 20):
  """Returns the records, and (number, reason) of the drops."""
  chunks = data
  if isinstance(data, bytes):
    chunks = [
      data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)
    ]
  kept, drops = [], []
  found = stack_overflow.read_posts(chunks, str(path), max_document_bytes)
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


def test_question():
  assert _read(_file(_QUESTION)) == ([_QUESTION_RECORD], [])


def test_answer_with_nothing_but_a_body():
  row = b'<row Id="5" PostTypeId="2" Body="yes" />'
  assert _read(_file(row)) == (
    [
      {
        'text': 'yes',
        'timestamp': '',
        'url': 'https://stackoverflow.com/a/5',
        'type': 'answer',
      }
    ],
    [],
  )


def test_tags_of_new_dumps():
  (record,), _ = _read(_file(_row(1, Tags='|hops|history|')))
  assert record['tags'] == 'hops|history'


def test_authors_of_other_sites_are_other_people():
  path = 'dumps/beer.stackexchange.com/Posts.xml'
  (record,), _ = _read(_file(_row(1, OwnerUserId=7)), path)
  assert record['author'] == '7@beer.stackexchange.com'
  assert record['url'] == 'https://beer.stackexchange.com/a/1'


@pytest.mark.parametrize(
  ('path', 'site'),
  [
    ('Posts.xml', 'stackoverflow.com'),
    ('/data/beer/Posts.xml', 'stackoverflow.com'),
    ('stackoverflow.com-Posts.xml.gz', 'stackoverflow.com'),
    ('beer.stackexchange.com/Posts.xml', 'beer.stackexchange.com'),
    ('/a/Beer.StackExchange.com.xml.gz', 'beer.stackexchange.com'),
    (
      'gs://bucket/bicycles.meta.stackexchange.com/2023/Posts.xml.xz',
      'bicycles.meta.stackexchange.com',
    ),
    ('beer.stackexchange.com/superuser.com.xml.gz', 'superuser.com'),
    ('meta.stackexchange.com.xml.gz', 'meta.stackexchange.com'),
    ('2024_es.meta.stackoverflow.com-Posts.xml', 'es.meta.stackoverflow.com'),
    ('mathoverflow.net/Posts.xml', 'mathoverflow.net'),
    ('meta.askubuntu.com.xml.gz', 'meta.askubuntu.com'),
    ('serverfault.com.xml.gz', 'serverfault.com'),
    ('stackapps.com.xml.gz', 'stackapps.com'),
    ('notserverfault.community/Posts.xml', 'stackoverflow.com'),
  ],
)
def test_site(path, site):
  assert stack_overflow.site_of(path) == site


_GOOD = _row(9)


@pytest.mark.parametrize(
  ('row', 'reason'),
  [
    (_row(1, PostTypeId=5), 'other_post_type'),
    (b'<row Id="1" Body="x" />', 'other_post_type'),
    (b'<row Id="1" PostTypeId="2" />', 'missing_text'),
    (_row(1, body=''), 'empty_text'),
    (_row(1, body='<p><img src="x"></p>'), 'empty_text'),
    (_row(1, body='x' * 1001), 'document_too_large'),
    (_row(1, body='ß' * 501), 'document_too_large'),
    (_row(1, body='x' * (2 << 20)), 'document_too_large'),
    (b'<row Id="1" PostTypeId="2" Body="\xff" />', 'invalid_utf8'),
    (b'<row/>', 'malformed_xml'),
    (b'<row Id=1 PostTypeId="2" Body="x" />', 'malformed_xml'),
    (b'<row Id="1" PostTypeId="2" Body="x />', 'malformed_xml'),
    (b'<row Id="1" PostTypeId="2" Body="&unknown;" />', 'malformed_xml'),
    (b'<row Id="1" PostTypeId="2" Body="&#x0;" />', 'malformed_xml'),
    (b'<row Id="1" Id="2" PostTypeId="2" Body="x" />', 'malformed_xml'),
    (b'<row Id="1" PostTypeId="2" Body="x" /> x', 'malformed_xml'),
  ],
)
def test_dropped_row_costs_no_other(row, reason):
  kept, drops = _read(_file(_GOOD, row, _GOOD))
  assert len(kept) == 2
  assert drops == [(2, reason)]


def test_drop_shows_the_row():
  row = b'<row Id="1" PostTypeId="9" />'
  ((_, drop),) = stack_overflow.read_posts([_file(row)], _PATH, 1000)
  assert drop.excerpt == row + b'\r\n'


def test_text_of_just_the_size_is_kept():
  kept, drops = _read(_file(_row(1, body='x' * 1000), _row(2, body='ß' * 500)))
  assert len(kept) == 2
  assert not drops


@pytest.mark.parametrize('separator', [b'', b'\n', b'\r\n  ', b'<!-- x -->'])
def test_layout_of_the_lines_does_not_matter(separator):
  row = _QUESTION.replace(b' ', b'\n\t', 3).replace(b' />', b'></row>')
  data = b'<posts>' + separator.join([row, row, row]) + b'</posts>'
  assert _read(data) == ([_QUESTION_RECORD] * 3, [])


def test_rows_without_anything_around_them():
  assert _read(_QUESTION + _QUESTION) == ([_QUESTION_RECORD] * 2, [])
  assert _read(b'') == ([], [])


@pytest.mark.parametrize('chunk_bytes', [1, 7, 100])
def test_pieces_of_any_length(chunk_bytes):
  data = _file(_QUESTION, _row(2, body='x' * 1001), b'<row Id=1 />', _QUESTION)
  expected = (
    [_QUESTION_RECORD] * 2,
    [
      (2, 'document_too_large'),
      (3, 'malformed_xml'),
    ],
  )
  assert _read(data, chunk_bytes=chunk_bytes) == expected


def test_file_cut_off_anywhere(tmp_path):
  data = _file(_QUESTION, _QUESTION)
  path = tmp_path / 'Posts.xml'
  ends = [
    i + len(_QUESTION)
    for i in range(len(data))
    if data[i:].startswith(_QUESTION)
  ]
  whole_from = data.index(b'/posts') + len(b'/posts')
  start = data.index(b'<posts') + len(b'<posts')
  for size in range(start, len(data)):
    path.write_bytes(data[:size])
    kept, drops = _read(data[:size], path)
    assert len(kept) == sum(size >= end for end in ends)
    if size < whole_from:
      assert drops == [(len(kept) + 1, 'truncated_file')]
    else:
      assert not drops


def test_cut_off_file_is_damaged_at_its_end(tmp_path):
  path = tmp_path / 'Posts.xml'
  path.write_bytes(_file(_QUESTION)[:200])
  ((_, drop),) = stack_overflow.read_posts([path.read_bytes()], str(path), 1000)
  assert (drop.reason, drop.damage, drop.byte) == ('truncated_file', True, 200)


@pytest.mark.parametrize(
  ('end', 'num_kept'),
  [(b'', 1), (b'<', 1), (_QUESTION[:50], 1), (_QUESTION, 2)],
)
def test_damage_of_a_packed_file(end, num_kept):
  def chunks():
    yield _HEAD + _QUESTION + end
    raise Drop('corrupt_file', damage=True, byte=17)

  *kept, (num, drop) = stack_overflow.read_posts(chunks(), _PATH, 1000)
  assert [record for _, record in kept] == [_QUESTION_RECORD] * num_kept
  assert (num, drop.reason, drop.byte) == (num_kept + 1, 'corrupt_file', 17)


@pytest.mark.parametrize(
  ('start', 'found'),
  [(b'<users>\n<row Id="1" Reputation="1" />', 'users'), (b'<p/>', 'p')],
)
def test_file_of_something_else(start, found):
  with pytest.raises(UserError) as raised:
    _read(b'<?xml version="1.0"?>' + start, 'dump/Users.xml')
  assert str(raised.value) == (
    '`--input` must name Posts.xml files of the Stack Exchange dump, but '
    f"'dump/Users.xml' begins with <{found}>. Leave it out."
  )


def test_huge_row_is_not_held():
  def chunks():
    yield _HEAD + _GOOD + b'<row Id="1" PostTypeId="2" Body="'
    for _ in range(64):
      yield b'x' * (1 << 20)
    yield b'" />' + _GOOD + b'</posts>'

  tracemalloc.start()
  kept, drops = _read(chunks(), max_document_bytes=1 << 17)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert len(kept) == 2
  assert drops == [(2, 'document_too_large')]
  # The row is held up to 8 * 2**17 + 2**20 bytes, and joined once.
  assert peak < 10 << 20


_VALUES = st.text(
  # What XML can hold. White space is told from the text's below.
  st.characters(
    exclude_categories=['Cs', 'Cc', 'Z'], exclude_characters='\ufffe\uffff'
  ),
  min_size=1,
)


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(st.lists(_VALUES), st.integers(1, 50))
def test_any_text_comes_back(texts, chunk_bytes):
  escape = functools.partial(
    saxutils.escape, entities={'"': '&quot;', "'": '&#39;'}
  )
  rows = [
    _row(i, body=f'<p>{escape(text)}</p>', Title=text)
    for i, text in enumerate(texts)
  ]
  kept, drops = _read(
    _file(*rows), max_document_bytes=10_000, chunk_bytes=chunk_bytes
  )
  assert [record['text'] for record in kept] == texts
  assert [record['title'] for record in kept] == texts
  assert not drops


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
  st.lists(
    st.sampled_from(
      [b'<row ', b'<', b'"', b' />', b'>', b'Id="1" ', b'PostTypeId="1" ']
      + [b'Body="x" ', b'</posts>', b'&#', b'\xff', b'&amp;', b'\n', b'<posts>']
    )
  ).map(b''.join)
)
def test_every_row_is_a_record_or_dropped(data):
  kept, drops = _read(b'<posts>' + data, __file__)
  damage = [drop for drop in drops if drop[1] == 'truncated_file']
  num_rows = data.count(b'<row ')
  assert num_rows <= len(kept) + len(drops) <= num_rows + len(damage)
