"""Stack Overflow and its sister sites: questions and answers by user.

Reads Posts.xml of the Stack Exchange data dumps and TFF's stackoverflow.sqlite.
A file's first bytes, after unpacking, tell which it is. TFF's users are those
of stackoverflow.com; users of other sites get the site's name after their
number, as in `7@beer.stackexchange.com`.

In a dump, a post is an element `<row Id="1" PostTypeId="1" Body="..." />`. No
`<` stands inside an attribute, so a post is what lies between `<row` and the
next `<`, however the lines run. Each is parsed on its own: a malformed one
costs nothing but itself, and a file of 100 GB needs the memory of one post.

The split is TFF's: posts of users whose number ends in 0 are `held_out`, those
of other users `train` before 2018-01-01T00:00:00 UTC and `test` from then on.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from xml.parsers import expat

from pipelines import client_sqlite
from pipelines.html_text import html_to_text
from pipelines.input_files import file_sizes
from pipelines.raw_bytes import read_chunks, read_start
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, Source
from pipelines.splits import moment_of
from tff_fedfish.data.time_order import time_key
from tff_fedfish.errors import UserError

_DEFAULT_SITE = 'stackoverflow.com'

_SITE = re.compile(
  r'(?<![a-z0-9])(?:[a-z0-9-]+\.)*'
  r'(?:stackexchange\.com|stackoverflow\.com|serverfault\.com|superuser\.com'
  r'|askubuntu\.com|stackapps\.com|mathoverflow\.net)(?![a-z0-9])'
)
_IS_ROW = re.compile(rb'row(?:[\s/>]|\Z)').match
_TYPES = {'1': ('question', 'q'), '2': ('answer', 'a')}

# A quote is one byte in a text and six in Body="&lt;p&gt;&quot;"; markup, of
# which no text is left, comes on top of that.
_ROW_BYTES_PER_TEXT_BYTE = 8
_MORE_ROW_BYTES = 1 << 20
_FIRST_TEST_TIME = time_key('2018-01-01')


def read_records(
  path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Reads a file as `Source.read_records` does.

  Raises:
    UserError: If the file is neither a Posts.xml nor TFF's database.
  """
  start, _ = read_start(read_chunks(path), len(client_sqlite.MAGIC))
  if start.startswith(client_sqlite.MAGIC):
    read = client_sqlite.read_examples
  else:
    read = read_posts
    start = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if start and not start.startswith(b'<'):
      raise UserError(
        "`--input` must name Posts.xml files or TFF's stackoverflow.sqlite, "
        f'but {path!r} is neither: it begins with {start[:20]!r}. Leave it out.'
      )
  return read(read_chunks(path), path, max_document_bytes)


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


def read_posts(
  chunks: Iterable[bytes], path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based number, post or why it is dropped) of every `<row`.

  A row that is cut off at the end goes with the damage of the file. A file
  without damage that ends inside a row, or before `</posts>`, yields the `Drop`
  truncated_file with `damage` set.

  The file's path tells the site. A row of more than eight times
  `max_document_bytes` and 1 MiB is not even held in memory.

  Raises:
    UserError: If the file holds something else, as Users.xml does.
  """
  site = site_of(path)
  max_row_bytes = (
    _ROW_BYTES_PER_TEXT_BYTE * max_document_bytes + _MORE_ROW_BYTES
  )
  post_num, is_known, is_open, damage = 0, False, False, None
  try:
    for piece, is_last in _pieces(chunks, max_row_bytes):
      if not _IS_ROW(piece):
        name = re.match(rb'[^\s/>]*', piece)[0]
        if name != b'posts' and not is_known and name[:1] not in (b'?', b'!'):
          found = name[:40].decode('utf-8', 'backslashreplace')
          raise UserError(
            '`--input` must name Posts.xml files of the Stack Exchange dump, '
            f'but {path!r} begins with <{found}>. Leave it out.'
          )
        is_known = is_known or name == b'posts'
        if piece.startswith((b'posts', b'/posts')):
          is_open = not piece.startswith(b'/')
        continue
      is_known = True
      try:
        if len(piece) > max_row_bytes:
          raise Drop('document_too_large')
        if not (attributes := _attributes(piece)):
          if is_last:
            is_open = True
            continue
          raise Drop('malformed_xml')
        record = _to_record(attributes, site, max_document_bytes)
      except Drop as drop:
        drop.excerpt = b'<' + piece[: EXCERPT_BYTES - 1]
        record = drop
      post_num += 1
      yield post_num, record
  except Drop as drop:
    damage = drop
  if is_open and damage is None:
    # Every byte that there is could be used.
    damage = Drop('truncated_file', damage=True, byte=file_sizes([path])[0])
  if damage is not None:
    yield post_num + 1, damage


def _pieces(
  chunks: Iterable[bytes], max_bytes: int
) -> Iterator[tuple[bytes, bool]]:
  """Yields (what follows a `<`, whether nothing follows it).

  A piece of more than `max_bytes` is cut somewhere behind that. Damage is
  raised after all pieces were yielded.
  """
  # What stands before the first `<` is no piece.
  damage, pending = None, None
  try:
    for chunk in chunks:
      first, *others = chunk.split(b'<')
      if pending is not None and len(pending) <= max_bytes:
        pending += first
      for piece in others:
        if pending is not None:
          yield bytes(pending), False
        # Grows in one place: adding to bytes would copy it again and again.
        pending = bytearray(piece)
  except Drop as drop:
    damage = drop
  if pending is not None:
    yield bytes(pending), True
  if damage is not None:
    raise damage


def _attributes(row: bytes) -> dict[str, str] | None:
  """Returns the attributes of a row without its `<`; None if it has no end.

  Raises:
    Drop: invalid_utf8 or malformed_xml.
  """
  found = []
  # Made again: a parser reads one document, and costs less than a post.
  parser = expat.ParserCreate('utf-8')
  parser.StartElementHandler = lambda name, attributes: found.append(attributes)
  try:
    parser.Parse(b'<' + row, False)
  except expat.ExpatError as error:
    try:
      row.decode('utf-8')
    except UnicodeDecodeError as error:
      raise Drop('invalid_utf8') from error
    raise Drop('malformed_xml') from error
  return found[0] if found else None


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
  if not (text := html_to_text(attributes['Body'])):
    raise Drop('empty_text')
  if len(text.encode()) > max_document_bytes:
    raise Drop('document_too_large')
  post_id = attributes.get('Id')
  record = {
    'text': text,
    'timestamp': attributes.get('CreationDate', ''),
    'url': f'https://{site}/{letter}/{post_id}' if post_id else '',
    'type': type_name,
  }
  if author := attributes.get('OwnerUserId'):
    # The same number is another person on another site.
    is_default = site == _DEFAULT_SITE
    record['author'] = author if is_default else f'{author}@{site}'
  for name in ('title', 'tags', 'score'):
    if value := attributes.get(name.capitalize()):
      record[name] = value
  if 'tags' in record:
    # <hops><history> in dumps before 2024, |hops|history| since.
    record['tags'] = record['tags'].strip('<>|').replace('><', '|')
  return record


SOURCE = Source(
  name='stack_overflow',
  default_key='author',
  feature_names=('text', 'timestamp', 'url'),
  optional_feature_names=('author', 'title', 'tags', 'type', 'score'),
  read_records=read_records,
  split_names=('train', 'held_out', 'test'),
  split=split,
)
