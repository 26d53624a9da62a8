"""Duplicates across groups: one example of each text stays.

Before records are grouped by their keys, they are grouped by their texts. For
that they travel as rows whose group is the SHA-256 of the text, and whose group
id stands in place of the URL. Sorted as all pieces are, the first row of a text
is that of the smallest (timestamp, group id, SHA-256 of the example).
"""

import hashlib
from collections.abc import Iterable, Iterator

from pipelines.pieces import Row
from pipelines.write_groups import CountDrops
from tff_fedfish.data import records


def by_text(row: tuple, text: bytes) -> tuple:
  """Returns a row, of a block or sorted, as it is grouped by its text."""
  group_id, timestamp, _, *others = row
  return hashlib.sha256(text).digest(), timestamp, group_id, *others


def keep_first(rows: Iterable[Row], drop: CountDrops) -> Iterator[Row]:
  """Yields one row of each text, as it is grouped by its key.

  Args:
    rows: Rows as `by_text` returns them, sorted.
    drop: Called for each of the others.
  """
  last = None
  for row in rows:
    if row[0] == last:
      drop('duplicate_across_groups', _by_key(row), 1)
    else:
      last = row[0]
      yield _by_key(row)


def _by_key(row: Row) -> Row:
  _, timestamp, group_id, digest, example, num_words = row
  url = records.decode_example(example).get('url', b'')
  return group_id, timestamp, url, digest, example, num_words
