"""Checks that a grouped corpus is whole: every byte, every record, every count.

One pass over each shard, with one record in memory beside the index.
"""

import dataclasses
import hashlib
import os
import pathlib
import types
from collections.abc import Callable, Iterator

from tff_fedfish.data import records
from tff_fedfish.data.corpus_files import (
  ADVICE,
  IndexRows,
  Row,
  check_manifest,
  check_shard,
  check_size,
  show_group,
)
from tff_fedfish.data.corpus_index import INDEX_NAME, shard_of
from tff_fedfish.data.manifest import Manifest, read_manifest
from tff_fedfish.data.time_order import kind_of, time_key
from tff_fedfish.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Checked:
  """Amounts of a corpus that were read and found right."""

  num_shards: int = 0
  num_groups: int = 0
  num_records: int = 0
  num_examples: int = 0
  num_words: int = 0
  num_bytes: int = 0
  """Bytes of the shards, frames included."""
  num_mixed_time_groups: int = 0
  """Groups that hold times of several kinds: see `time_order`."""


def verify_corpus(
  directory: str | os.PathLike,
  *,
  on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> Checked:
  """Reads a grouped corpus once, and stops at the first thing that is wrong.

  Checked are the checksum of every frame; that every record is a
  SequenceExample, and every example in it a tf.train.Example, of exactly the
  manifest's features; the order of records and examples; that every group is in
  the shard that its id belongs to; every byte and column of the index; the
  size, SHA-256 and counts in the manifest, and whether what else that says can
  be so. `on_bytes` is called after each record with its length in the shard.

  Raises:
    UserError: If anything is wrong; names the shard, the byte and the group of
      the first damaged record, where it is one.
  """
  directory = pathlib.Path(directory)
  manifest = read_manifest(directory)
  index = IndexRows(directory, manifest)
  checked = Checked()
  for shard_num, shard in enumerate(manifest.shards):
    rows = index.of_shard(shard_num)
    # Of one of another size, reading names the first damaged record.
    check_size(directory, shard, may_differ=True)
    path = directory / shard.name
    _check_records(path, shard_num, manifest, rows, checked, on_bytes)
    checked.num_shards += 1
  if manifest.order > 1:
    index.counts['num_mixed_time_groups'] = checked.num_mixed_time_groups
  check_manifest(directory, manifest, index)
  return checked


class _Fault(Exception):
  """Says what a record must be and what it is; without where it is."""


def _check_records(
  path: pathlib.Path,
  shard_num: int,
  manifest: Manifest,
  rows: Iterator[Row],
  checked: Checked,
  on_bytes: Callable[[int], None],
) -> None:
  """Checks one shard, and adds it to `checked`."""
  group = _Group()
  file_hash = hashlib.sha256()
  hashing = types.SimpleNamespace(write=file_hash.update)
  num_records = offset = 0
  row = next(rows, None)
  frames = records.iterate_records(path)
  while True:
    group_id = row.group_id if row and row.offset == offset else None
    try:
      _, payload = next(frames, (None, None))
    except UserError as error:
      # It names the file and the byte already.
      raise UserError(f'{_subject(group_id)}: {error}') from error
    if payload is None:
      break
    try:
      record = _decode(payload)
      group_id = record.group_id
      _check_row(record, payload, offset, row)
      if record.group_id != group.group_id:
        _check_place(record, group, shard_num, len(manifest.shards))
        checked.num_mixed_time_groups += len(group.kinds) > 1
        group = _Group(record.group_id)
        checked.num_groups += 1
      _check_examples(record, group, row, manifest)
    except _Fault as fault:
      raise _error(path, offset, group_id, str(fault)) from fault
    # The checksums fit, so these are the bytes of the file again.
    size = records.write_record(hashing, payload)
    num_records += 1
    offset += size
    checked.num_records += 1
    checked.num_examples += row.num_examples
    checked.num_words += row.num_words
    checked.num_bytes += size
    on_bytes(size)
    row = next(rows, None)
  checked.num_mixed_time_groups += len(group.kinds) > 1
  if row is not None:
    fault = f'must be there, as {INDEX_NAME} says, but is not'
    raise _error(path, row.offset, row.group_id, fault)
  check_shard(
    path,
    manifest.shards[shard_num],
    sha256=file_hash.hexdigest(),
    num_bytes=offset,
    num_records=num_records,
  )


def _decode(payload: bytes) -> records.GroupRecord:
  try:
    record = records.decode_group_record(payload)
  except ValueError as error:
    raise _Fault(
      f'must be a tf.train.SequenceExample of a group, but is not ({error})'
    ) from error
  if record.group_id is None:
    raise _Fault(f'must have a `{records.GROUP_ID_FEATURE}`, but has none')
  return record


def _check_row(
  record: records.GroupRecord, payload: bytes, offset: int, row: Row | None
) -> None:
  """Raises if the index says something else of a record."""
  if row is None or row.offset != offset:
    next_row = 'ends before' if row is None else f'goes on at byte {row.offset}'
    raise _Fault(f'must be in {INDEX_NAME}, but that {next_row}')
  if record.group_id != row.group_id:
    raise _Fault(
      f'must be of {show_group(row.group_id)}, as {INDEX_NAME} says, but is '
      f'of {show_group(record.group_id)}'
    )
  for what, required, found in (
    ('part', row.part, record.part),
    ('num_examples', row.num_examples, len(record.examples)),
    ('num_bytes', row.num_bytes, len(payload)),
  ):
    if required != found:
      raise _Fault(
        f'must have the {what} {required} that {INDEX_NAME} says, but has '
        f'{found}'
      )


@dataclasses.dataclass
class _Group:
  """The group that is being read, and where in its order we are."""

  group_id: bytes | None = None
  last_key: tuple[bytes, bytes] | None = None
  """(key of the timestamp, url) of its last example."""
  last_example: bytes = b''
  kinds: set[int] = dataclasses.field(default_factory=set)
  """Kinds of its times: see `time_order`."""


def _check_place(
  record: records.GroupRecord, before: _Group, shard_num: int, num_shards: int
) -> None:
  """Raises if a group is in another shard than it must be, or out of order.

  That the parts of a group follow each other is known from the index.
  """
  right_shard = shard_of(record.group_id, num_shards)
  if right_shard != shard_num:
    raise _Fault(
      f'must be in shard {right_shard}, which is the SHA-256 of its group id '
      f'modulo {num_shards}, but is in shard {shard_num}'
    )
  if before.group_id is not None and record.group_id < before.group_id:
    raise _Fault(
      f'must come before {show_group(before.group_id)} in the order of group '
      'ids, but comes after it'
    )


def _check_examples(
  record: records.GroupRecord,
  group: _Group,
  row: Row,
  manifest: Manifest,
) -> None:
  """Raises if an example is not as it must be, or the words are not as many."""
  num_words = 0
  names = set(manifest.feature_names)
  for num, serialized in enumerate(record.examples):
    try:
      example = records.decode_example(serialized)
      if example.keys() != names:
        raise ValueError(f'it has {", ".join(sorted(example)) or "none"}')
      num_words += len(example['text'].decode().split())
    except ValueError as error:
      raise _Fault(
        f'must hold tf.train.Examples of {", ".join(sorted(names))}, the text '
        f'in UTF-8, but example {num} is none ({error})'
      ) from error
    time, url = (example.get(name, b'') for name in ('timestamp', 'url'))
    if manifest.order > 1:
      time = time_key(time.decode(errors='replace')) + time
      group.kinds.add(kind_of(time))
    key = time, url
    if group.last_key is not None and (
      key < group.last_key
      # Hashed only where it decides.
      or (key == group.last_key and _is_after(group.last_example, serialized))
    ):
      raise _Fault(
        'must hold examples in the order of time, url and SHA-256, but '
        f'example {num} belongs before the one that precedes it'
      )
    group.last_key, group.last_example = key, serialized
  if num_words != row.num_words:
    raise _Fault(
      f'must have the num_words {row.num_words} that {INDEX_NAME} says, but '
      f'has {num_words}'
    )


def _is_after(first: bytes, second: bytes) -> bool:
  return hashlib.sha256(first).digest() > hashlib.sha256(second).digest()


def _error(
  path: pathlib.Path, offset: int, group_id: bytes | None, fault: str
) -> UserError:
  return UserError(
    f'{_subject(group_id)}: the record at byte {offset} of {str(path)!r} '
    f'{fault}. {ADVICE}'
  )


def _subject(group_id: bytes | None) -> str:
  """Returns the beginning of an error; None: the index knows no such group."""
  if group_id is None:
    return f'No group of {INDEX_NAME}'
  return f'G{show_group(group_id)[1:]}'
