"""Stack Overflow and its sister sites: questions and answers by user.

Reads Posts.xml of the Stack Exchange data dumps and TFF's stackoverflow.sqlite.
A file's first bytes, after unpacking, tell which it is. TFF's users are those
of stackoverflow.com; users of other sites get the site's name after their
number, as in `7@beer.stackexchange.com`.

In a dump, a post is a line `<row Id="1" PostTypeId="1" Body="..." />`. Each is
parsed on its own: a malformed one costs nothing but itself. Several may share a
line that is no longer than one may be.

The split is TFF's: posts of users whose number ends in 0 are `held_out`, those
of other users `train` before 2018-01-01T00:00:00 UTC and `test` from then on.
"""

import codecs
import io
import re
from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from pipelines.html_text import html_to_text
from pipelines.objects import longest_object, read_lines
from pipelines.open_raw import is_plain, open_raw, start_of
from pipelines.source import (
  WHOLE_FILE,
  Drop,
  RawRecord,
  Source,
  Span,
  parse_each,
)
from pipelines.splits import moment_of
from pipelines.tff_posts import read_database
from pipelines.unpack_zstd import DEFAULT_WINDOW_LOG
from pipelines.web_articles import to_record
from tff_fedfish.data import tff_sqlite
from tff_fedfish.data.time_order import time_key
from tff_fedfish.errors import UserError

_DEFAULT_SITE = 'stackoverflow.com'

_SITE = re.compile(
  r'(?<![a-z0-9])(?:[a-z0-9-]+\.)*'
  r'(?:stackexchange\.com|stackoverflow\.com|serverfault\.com|superuser\.com'
  r'|askubuntu\.com|stackapps\.com|mathoverflow\.net)(?![a-z0-9])'
)
# What may stand around the rows. Possessive: what can be taken back would take
# 150 times the memory of a line.
_FRAME = re.compile(
  rb'(?:\s++|<\?xml[^>]*+>|<!--(?:[^-]++|-(?!->))*+-->|</?posts\s*+>)*+'
)
_ELEMENT = re.compile(rb'<([^\s/>!?]+)[\s/>]')
# What XML cannot hold, not even as a reference; dumps have it all the same.
_FORBIDDEN = re.compile('[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]')
_REFERENCE = re.compile(r'&#(?:x([0-9a-fA-F]{1,8})|([0-9]{1,10}));')
_TYPES = {'1': ('question', 'q'), '2': ('answer', 'a')}

# Of a row from which forbidden characters are taken: in copies, perhaps of four
# bytes a character.
_MAX_MENDED_BYTES = 16 << 20
_FIRST_TEST_TIME = time_key('2018-01-01')


