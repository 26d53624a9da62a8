"""C4 and its look-alikes: objects with `text`, `url` and `timestamp`.

Raffel et al. (2020), "Exploring the Limits of Transfer Learning". As JSON (one
object per line, as it is published), as Parquet, or as the TFRecords that
TensorFlow Datasets prepares. `author` and `title` are kept where present.
"""

import functools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.read_objects import record_reader
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, Source
from tff_fedfish.errors import UserError

FEATURE_NAMES = ('text', 'timestamp', 'url')

_OPTIONAL_NAMES = ('author', 'title')
# As a word of its own: c4-train.00000-of-01024.json.gz, but not training.json.
_SPLIT_WORD = re.compile(r'(?<![a-z])(?:train|validation)(?![a-z])')


def split(path: str, record: RawRecord) -> str:
  """Returns the part of C4 that the file's name says, train or validation.

  Raises:
    UserError: If the name says none, or both.
  """
  del record  # A file belongs to one part as a whole.
  return _split_of(path)


@functools.lru_cache
def _split_of(path: str) -> str:
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
  if isinstance(timestamp, int) and not isinstance(timestamp, bool):
    timestamp = str(timestamp)
  # What is missing is often written as the number NaN.
  elif isinstance(timestamp, float) and math.isfinite(timestamp):
    timestamp = json.dumps(timestamp)
  url = value.get('url')
  record = {
    'text': text,
    'timestamp': timestamp if isinstance(timestamp, str) else '',
    'url': url if isinstance(url, str) else '',
  }
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
      raise Drop('unpaired_surrogate', excerpt=_encode(found)) from error
    num_bytes = len(text.encode())
  if num_bytes > max_document_bytes:
    raise Drop('document_too_large', excerpt=_encode(text))
  return record


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


SOURCE = Source(
  name='c4',
  default_key='host',
  feature_names=FEATURE_NAMES,
  optional_feature_names=_OPTIONAL_NAMES,
  read_records=record_reader(
    functools.partial(to_record, optional_names=_OPTIONAL_NAMES),
    FEATURE_NAMES + _OPTIONAL_NAMES,
  ),
  split_names=('train', 'validation'),
  split=split,
)
