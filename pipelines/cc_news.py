"""CC-News: the news articles of Common Crawl.

As the table whose columns are title, text, domain, date, description, url and
image_url, or as the files of the crawler news-please (Hamborg et al., 2017),
where these are called maintext, source_domain and date_publish, and authors is
a list.
"""

from typing import Any

from pipelines import c4
from pipelines.read_objects import record_reader
from pipelines.source import RawRecord, Source

_OPTIONAL_NAMES = ('author', 'description', 'title')


def parse_article(value: dict[str, Any], max_document_bytes: int) -> RawRecord:
  """Returns the features of an article with either kind of names.

  Returns:
    `text`; `timestamp`, the date of publication as it is written, and `url`,
    both possibly empty; `author` (several are joined by commas), `description`
    and `title` where the article has them. An article without URL also has
    `domain`, if it is known: no feature, but keys can use it.

  Raises:
    Drop: As `c4.to_record`.
  """
  url = value.get('url')
  common = {
    'text': _first(value, 'text', 'maintext'),
    'timestamp': _first(value, 'date', 'date_publish'),
    'url': url,
    'author': _first(value, 'author', 'authors'),
    'description': value.get('description'),
    'title': value.get('title'),
  }
  names = _OPTIONAL_NAMES
  if isinstance(common['author'], list):
    authors = [name for name in common['author'] if isinstance(name, str)]
    common['author'] = ', '.join(authors) or None
  if not isinstance(url, str) or not url.strip():
    common['domain'] = _first(value, 'domain', 'source_domain')
    names = (*names, 'domain')
  return c4.to_record(common, max_document_bytes, names)


def split(path: str, record: RawRecord) -> str:
  """Returns held_out: models are tested on CC-News, never trained on it."""
  del path, record
  return 'held_out'


def _first(value: dict[str, Any], name: str, other_name: str) -> Any:
  """Returns the value of the first name, or of the other if that has none."""
  found = value.get(name)
  # NaN, which tables have for what is missing, does not equal itself.
  if found is None or found == '' or found != found:
    return value.get(other_name, found)
  return found


SOURCE = Source(
  name='cc_news',
  default_key='host',
  feature_names=c4.FEATURE_NAMES,
  optional_feature_names=_OPTIONAL_NAMES,
  read_records=record_reader(
    parse_article,
    (
      *('text', 'maintext', 'date', 'date_publish', 'url', 'author', 'authors'),
      *('description', 'title', 'domain', 'source_domain'),
    ),
  ),
  split_names=('held_out',),
  split=split,
)
