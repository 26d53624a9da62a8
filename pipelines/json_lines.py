"""JSON lines and tables of any layout: a text, by the value of any field.

A field is named by its path: `user.name` is the field `name` of the object (or
of the struct, in Parquet) that stands in the field `user`, unless there is a
field of that very name. Lists have no fields.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.objects import read_objects, record_reader
from pipelines.source import Drop, Fields, RawRecord, Source
from pipelines.unpack_zstd import DEFAULT_WINDOW_LOG
from pipelines.web_articles import to_record
from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError

_KEY = 'key'
_ABSENT = object()
# In the error about a field that no record has.
_MAX_NAMES = 40
_MAX_NAME_CHARACTERS = 60
_MAX_DEPTH = 5
# What is looked at before the job starts.
_MAX_FILES = 10
_MAX_RECORDS = 1000


def build_source(fields: Fields) -> Source:
  """Returns the source whose records are read from these fields."""
  paths = [path for path in vars(fields).values() if path is not None]
  # Of a table, the column of that name or the struct.
  column_names = {*paths, *(path.partition('.')[0] for path in paths)}
  return Source(
    name='json_lines',
    default_key=fields.key,
    feature_names=('text', 'timestamp') if fields.time else ('text',),
    optional_feature_names=(),
    read_records=record_reader(
      functools.partial(parse_record, fields=fields), column_names
    ),
    key=lambda record: record[_KEY].encode(),
  )


def parse_record(
  value: Mapping[str, Any], max_document_bytes: int, fields: Fields
) -> RawRecord:
  """Returns the text, the timestamp and, as `key`, the key of one object.

  A key that is an integer becomes its digits; other numbers have no one
  spelling. A timestamp is read, and a text limited, as in `to_record`.

  Raises:
    Drop: missing_key (absent or null), malformed_key (neither text nor
      integer), empty_key (nothing but white space), malformed_text (no text but
      a number, list, ...), or as `to_record`.
  """
  text, key = find(value, fields.text), find(value, fields.key)
  if isinstance(key, int) and not isinstance(key, bool):
    key = str(key)
  timestamp = find(value, fields.time) if fields.time else None
  if text is not None and not isinstance(text, str):
    raise Drop('malformed_text')
  common = {'text': text, 'timestamp': timestamp, _KEY: key}
  record = to_record(common, max_document_bytes, (_KEY,))
  if key is None:
    raise Drop('missing_key')
  if _KEY not in record:
    raise Drop('malformed_key')
  if not record[_KEY].strip():
    raise Drop('empty_key')
  return record


def find(value: Any, path: str, default: Any = None) -> Any:
  """Returns what stands at the path in an object, or the default."""
  while isinstance(value, dict):
    if path in value:
      return value[path]
    name, _, path = path.partition('.')
    value = value.get(name)
  return default


def require_fields(
  fields: Fields,
  paths: Sequence[str],
  max_document_bytes: int,
  max_window_log: int = DEFAULT_WINDOW_LOG,
) -> None:
  """Looks for the fields in the first 1,000 records of the first 10 files.

  Raises:
    UserError: If a field is in none of them, no text is text, or no value of
      the key is text or an integer; names the option, and what there is
      instead.
  """
  missing = {
    f'--{name}_field': path for name, path in vars(fields).items() if path
  }
  # Of options for which no value was found yet, the type of values; and values
  # of other types.
  unread = {'--key_field': 'text or integers', '--text_field': 'text'}
  odd = {}
  num_records, first = 0, None
  for value in _first_objects(paths, max_document_bytes, max_window_log):
    num_records += 1
    first = first or value
    missing = {
      option: field
      for option, field in missing.items()
      if find(value, field, _ABSENT) is _ABSENT
    }
    for option in list(unread):
      field = fields.key if option == '--key_field' else fields.text
      found = find(value, field)
      is_key = option == '--key_field' and type(found) is int
      if isinstance(found, str) or is_key:
        del unread[option]
      elif found is not None:
        odd.setdefault(option, (field, found))
    if not unread and not missing:
      return
  if missing and first:
    # Else nothing can be read at all: the job says why.
    wanted = ' and '.join(
      f'`{option}` {_show(field)!r}' for option, field in missing.items()
    )
    names = map(_show, itertools.islice(_names(first), _MAX_NAMES))
    raise UserError(
      f'{wanted} must be in one of the first {num_records:,} records of '
      f'`--input`, but none has it. The first has {", ".join(names)}. Name one '
      'of these.'
    )
  for option, kind in unread.items():
    if option in odd:
      field, found = odd[option]
      raise UserError(
        f'`{option}` {_show(field)!r} must hold {kind}, but the first '
        f'{num_records:,} records have none: it holds {_show(repr(found))}, of '
        f'type {type(found).__name__}. Name another field'
        f'{_inner_names(field, found)}, or store this one as text.'
      )


def _inner_names(field: str, value: Any) -> str:
  if not isinstance(value, dict) or not value:
    return ''
  names = (f'{field}.{name}' for name in itertools.islice(value, _MAX_NAMES))
  return f', such as {", ".join(map(_show, names))}'


def _first_objects(
  paths: Sequence[str], max_document_bytes: int, max_window_log: int
) -> Iterator[dict[str, Any]]:
  for path in paths[:_MAX_FILES]:
    objects = read_objects(path, max_document_bytes, None, max_window_log)
    for _, value in itertools.islice(objects, _MAX_RECORDS):
      if not isinstance(value, Drop):
        yield value


def _names(value: Mapping[str, Any], depth: int = 1) -> Iterator[str]:
  """Yields the paths of what is no object itself, or is too deep."""
  for name, found in value.items():
    if isinstance(found, dict) and found and depth < _MAX_DEPTH:
      for inner in _names(found, depth + 1):
        yield f'{name}.{inner}'
    else:
      yield name


def _show(name: str) -> str:
  return client_id_to_text(
    name[:_MAX_NAME_CHARACTERS].encode('utf-8', 'replace')
  )


SOURCE = build_source(Fields(key=_KEY, text='text'))
"""For what does not depend on the fields; a job names its own."""
