"""Posts of TFF's stackoverflow.sqlite."""

from collections.abc import Iterator
from typing import Any

from pipelines.read_examples import decode_features
from pipelines.source import (
  OTHER_FEATURES_BYTES,
  Drop,
  RawRecord,
  parse_each,
)
from pipelines.web_articles import to_record
from tff_fedfish.data import tff_sqlite

_SPLIT_NAMES = {'heldout': 'held_out'}


def read_database(
  path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based row number, record or why it is dropped) of a database.

  A record has `text` (the tokens, with a space between two), `timestamp` and
  `url` (always empty), the others where the example has them, and `split`:
  'train', 'test', or 'held_out' for what TFF calls heldout.

  Args:
    path: A plain local file.
    max_document_bytes: The longest text to accept.

  Raises:
    UserError: If the database is damaged, or none of TFF.
  """
  rows = tff_sqlite.read_rows(
    path, max_example_bytes=max_document_bytes + OTHER_FEATURES_BYTES
  )
  return parse_each(
    lambda row: _to_record(row, max_document_bytes),
    enumerate(map(tff_sqlite.Row._asdict, rows), start=1),
  )


def _to_record(row: dict[str, Any], max_document_bytes: int) -> RawRecord:
  """Returns the features of one row.

  Raises:
    Drop: malformed_example, invalid_utf8, or as `web_articles.to_record`.
  """
  serialized = row['serialized']
  if row['num_bytes'] is not None and serialized is None:
    raise Drop('document_too_large')
  if not isinstance(serialized, bytes):
    raise Drop('malformed_example')
  features = decode_features(serialized)
  try:
    author, split_name = (
      (row[name] or b'').decode() for name in ('client_id', 'split_name')
    )
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8') from error
  value = {'author': author, 'split': _SPLIT_NAMES.get(split_name, split_name)}
  for name in ('title', 'tags', 'type', 'score'):
    if isinstance(feature := features.get(name), str | int):
      value[name] = str(feature)
  value = {name: text for name, text in value.items() if text}
  common = {
    'text': features.get('tokens'),
    'timestamp': features.get('creation_date'),
  }
  return to_record(value | common, max_document_bytes, tuple(value))
