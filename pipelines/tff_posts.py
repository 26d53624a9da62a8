"""Posts of TFF's stackoverflow.sqlite, plain or packed."""

import io
import shutil
import tempfile
from collections.abc import Iterator

from pipelines.objects import decode_features
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, parse_each
from tff_fedfish.data import tff_sqlite

# What an example may hold beside its text.
_OTHER_FEATURES_BYTES = 1 << 20


def read_database(
  stream: io.BufferedReader, path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based row number, record or why it is dropped) of a database.

  A record has `text` (the tokens, with a space between two), `timestamp` and
  `url` (always empty), the others where the example has them, and `split`:
  'train', 'test', or 'held_out' for what TFF calls heldout.

  Args:
    stream: What `open_raw` returns. SQLite reads only plain local files: others
      are copied to a temporary one.
    path: The file.
    max_document_bytes: The longest text to accept.

  Raises:
    UserError: If the database is damaged, or none of TFF.
    OSError: If there is no room for the temporary file.
  """
  with tempfile.NamedTemporaryFile(suffix='.sqlite') as temporary:
    file = path
    if not isinstance(stream.raw, io.FileIO):
      shutil.copyfileobj(stream, temporary)
      temporary.flush()
      file = temporary.name
    rows = tff_sqlite.read_rows(
      file,
      max_example_bytes=max_document_bytes + _OTHER_FEATURES_BYTES,
      shown_path=path,
    )
    yield from parse_each(
      lambda row: _to_record(row, max_document_bytes),
      enumerate(rows, start=1),
    )


def _to_record(row: tff_sqlite.Row, max_document_bytes: int) -> RawRecord:
  """Returns the features of one row.

  Raises:
    Drop: document_too_large, malformed_example, invalid_utf8, missing_text (no
      `tokens`) or empty_text.
  """
  serialized = row.serialized
  if row.num_bytes is not None and serialized is None:
    raise Drop('document_too_large')
  if not isinstance(serialized, bytes):
    raise Drop('malformed_example')
  features = decode_features(serialized)
  text = features.get('tokens')
  if not isinstance(text, str):
    raise Drop('missing_text', excerpt=serialized)
  if not text.strip():
    raise Drop('empty_text', excerpt=serialized)
  if len(text.encode()) > max_document_bytes:
    raise Drop('document_too_large', excerpt=text[:EXCERPT_BYTES].encode())
  timestamp = features.get('creation_date')
  record = {
    'text': text,
    'timestamp': timestamp if isinstance(timestamp, str) else '',
    'url': '',
  }
  try:
    author, split_name = (
      (value or b'').decode() for value in (row.client_id, row.split_name)
    )
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8', excerpt=error.object) from error
  if author:
    record['author'] = author
  if split_name:
    record['split'] = 'held_out' if split_name == 'heldout' else split_name
  for name in ('title', 'tags', 'type', 'score'):
    value = features.get(name)
    if isinstance(value, str | int) and value != '':
      record[name] = str(value)
  return record
