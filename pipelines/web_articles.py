r"""C4, CC-News and their look-alikes: pages and articles of the web.

Raffel et al. (2020), "Exploring the Limits of Transfer Learning"; CC-News is
Common Crawl's news, as a table or as the crawler news-please writes it (Hamborg
et al., 2017). As JSON, as Parquet, or C4 as TensorFlow Datasets prepares it.
"""

import functools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.objects import has_lines, record_reader
from pipelines.source import TIME_NOT_READ, Drop, RawRecord, Source
from tff_fedfish.errors import UserError

_FEATURE_NAMES = ('text', 'timestamp', 'url')
_C4_OPTIONAL_NAMES = ('author', 'title')
_NEWS_OPTIONAL_NAMES = ('author', 'description', 'title')
# Name here -> names in a table of CC-News and in news-please's files.
_NEWS_ALIASES = {
  'text': ('text', 'maintext'),
  'timestamp': ('date', 'date_publish'),
  'author': ('author', 'authors'),
  'domain': ('domain', 'source_domain'),
}
# As a word of its own: c4-train.00000-of-01024.json.gz, but not training.json.
_SPLIT_WORD = re.compile(r'(?<![a-z])(?:train|validation)(?![a-z])')


def to_record(
  value: Mapping[str, Any],
  max_document_bytes: int,
  optional_names: Sequence[str],
) -> RawRecord:
  r"""Returns the features of one object.

  Args:
    value: An object with the names of the features.
    max_document_bytes: The longest text to accept, in bytes of UTF-8.
    optional_names: Names to take where the object has them.

  Returns:
    `text`, `timestamp` and `url`, the last two possibly empty, and those of
    `optional_names` that the object has. A timestamp that is a number becomes
    its digits; for one that cannot be read, `TIME_NOT_READ` is set. Any other
    value that is not a string counts as absent.

  Raises:
    Drop: missing_text (absent or not a string), empty_text (nothing but white
      space), document_too_large, or unpaired_surrogate (an escape such as
      \ud800 that is no character).
  """
  text = value.get('text')
  if not isinstance(text, str):
    raise Drop('missing_text')
  if not text or text.isspace():
    raise Drop('empty_text')
  timestamp, url = time_to_text(value.get('timestamp')), value.get('url')
  record = {
    'text': text,
    'timestamp': timestamp or '',
    'url': url if isinstance(url, str) else '',
  }
  if timestamp is None:
    record[TIME_NOT_READ] = ''
  for name in optional_names:
    found = value.get(name)
    if isinstance(found, str):
      record[name] = found
  # ASCII, as Python knows without looking, has no surrogates, and as many bytes
  # as characters.
  num_bytes = len(text)
  if not all(map(str.isascii, record.values())):
    try:
      for found in record.values():
        found.encode()
    except UnicodeEncodeError as error:
      raise Drop('unpaired_surrogate') from error
    num_bytes = len(text.encode())
  if num_bytes > max_document_bytes:
    raise Drop('document_too_large')
  return record


def time_to_text(value: Any) -> str | None:
  """Returns a time as it is stored; '' for none, None if it cannot be read.

  Text and numbers can be read; objects, lists, booleans and decimals cannot.
  """
  if isinstance(value, str):
    return value
  if isinstance(value, int) and not isinstance(value, bool):
    return str(value)
  if isinstance(value, float) and math.isfinite(value):
    return json.dumps(value)
  # What is missing is often written as the number NaN.
  is_missing = value is None or (isinstance(value, float) and math.isnan(value))
  return '' if is_missing else None


def parse_article(
  value: Mapping[str, Any], max_document_bytes: int
) -> RawRecord:
  """Returns the features of an article of CC-News, with either kind of names.

  Returns:
    As `to_record`, of `author` (several are joined by commas), `description`
    and `title`. An article without URL also has `domain`, if it is known: no
    feature, but keys can use it.

  Raises:
    Drop: As `to_record`.
  """
  common = dict(value)
  for name, aliases in _NEWS_ALIASES.items():
    common[name] = _first(value, *aliases)
  if isinstance(common['author'], list):
    authors = [name for name in common['author'] if isinstance(name, str)]
    common['author'] = ', '.join(authors) or None
  names, url = _NEWS_OPTIONAL_NAMES, value.get('url')
  if not isinstance(url, str) or not url.strip():
    names = (*names, 'domain')
  return to_record(common, max_document_bytes, names)


def _first(value: Mapping[str, Any], name: str, other_name: str) -> Any:
  """Returns the value of the first name, or of the other if that has none."""
  found = value.get(name)
  # NaN, which tables have for what is missing, does not equal itself.
  if found is None or found == '' or found != found:
    return value.get(other_name, found)
  return found


@functools.lru_cache
def _c4_part(path: str) -> str:
  """Returns the part of C4 that the file's name says, train or validation.

  Raises:
    UserError: If the name says none, or both.
  """
  name = os.path.basename(path)
  found = set(_SPLIT_WORD.findall(name.lower()))
  if len(found) != 1:
    raise UserError(
      "C4's own split is told from file names, which must hold the word "
      f"'train' or 'validation', but {name!r} holds "
      f'{"both" if found else "neither"}. Rename the file, as in '
      "'c4-train.00000-of-01024.json.gz', or choose another split."
    )
  return found.pop()


C4 = Source(
  name='c4',
  default_key='host',
  feature_names=_FEATURE_NAMES,
  optional_feature_names=_C4_OPTIONAL_NAMES,
  has_lines=has_lines,
  read_records=record_reader(
    functools.partial(to_record, optional_names=_C4_OPTIONAL_NAMES),
    _FEATURE_NAMES + _C4_OPTIONAL_NAMES,
  ),
  split_names=('train', 'validation'),
  # A file belongs to one part as a whole.
  split=lambda path, record: _c4_part(path),
  splits_by_path=True,
)

CC_NEWS = Source(
  name='cc_news',
  default_key='host',
  feature_names=_FEATURE_NAMES,
  optional_feature_names=_NEWS_OPTIONAL_NAMES,
  has_lines=has_lines,
  read_records=record_reader(
    parse_article,
    {'url', *_NEWS_OPTIONAL_NAMES}.union(*_NEWS_ALIASES.values()),
  ),
  # Models are tested on CC-News, never trained on it.
  split_names=('held_out',),
  split=lambda path, record: 'held_out',
)
