"""Stack Overflow and its sister sites: questions and answers by user.

Reads Posts.xml of the Stack Exchange data dump (also out of its 7z archive) and
TFF's stackoverflow.sqlite. What a file is, is told from its first bytes after
unpacking. TFF's users are those of stackoverflow.com; users of other sites get
the site's name after their number, as in `7@beer.stackexchange.com`.

The split is TFF's: posts of users whose number ends in 0 are `held_out`, those
of other users `train` before 2018-01-01T00:00:00 UTC and `test` from then on.
"""

import codecs
import datetime
from collections.abc import Iterator

from pipelines import client_sqlite, posts_xml
from pipelines.raw_bytes import read_chunks, read_start
from pipelines.source import Drop, RawRecord, Source
from pipelines.splits import moment_of
from tff_fedfish.errors import UserError

_FIRST_TEST_TIME = datetime.datetime(2018, 1, 1, tzinfo=datetime.UTC)


def read_records(
  path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based number of the post, record or why it is dropped) of a file.

  Raises:
    UserError: If the file is neither a Posts.xml nor TFF's database.
  """
  start, _ = read_start(read_chunks(path), len(client_sqlite.MAGIC))
  if start.startswith(client_sqlite.MAGIC):
    read = client_sqlite.read_examples
  else:
    read = posts_xml.read_posts
    start = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if start and not start.startswith(b'<'):
      raise UserError(
        "`--input` must name Posts.xml files or TFF's stackoverflow.sqlite, "
        f'but {path!r} is neither: it begins with {start[:20]!r}. Leave it out.'
      )
  return read(read_chunks(path), path, max_document_bytes)


def split(path: str, record: RawRecord) -> str:
  """Returns the part of TFF's split to which a record belongs.

  Args:
    path: Its file; not used.
    record: A post, or a row of TFF's database, which names its part.

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


SOURCE = Source(
  name='stack_overflow',
  default_key='author',
  feature_names=('text', 'timestamp', 'url'),
  optional_feature_names=('author', 'title', 'tags', 'type', 'score'),
  read_records=read_records,
  split_names=('train', 'held_out', 'test'),
  split=split,
)
