"""JSON lines and tables of any layout: a text, by the value of any field.

A field is named by its path: `user.name` is the field `name` of the object (or
of the struct, in Parquet) that stands in the field `user`, unless there is a
field of that very name. Lists have no fields.
"""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

from pipelines.objects import has_lines, record_reader
from pipelines.source import Drop, Fields, RawRecord, Source
from pipelines.web_articles import to_record

KEY = '\0key'
"""Name of the key in a record; no field has it."""
_SEPARATOR = '\x1f'


def build_source(fields: Fields) -> Source:
  """Returns the source whose records are read from these fields."""
  paths = [path for _, path in fields.paths()]
  # Of a table, the column of that name or the struct.
  column_names = {*paths, *(path.partition('.')[0] for path in paths)}
  return Source(
    name='json_lines',
    default_key='/'.join(fields.key),
    feature_names=(
      *(('text', 'timestamp') if fields.time else ('text',)),
      *fields.keep,
    ),
    optional_feature_names=(),
    has_lines=has_lines,
    read_records=record_reader(
      functools.partial(parse_record, fields=fields, names=(KEY, *fields.keep)),
      column_names,
    ),
    key=lambda record: record[KEY].encode(),
  )


def parse_record(
  value: Mapping[str, Any],
  max_document_bytes: int,
  fields: Fields,
  names: tuple[str, ...],
) -> RawRecord:
  """Returns the text, the timestamp, the key and kept fields of one object.

  A key that is an integer becomes its digits; other numbers have no one
  spelling. Several are joined by U+001F, which none of them may hold. A
  timestamp is read, and a text limited, as in `to_record`.

  Args:
    value: The object.
    max_document_bytes: The longest text to accept.
    fields: What to read.
    names: Names of the key and the kept fields.

  Raises:
    Drop: missing_key (absent or null), malformed_key (neither text nor
      integer), empty_key (nothing but white space), each if one of several is;
      malformed_text (no text but a number, list, ...), or as `to_record`.
  """
  text = find(value, fields.text)
  keys = [key_to_text(find(value, path)) for path in fields.key]
  key = None if None in keys else _SEPARATOR.join(keys)
  timestamp = find(value, fields.time) if fields.time else None
  if text is not None and not isinstance(text, str):
    raise Drop('malformed_text')
  common = {'text': text, 'timestamp': timestamp, KEY: key}
  for path in fields.keep:
    common[path] = _kept_text(find(value, path))
  record = to_record(common, max_document_bytes, names)
  if key is None:
    is_missing = any(find(value, path) is None for path in fields.key)
    raise Drop('missing_key' if is_missing else 'malformed_key')
  if len(keys) > 1 and key.count(_SEPARATOR) >= len(keys):
    raise Drop('malformed_key')
  if not all(map(str.strip, keys)):
    raise Drop('empty_key')
  return record


def key_to_text(key: Any) -> str | None:
  """Returns a key as text; None if it is neither text nor an integer."""
  if isinstance(key, int) and not isinstance(key, bool):
    return str(key)
  return key if isinstance(key, str) else None


def _kept_text(value: Any) -> str | None:
  """Returns a value as it is stored: text as it is, others as JSON."""
  if value is None or isinstance(value, str):
    return value
  # What is missing is often written as the number NaN.
  if isinstance(value, float) and math.isnan(value):
    return None
  if not isinstance(value, bool | int | float | list | dict):
    return str(value)
  try:
    return json.dumps(value, ensure_ascii=False, default=str)
  except RecursionError as error:
    raise Drop('malformed_json') from error


def find(value: Any, path: str, default: Any = None) -> Any:
  """Returns what stands at the path in an object, or the default."""
  while isinstance(value, dict):
    if path in value:
      return value[path]
    name, _, path = path.partition('.')
    value = value.get(name)
  return default


SOURCE = build_source(Fields(key='key', text='text'))
"""For what does not depend on the fields; a job names its own."""
