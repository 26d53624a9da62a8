"""Sequences and tokens of every group of a corpus, counted once and kept.

They are known only once a corpus is tokenized, which takes minutes for a
large one, so they are kept in the user's cache directory. A file there is only
ever a shortcut: one that is missing, damaged or cannot be written means that
they are counted again.
"""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedfish import files
from tff_fedfish.data.client_sequences import ClientSequences

# Part of every key: raised where the counts would change.
_VERSION = 1
_NUMBERS = np.dtype('<i8')


class RowCounts(NamedTuple):
  """Counts of groups, int64 [num_groups] each, in the order of the groups."""

  num_rows: np.ndarray
  """Sequences."""
  num_tokens: np.ndarray
  """Real tokens in them, the first of each included."""
  num_short_block_tokens: np.ndarray
  """Tokens of last blocks that were dropped."""

  def select(self, index: np.ndarray) -> 'RowCounts':
    """Returns the counts of some groups."""
    return RowCounts(*(column[index] for column in self))


def file_bytes(num_groups: int) -> int:
  """Returns how large the kept file is."""
  return (
    files.DIGEST_BYTES + len(RowCounts._fields) * _NUMBERS.itemsize * num_groups
  )


def load_or_count(
  content_digest: str,
  group_ids: Sequence[bytes],
  groups: ClientSequences,
  *,
  on_start: Callable[[], None] = lambda: None,
  on_group: Callable[[], None] = lambda: None,
) -> RowCounts:
  """Returns the counts of all groups of a corpus, from the cache if they are.

  Args:
    content_digest: Of the corpus: another one where any text differs.
    group_ids: All of its groups, in its order.
    groups: Their sequences. Vocabulary, `sequence_length` and
      `drop_short_block` are part of what the counts are kept by.
    on_start: Called before the first group is counted, if they are.
    on_group: Called after each group that is counted.

  Raises:
    UserError: If a group's examples cannot be read.
  """
  path = _path(content_digest, groups)
  counts = None if path is None else _read(path, len(group_ids))
  if counts is None:
    on_start()
    counts = _count(group_ids, groups, on_group)
    if path is not None:
      # A home that cannot be written to, or a full disk.
      with contextlib.suppress(OSError):
        content = np.stack(counts).astype(_NUMBERS).tobytes()
        files.write_verified(path, content)
  return counts


def _count(group_ids, groups, on_group):
  columns = np.empty([len(RowCounts._fields), len(group_ids)], np.int64)
  for position, group_id in enumerate(group_ids):
    found = groups.sequences(group_id)
    columns[:, position] = (
      len(found),
      found.num_tokens,
      found.num_short_block_tokens,
    )
    on_group()
  return RowCounts(*columns)


def _path(content_digest, groups) -> pathlib.Path | None:
  """Returns where the counts are kept; None: there is no such place."""
  directory = files.user_cache_directory()
  if directory is None:
    return None
  key = [
    _VERSION,
    content_digest,
    groups.tokenizer.cache_key,
    groups.tokenizer.end_of_text_id,
    groups.sequence_length,
    groups.drop_short_block,
  ]
  name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
  return directory / 'row_counts' / name


def _read(path, num_groups) -> RowCounts | None:
  content = files.read_verified(path)
  if content is None or files.DIGEST_BYTES + len(content) != file_bytes(
    num_groups
  ):
    return None
  columns = np.frombuffer(content, _NUMBERS).astype(np.int64)
  return RowCounts(*columns.reshape(len(RowCounts._fields), num_groups))
