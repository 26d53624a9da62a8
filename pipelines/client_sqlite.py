"""The SQLite databases in which TFF keeps datasets, such as its Stack Overflow.

Their table `examples` has a row per example: `split_name`, `client_id` and
`serialized_example_proto`, a `tf.train.Example`
(tensorflow_federated/python/simulation/datasets/sql_client_data.py).
"""

import contextlib
import os
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import Any

from pipelines.raw_bytes import copy_chunks
from pipelines.read_objects import decode_features
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, parse_each
from tff_fedfish.data import places, sqlite_files
from tff_fedfish.errors import UserError

MAGIC = sqlite_files.MAGIC

_COLUMNS = {'split_name', 'client_id', 'serialized_example_proto'}
# What an example may hold beside its text.
_MORE_ROW_BYTES = 1 << 20
# A longer example is not even read. The scan runs through the rows as they were
# written.
_SELECT = """
SELECT split_name, client_id, length(serialized_example_proto),
  CASE WHEN length(serialized_example_proto) <= ?
  THEN serialized_example_proto END
FROM examples
"""
# SQLITE_ERROR, as the statements are without one: 'unsupported file format'.
_DAMAGE = (
  'SQLITE_CORRUPT',
  'SQLITE_ERROR',
  'SQLITE_IOERR_SHORT_READ',
  'SQLITE_NOTADB',
)


def read_examples(
  chunks: Iterable[bytes], path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based row number, record or why it is dropped) of a database.

  A record has `text` (the tokens, with a space between two), `timestamp` and
  `url` (always empty), the others where the example has them, and `split`:
  'train', 'test', or 'held_out' for what TFF calls heldout.

  If the database is damaged, the rows before the fault are yielded, and then a
  `Drop` with `damage` set: truncated_file, or corrupt_file, whose `byte` SQLite
  does not tell.

  The file's pieces are written to a temporary file, as SQLite can only read
  files, unless `path` is a plain local one already.

  Raises:
    UserError: If the database has no such table.
    OSError: If there is no room for the temporary file.
  """
  with contextlib.ExitStack() as stack:
    file, damage = path, None
    if not _is_whole_database(path):
      temporary = stack.enter_context(
        tempfile.NamedTemporaryFile(suffix='.sqlite')
      )
      damage = copy_chunks(chunks, temporary)
      file = temporary.name
      if sqlite_files.is_cut_off(file):
        # SQLite would fill up half a page with zeros.
        page_bytes, _ = sqlite_files.read_sizes(file)
        os.truncate(file, os.path.getsize(file) // page_bytes * page_bytes)
        # Every byte that there is could be used.
        byte = None if places.is_remote(path) else os.path.getsize(path)
        damage = damage or Drop('truncated_file', damage=True, byte=byte)
    row_num = 0
    try:
      connection = stack.enter_context(contextlib.closing(_connect(file)))
      # After damage the table may be what is lost.
      _check_table(connection, path, needs_columns=damage is None)
      rows = connection.execute(
        _SELECT, (max_document_bytes + _MORE_ROW_BYTES,)
      )
      for row_num, record in parse_each(
        lambda row: _to_record(*row, max_document_bytes), enumerate(rows, 1)
      ):
        yield row_num, record
    except sqlite3.DatabaseError as error:
      fault = getattr(error, 'sqlite_errorname', '')
      if fault == 'SQLITE_AUTH':
        raise _not_a_table(path, 'a view') from error
      if damage is None:
        if not fault.startswith(_DAMAGE):
          raise
        damage = Drop('corrupt_file', damage=True)
    if damage is not None:
      yield row_num + 1, damage


def _is_whole_database(path: str) -> bool:
  """Returns whether SQLite can read the file where it is."""
  return (
    not places.is_remote(path)
    and sqlite_files.is_database(path)
    and not sqlite_files.is_cut_off(path)
  )


def _connect(file: str) -> sqlite3.Connection:
  # Immutable: no locks and no files beside it, which may be a read-only place.
  name = urllib.parse.quote(os.path.abspath(file))
  connection = sqlite3.connect(
    f'file:{name}?mode=ro&immutable=1', uri=True, check_same_thread=False
  )
  connection.text_factory = bytes
  # With it SQLite reads what is there of a file that was cut off.
  connection.execute('PRAGMA writable_schema = ON')
  # The file comes from others: nothing that it defines is to be run. A view may
  # be endless, and SQLite then hears no signal.
  connection.execute('PRAGMA trusted_schema = OFF')
  connection.set_authorizer(
    lambda action, name, column, database, view: (
      sqlite3.SQLITE_OK if view is None else sqlite3.SQLITE_DENY
    )
  )
  return connection


def _check_table(
  connection: sqlite3.Connection, path: str, needs_columns: bool
) -> None:
  # Raises if the list of tables is corrupt; the columns would just be missing.
  rows = connection.execute(
    'SELECT lower(name), type, rootpage FROM sqlite_master'
  )
  for name, kind, page in rows.fetchall():
    if name != b'examples' or kind not in (b'table', b'view'):
      continue
    if kind == b'view':
      raise _not_a_table(path, 'a view')
    if not page:
      raise _not_a_table(path, 'a virtual table')
  if not needs_columns:
    return
  rows = connection.execute("SELECT name FROM pragma_table_info('examples')")
  if missing := _COLUMNS - {name.decode() for (name,) in rows}:
    raise UserError(
      "`--input` must name databases of TFF's simulation datasets, but "
      f'{path!r} has no table `examples` with '
      f'{", ".join(f"`{name}`" for name in sorted(missing))}. Leave it out.'
    )


def _not_a_table(path: str, found: str) -> UserError:
  return UserError(
    "`--input` must name databases of TFF's simulation datasets, whose "
    f'`examples` is a table, but in {path!r} it is {found}. Leave it out.'
  )


def _to_record(
  split_name: Any,
  client_id: Any,
  num_bytes: int | None,
  serialized: Any,
  max_document_bytes: int,
) -> RawRecord:
  """Returns the features of one row.

  Raises:
    Drop: document_too_large, malformed_example, invalid_utf8, missing_text (no
      `tokens`) or empty_text.
  """
  if num_bytes is not None and serialized is None:
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
  if author := _text(client_id):
    record['author'] = author
  if split_name := _text(split_name):
    is_held_out = split_name == 'heldout'
    record['split'] = 'held_out' if is_held_out else split_name
  for name in ('title', 'tags', 'type', 'score'):
    value = features.get(name)
    if isinstance(value, str | int) and value != '':
      record[name] = str(value)
  return record


def _text(value: Any) -> str:
  """Returns a column's value, of whatever type it was stored as, as text."""
  if value is None:
    return ''
  try:
    return value.decode() if isinstance(value, bytes) else str(value)
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8', excerpt=value) from error
