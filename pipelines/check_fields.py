"""Looks for the fields of json_lines before a job starts."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.json_lines import find, key_to_text
from pipelines.objects import read_objects
from pipelines.source import Drop, Fields
from pipelines.unpack_zstd import DEFAULT_WINDOW_LOG
from pipelines.web_articles import time_to_text
from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError

_ABSENT = object()
# In the error about a field that no record has.
_MAX_NAMES = 40
_MAX_NAME_CHARACTERS = 60
_MAX_DEPTH = 5
# What is looked at before the job starts.
_MAX_FILES = 10
_MAX_RECORDS = 1000
# Name in `Fields` -> kind of values, function that returns None for others.
_NAME_TO_KIND = {
  'key': ('text or integers', key_to_text),
  'text': ('text', lambda value: value if isinstance(value, str) else None),
  'time': ('text or numbers', time_to_text),
}


def require_fields(
  fields: Fields,
  paths: Sequence[str],
  max_document_bytes: int,
  max_window_log: int = DEFAULT_WINDOW_LOG,
) -> None:
  """Looks for the fields in the first 1,000 records of the first 10 files.

  Raises:
    UserError: If a field is in none of them, or all its values are of another
      kind than the option needs; names the option, and what there is instead.
  """
  missing = fields.paths()
  # Fields of which no value was found yet, and values of other kinds.
  unread = [field for field in missing if field[0] in _NAME_TO_KIND]
  odd = {}
  num_records, first = 0, None
  for value in _first_objects(paths, max_document_bytes, max_window_log):
    num_records += 1
    first = first or value
    missing = [
      field for field in missing if find(value, field[1], _ABSENT) is _ABSENT
    ]
    for field in list(unread):
      name, path = field
      found = find(value, path)
      _, read = _NAME_TO_KIND[name]
      if found is not None and read(found) is not None:
        unread.remove(field)
      elif found is not None:
        odd.setdefault(field, found)
    if not unread and not missing:
      return
  if missing and first:
    # Else nothing can be read at all: the job says why.
    wanted = ' and '.join(
      f'`--{name}_field` {_show(path)!r}' for name, path in missing
    )
    names = map(_show, itertools.islice(_names(first), _MAX_NAMES))
    raise UserError(
      f'{wanted} must be in one of the first {num_records:,} records of '
      f'`--input`, but none has it. The first has {", ".join(names)}. Name one '
      'of these.'
    )
  for name, path in unread:
    if (name, path) in odd:
      kind, _ = _NAME_TO_KIND[name]
      found = odd[name, path]
      raise UserError(
        f'`--{name}_field` {_show(path)!r} must hold {kind}, but the first '
        f'{num_records:,} records have none: it holds {_show(repr(found))}, of '
        f'type {type(found).__name__}. Name another field'
        f'{_inner_names(path, found)}, or store this one as text.'
      )


def _inner_names(path: str, value: Any) -> str:
  if not isinstance(value, dict) or not value:
    return ''
  names = (f'{path}.{name}' for name in itertools.islice(value, _MAX_NAMES))
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
