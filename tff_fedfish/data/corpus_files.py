"""Checks the files of a grouped corpus against its manifest and its index.

No record is decoded here; `verify.py` reads them.
"""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tff_fedfish.data.corpus_index import (
  INDEX_NAME,
  fingerprint_of_index,
  index_sha256,
  read_index,
  unreadable,
)
from tff_fedfish.data.manifest import (
  MANIFEST_NAME,
  Manifest,
  Shard,
  find_fault,
  find_wrong_count,
)
from tff_fedfish.errors import UserError

ADVICE = 'Copy the directory again, or run `fedfish group` again.'

# Values of Arrow become Python's many at a time, which is fast, and not all at
# once, which takes memory.
_ROWS_AT_ONCE = 10_000


def check_size(
  directory: pathlib.Path, shard: Shard, *, may_differ: bool = False
) -> None:
  """Raises a UserError if a shard is missing or not of the size it must be."""
  path = directory / shard.name
  found = path.stat().st_size if path.is_file() else None
  if found is None or (found != shard.num_bytes and not may_differ):
    problem = 'is missing' if found is None else f'has {found} bytes'
    raise UserError(
      f'{str(directory)!r} must hold the shard {shard.name} of '
      f'{shard.num_bytes} bytes, but it {problem}. {ADVICE}'
    )


def check_shard(path: pathlib.Path, shard: Shard, **found: str | int) -> None:
  """Raises a UserError if a shard has something else than the manifest says."""
  for name, value in found.items():
    _check_value(path, name, getattr(shard, name), value)


def check_manifest(
  directory: pathlib.Path, manifest: Manifest, index: 'IndexRows'
) -> None:
  """Raises a UserError if the manifest says what cannot be, as the index is."""
  fault = find_wrong_count(manifest, **index.counts) or find_fault(manifest)
  if not fault and manifest.fingerprint not in ('', index.fingerprint):
    fault = (
      f'must say fingerprint {index.fingerprint}, which is that of '
      f'{INDEX_NAME}, but says {manifest.fingerprint!r}'
    )
  if fault:
    raise UserError(f'{str(directory / MANIFEST_NAME)!r} {fault}. {ADVICE}')


class Row(NamedTuple):
  """A row of the index; see `INDEX_SCHEMA`."""

  group_id: bytes
  part: int | None  # None for a group of one record.
  offset: int
  num_examples: int
  num_bytes: int
  num_words: int


class IndexRows:
  """The rows of the index, by shard.

  `GroupedCorpus` trusts the index, and reads columns; here it is to be checked.

  Attributes:
    fingerprint: See `corpus_index.fingerprint`.
    counts: The fields of `Counts` that the index tells.
    records_per_shard: How many rows each shard has.
  """

  def __init__(self, directory: pathlib.Path, manifest: Manifest):
    """Checks what can be known without the shards.

    Raises:
      UserError: If the index is missing, is no such table or has another
        SHA-256 than the manifest says, its rows are not sorted, or they name a
        shard that is none.
    """
    # Late: to open a corpus need not wait for it.
    import pyarrow.compute as pc

    if manifest.index_sha256:
      _check_index_hash(directory, manifest.index_sha256)
    table = read_index(directory)
    num_shards = len(manifest.shards)
    ids = table.column('group_id')
    part, self._shard, offset = (
      table.column(name).to_numpy() for name in ('part', 'shard', 'offset')
    )

    def require(is_right: np.ndarray, required: str) -> None:
      if not is_right.all():
        row = int(np.argmin(is_right))
        raise UserError(
          f'{str(directory / INDEX_NAME)!r} must {required}, but row {row} '
          f'says {show_group(ids[row].as_py())}, part {part[row]}, shard '
          f'{self._shard[row]}. {ADVICE}'
        )

    is_same = pc.equal(ids[1:], ids[:-1]).to_numpy()
    is_later = pc.greater(ids[1:], ids[:-1]).to_numpy()
    is_right = np.where(
      is_same, part[1:] == part[:-1] + 1, is_later & (part[1:] == 0)
    )
    is_right = np.concatenate([part[:1] == 0, is_right.astype(bool)])
    require(is_right, 'be sorted by (group_id, part), parts from 0')
    is_right = (self._shard >= 0) & (self._shard < num_shards)
    require(is_right, f'name shards from 0 to {num_shards - 1}')
    self.fingerprint = fingerprint_of_index(table)
    is_only_part = (part == 0) & (np.append(part[1:], 0) == 0)
    parts = pa.array(part, mask=is_only_part)
    self._table = table.set_column(1, 'part', parts).select(Row._fields)
    # By place in the shards; stable, so that equal offsets are found later.
    self._order = np.lexsort((offset, self._shard))
    self.records_per_shard = np.bincount(self._shard, minlength=num_shards)
    self.counts = {
      'num_records': len(part),
      'num_groups': int(np.count_nonzero(part == 0)),
      'records_out': int(table.column('num_examples').to_numpy().sum()),
    }

  def of_shard(self, shard_num: int) -> Iterator[Row]:
    """Yields the rows of a shard in the order of their offsets."""
    first, last = np.searchsorted(
      self._shard, [shard_num, shard_num + 1], sorter=self._order
    )
    for start in range(first, last, _ROWS_AT_ONCE):
      rows = self._order[start : min(start + _ROWS_AT_ONCE, last)]
      columns = self._table.take(pa.array(rows)).columns
      yield from map(Row, *(column.to_pylist() for column in columns))


def show_group(group_id: bytes) -> str:
  """Returns a group's name as it stands in an error message."""
  return f'group {group_id.decode("utf-8", "backslashreplace")!r}'


def _check_index_hash(directory: pathlib.Path, sha256: str) -> None:
  """Raises if a byte of the index changed; not all bytes show in its rows."""
  path = directory / INDEX_NAME
  try:
    found = index_sha256(directory)
  except OSError as error:
    raise unreadable(path) from error
  _check_value(path, 'sha256', sha256, found)


def _check_value(
  path: pathlib.Path, name: str, said: str | int, found: str | int
) -> None:
  if said != found:
    raise UserError(
      f'{str(path)!r} must have the {name} {said} that {MANIFEST_NAME} says, '
      f'but has {found}. {ADVICE}'
    )