def read_records(
  path: str,
  max_document_bytes: int,
  max_window_log: int = DEFAULT_WINDOW_LOG,
  with_objects: bool = False,
  span: Span = WHOLE_FILE,
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Reads a file as `Source.read_records` does.

  A file that ends before `</posts>` ends with the `Drop` truncated_file. A row
  of more than three times `max_document_bytes` and 1 MiB is document_too_large.

  Raises:
    UserError: If the file is neither a Posts.xml nor TFF's plain database.
  """
  del with_objects
  with open_raw(path, max_window_log) as stream:
    start = start_of(stream)
    if start.startswith(tff_sqlite.MAGIC):
      if not isinstance(stream.raw, io.FileIO):
        raise UserError(
          "`--input` must name TFF's stackoverflow.sqlite as a plain local "
          f'file, but {path!r} is packed or in a store. Unpack it, for example '
          'with `xz -dk`, or copy it.'
        )
      yield from read_database(path, max_document_bytes)
      return
    if not span.start:
      _require_posts(start, path)
    site, max_bytes = site_of(path), longest_object(max_document_bytes)
    yield from parse_each(
      lambda row: _to_record(_attributes(row), site, max_document_bytes),
      enumerate(_read_rows(stream, max_bytes, span), start=1),
    )


def has_lines(path: str) -> bool:
  """Says whether a file is a plain Posts.xml, which may be read in spans."""
  with open_raw(path) as stream:
    return is_plain(stream) and not start_of(stream).startswith(
      tff_sqlite.MAGIC
    )


def split(path: str, record: RawRecord) -> str:
  """Returns the part of TFF's split to which a record belongs.

  A row of TFF's database names its part.

  Raises:
    Drop: missing_timestamp or malformed_timestamp, if the part depends on it;
      unknown_split, if the database names another part.
  """
  del path
  if 'split' in record:
    if record['split'] not in SOURCE.split_names:
      raise Drop('unknown_split', excerpt=record['split'].encode())
    return record['split']
  user_num, _, _ = record.get('author', '').partition('@')
  if user_num.isdecimal() and user_num.endswith('0'):
    return 'held_out'
  return 'train' if moment_of(record) < _FIRST_TEST_TIME else 'test'


def site_of(path: str) -> str:
  """Returns the site whose posts a file holds.

  It is the host that the file's own name holds, such as
  stackoverflow.com-Posts.xml.gz, else the nearest directory's; Stack Overflow
  itself if none does.
  """
  for part in reversed(path.lower().split('/')):
    if found := _SITE.search(part):
      return found[0]
  return _DEFAULT_SITE


def _require_posts(start: bytes, path: str) -> None:
  start = start.removeprefix(codecs.BOM_UTF8).lstrip()
  element = _ELEMENT.search(start)
  is_other = element and element[1] not in (b'posts', b'row')
  if start and (is_other or not start.startswith(b'<')):
    found = element[0] if start.startswith(b'<') else start[:20]
    raise UserError(
      "`--input` must name Posts.xml files or TFF's stackoverflow.sqlite, but "
      f'{path!r} is neither: it begins with {found!r}. Leave it out.'
    )


def _read_rows(
  stream: BinaryIO, max_bytes: int, span: Span
) -> Iterator[bytes | Drop]:
  """Yields every row, perhaps a broken one, or why it is dropped.

  Raises:
    Drop: truncated_file at the end, if `</posts>` is missing.
  """
  is_open = False
  for num, line in read_lines(stream, max_bytes, span):
    is_open |= num == 1 and span.start > 0
    if isinstance(line, Drop):
      # It may hold many rows.
      line.damage = True
      yield line
      continue
    row = line.strip()
    if not (row.startswith(b'<row ') and row.endswith(b'/>')):
      # The first lines, the last, or both ends of a row.
      row = row.removeprefix(codecs.BOM_UTF8)
      frame = _FRAME.match(row)[0]
      is_open = (is_open or b'<posts' in frame) and b'</posts' not in row
      row = row[len(frame) :].removesuffix(b'</posts>')
    if row.find(b'<row ', 1) < 0:
      rows = [row]
    else:
      # No attribute can hold a `<`.
      rows = _split(row)
    yield from filter(None, rows)
  if is_open and not stream.read(1):
    raise Drop('truncated_file', damage=True)


def _split(line: bytes) -> Iterator[bytes]:
  """Yields the rows of a line one by one: it may have millions."""
  start = 0
  while (stop := line.find(b'<row ', start + 1)) >= 0:
    yield line[start:stop].strip()
    start = stop
  yield line[start:].strip()


def _attributes(row: bytes) -> dict[str, str]:
  """Returns the attributes of a row; leaves out what XML forbids.

  Raises:
    Drop: invalid_utf8 or malformed_xml.
  """
  try:
    return _parse(row)
  except expat.ExpatError as error:
    if len(row) > _MAX_MENDED_BYTES:
      raise Drop('malformed_xml') from error
  try:
    text = _FORBIDDEN.sub('', row.decode())
    return _parse(_REFERENCE.sub(_without_forbidden, text).encode())
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8') from error
  except expat.ExpatError as error:
    raise Drop('malformed_xml') from error


def _parse(row: bytes) -> dict[str, str]:
  found = []
  # Made again: a parser reads one document, and costs less than a post.
  parser = expat.ParserCreate('utf-8')
  parser.StartElementHandler = lambda name, attributes: found.append(attributes)
  parser.Parse(row, True)
  return found[0]


def _without_forbidden(reference: re.Match) -> str:
  number = int(reference[1], 16) if reference[1] else int(reference[2])
  is_allowed = number < 0x110000 and not _FORBIDDEN.match(chr(number))
  return reference[0] if is_allowed else ''


def _to_record(
  attributes: dict[str, str], site: str, max_document_bytes: int
) -> RawRecord:
  """Returns the features of one post.

  Raises:
    Drop: other_post_type (neither question nor answer, or not said),
      missing_text (no body), empty_text (a body of only images, for example)
      or document_too_large.
  """
  if (post_type := attributes.get('PostTypeId', '')) not in _TYPES:
    raise Drop('other_post_type')
  type_name, letter = _TYPES[post_type]
  if 'Body' not in attributes:
    raise Drop('missing_text')
  author = attributes.get('OwnerUserId', '')
  if author and site != _DEFAULT_SITE:
    # The same number is another person on another site.
    author = f'{author}@{site}'
  optional = {
    'author': author,
    'title': attributes.get('Title'),
    # <hops><history> in dumps before 2024, |hops|history| since.
    'tags': attributes.get('Tags', '').strip('<>|').replace('><', '|'),
    'type': type_name,
    'score': attributes.get('Score'),
  }
  optional = {name: value for name, value in optional.items() if value}
  post_id = attributes.get('Id')
  common = {
    'text': html_to_text(attributes['Body']),
    'timestamp': attributes.get('CreationDate'),
    'url': f'https://{site}/{letter}/{post_id}' if post_id else '',
  }
  return to_record(common | optional, max_document_bytes, tuple(optional))


SOURCE = Source(
  name='stack_overflow',
  default_key='author',
  feature_names=('text', 'timestamp', 'url'),
  optional_feature_names=('author', 'title', 'tags', 'type', 'score'),
  read_records=read_records,
  has_lines=has_lines,
  split_names=('train', 'held_out', 'test'),
  split=split,
)
