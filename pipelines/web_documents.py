"""From an object that describes a web page or article to a source's features.

What the sources of this kind share: C4 (pipelines/c4.py) and CC-News
(pipelines/cc_news.py).
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.read_lines import EXCERPT_BYTES
from pipelines.source import Drop, RawRecord

FEATURE_NAMES = ('text', 'timestamp', 'url')


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
    its digits; any other value that is not a string counts as absent.

  Raises:
    Drop: missing_text (absent or not a string), empty_text (nothing but white
      space), document_too_large, or unpaired_surrogate (an escape such as
      \ud800 that is no character).
  """
  text = value.get('text')
  if not isinstance(text, str):
    raise Drop('missing_text', excerpt=beginning(value))
  if not text or text.isspace():
    raise Drop('empty_text', excerpt=beginning(value))
  timestamp = value.get('timestamp')
  url = value.get('url')
  record = {
    'text': text,
    'timestamp': timestamp
    if isinstance(timestamp, str)
    else _digits(timestamp),
    'url': url if isinstance(url, str) else '',
  }
  for name in optional_names:
    found = value.get(name)
    if isinstance(found, str):
      record[name] = found
  # ASCII, as Python knows without looking, has no surrogates, and as many bytes
  # as characters.
  num_bytes = len(text)
  for found in record.values():
    if not found.isascii():
      num_bytes = _check_characters(record)
      break
  if num_bytes > max_document_bytes:
    raise Drop('document_too_large', excerpt=_encode(text))
  return record


def _check_characters(record: RawRecord) -> int:
  """Returns how many bytes the text takes."""
  for found in record.values():
    try:
      found.encode()
    except UnicodeEncodeError as error:
      raise Drop('unpaired_surrogate', excerpt=_encode(found)) from error
  return len(record['text'].encode())


def _digits(value: Any) -> str:
  if isinstance(value, int) and not isinstance(value, bool):
    return str(value)
  # What is missing is often written as the number NaN.
  if isinstance(value, float) and math.isfinite(value):
    return json.dumps(value)
  return ''


def _encode(text: str) -> bytes:
  return text[:EXCERPT_BYTES].encode(errors='backslashreplace')[:EXCERPT_BYTES]


def beginning(value: Mapping[str, Any]) -> bytes:
  """Returns how an object begins, as JSON; for `Drop.excerpt`."""
  # A long text would be copied, only to be cut off.
  short = {
    name: found[:EXCERPT_BYTES] if isinstance(found, str) else found
    for name, found in value.items()
  }
  try:
    text = json.dumps(short, ensure_ascii=False, default=str)
  except (ValueError, RecursionError):
    return b''
  return _encode(text)
