"""C4 and its look-alikes: one JSON object per line, plain or gzip.

Raffel et al. (2020), "Exploring the Limits of Transfer Learning". A line has
`text`, `url` and `timestamp`; `author` and `title` are kept where present.
"""

import json
from collections.abc import Iterator

from pipelines.read_lines import read_lines
from pipelines.source import Drop, RawRecord, Source


def read_records(path: str) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based line number, record or why it is dropped) of a file."""
  for line_num, line in read_lines(path):
    if isinstance(line, Drop):
      yield line_num, line
      continue
    try:
      yield line_num, parse_line(line)
    except Drop as drop:
      yield line_num, drop


def parse_line(line: bytes) -> RawRecord:
  r"""Returns the features of one line.

  Args:
    line: A JSON object in UTF-8.

  Returns:
    `text`, `url` and `timestamp`, the last two possibly empty, and `author` and
    `title` where the line has them. A timestamp that is a number becomes its
    digits; any other value that is not a string counts as absent.

  Raises:
    Drop: empty_line, invalid_utf8, malformed_json, not_an_object, missing_text
      (absent or not a string), empty_text (nothing but white space), or
      unpaired_surrogate (an escape such as \ud800 that is no character).
  """
  if not line.strip():
    raise Drop('empty_line')
  try:
    value = json.loads(line.decode('utf-8'))
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8') from error
  except (ValueError, RecursionError) as error:
    raise Drop('malformed_json') from error
  if not isinstance(value, dict):
    raise Drop('not_an_object')
  if not isinstance(value.get('text'), str):
    raise Drop('missing_text')
  if not value['text'].strip():
    raise Drop('empty_text')
  timestamp = value.get('timestamp')
  if isinstance(timestamp, int | float) and not isinstance(timestamp, bool):
    value['timestamp'] = json.dumps(timestamp)
  record = {name: _string(value, name) or '' for name in SOURCE.feature_names}
  for name in SOURCE.optional_feature_names:
    if (text := _string(value, name)) is not None:
      record[name] = text
  try:
    ''.join(record.values()).encode('utf-8')
  except UnicodeEncodeError as error:
    raise Drop('unpaired_surrogate') from error
  return record


def _string(value: dict, name: str) -> str | None:
  found = value.get(name)
  return found if isinstance(found, str) else None


SOURCE = Source(
  name='c4',
  default_key='host',
  feature_names=('text', 'timestamp', 'url'),
  optional_feature_names=('author', 'title'),
  read_records=read_records,
)
