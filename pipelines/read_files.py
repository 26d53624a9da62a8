"""Reads raw files into runs of keyed records, and accounts for all."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence

from pipelines import splits
from pipelines.keys import KEYS
from pipelines.options import GroupJob
from pipelines.reports import FileReport, Input, Tally, excerpt
from pipelines.rows import Row, names_of
from pipelines.runs import RunWriter
from pipelines.source import (
  EXCERPT_BYTES,
  OTHER_FEATURES_BYTES,
  TIME_NOT_READ,
  Drop,
  RawRecord,
  Source,
  Span,
)
from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import shard_of
from tff_fedfish.data.manifest import DropExample
from tff_fedfish.data.time_order import time_key
from tff_fedfish.errors import UserError

# What `str.split` takes for white space: 0 for ASCII's, 1 for any other byte.
_WORD_BYTES = bytes(
  not (byte < 128 and chr(byte).isspace()) for byte in range(256)
)
_NON_ASCII_SPACES = tuple(
  character
  for character in map(chr, range(128, 0x10000))
  if character.isspace()
)


class FileReader:
  """Reads the files of one reading task into runs.

  Attributes:
    reports: One of every file that was read to its end.
  """

  def __init__(self, job: GroupJob, runs: RunWriter):
    """Makes a reader for one task of a job, whose `paths` are not used.

    Args:
      job: The job.
      runs: Collects the records.
    """
    self.reports: list[FileReport] = []
    self._job, self._runs = job, runs
    self._source = job.load_source()
    max_bytes = job.max_document_bytes + OTHER_FEATURES_BYTES
    self._encode = _ExampleEncoder(self._source, max_bytes)
    self._part_of = job.split and splits.build_route(job.split, self._source)
    self._key_function, self._filter = job.own_functions()
    self._shard_of = functools.lru_cache(1 << 14)(
      functools.partial(shard_of, num_shards=job.num_shards)
    )

  @property
  def features(self) -> int:
    """Optional features that at least one record read so far has, as bits."""
    return self._encode.mask

  def read(self, task: Iterable[Input]) -> None:
    """Reads files to their end; the last rows are in no run yet.

    Args:
      task: Files, or spans of them; small ones share runs.

    Raises:
      UserError: If the job is strict, for the first record that is dropped.
    """
    for file in task:
      self._read_file(file)

  def _read_file(self, file: Input) -> None:
    path, name, span = file.path, file.name, Span(file.start, file.stop)
    job, source, part_of = self._job, self._source, self._part_of
    report = FileReport(name, file.start)
    num_records = [0] * len(job.part_names())
    key = source.key or KEYS.get(job.key)
    has_own = self._key_function or self._filter
    part = 0
    for num, record in source.read_records(
      path, job.max_document_bytes, job.max_window_log, bool(has_own), span
    ):
      report.records_in += 1
      place = f'{num} after byte {span.start:,}' if span.start else num
      try:
        if isinstance(record, Drop):
          raise record
        if self._filter:
          self._filter.require_kept(record, place, name)
        if self._key_function:
          group_id = self._key_function.key(record, place, name)
        else:
          group_id = key(record)
        if part_of is not None:
          part = part_of(path, record, group_id)
        row = self._encode(group_id, record)
      except Drop as drop:
        if not drop.excerpt and not isinstance(record, Drop):
          # Not the whole text: it may be long.
          drop.excerpt = record['text'][:EXCERPT_BYTES].encode()
        self._count_drop(report, num, drop, place)
        continue
      shard = part * job.num_shards + self._shard_of(group_id)
      self._runs.add(shard, row)
      num_records[part] += 1
      report.times_not_read += TIME_NOT_READ in record
    report.parts = tuple(num_records)
    self.reports.append(report)

  def _count_drop(
    self, report: FileReport, num: int, drop: Drop, place: int | str
  ) -> None:
    shown = excerpt(drop.excerpt)
    # A fault of no file.
    if self._job.strict and drop.reason != 'filtered':
      raise UserError(
        '`--strict` accepts only files without a fault, but record '
        f'{place} of {report.name!r} has one: {drop.reason}'
        f'{f" ({shown!r})" if shown else ""}. Correct the file, or leave '
        'out `--strict` to drop and count such records.'
      ) from drop
    if drop.reason not in report.drops:
      first = DropExample(file=report.name, line=num, excerpt=shown)
      report.drops[drop.reason] = Tally(0, first)
    report.drops[drop.reason].num += 1
    if drop.damage:
      report.damage = drop.reason


def num_words(text: str, utf8: bytes) -> int:
  """Returns `len(text.split())`, in a fraction of the time.

  It looks at the text's bytes, `utf8`, where it can.
  """
  if not text.isascii():
    for space in _NON_ASCII_SPACES:
      if space in text:
        return len(text.split())
  # A word ends where a 0 follows a 1, or the text does.
  in_word = utf8.translate(_WORD_BYTES)
  return in_word.count(b'\1\0') + in_word.endswith(b'\1')


class _ExampleEncoder:
  """(group id, record) -> a row.

  Which optional features are stored is known when every file was read. An
  example gets those that this reader has met so far, which are nearly always
  the same; whoever writes it adds what it lacks.

  Raises:
    Drop: document_too_large, if all features together have more than
      `max_bytes`.
  """

  def __init__(self, source: Source, max_bytes: int):
    self._max_bytes = max_bytes
    self._required = source.feature_names
    self._optional = source.optional_feature_names
    # One that the source does not have sorts as empty: the last value.
    names = source.feature_names
    self._text, self._timestamp, self._url = (
      names.index(name) if name in names else -1
      for name in ('text', 'timestamp', 'url')
    )
    self._use(0)

  def _use(self, mask: int) -> None:
    self.mask = mask
    self._names = self._required + names_of(mask, self._optional)
    self._encode: Callable[[Sequence[bytes]], bytes] = records.example_encoder(
      self._names
    )

  def __call__(self, group_id: bytes, record: RawRecord) -> Row:
    mask = self.mask
    for bit, name in enumerate(self._optional):
      if name in record:
        mask |= 1 << bit
    if mask != self.mask:
      self._use(mask)
    values = [record.get(name, '').encode() for name in self._names]
    if sum(map(len, values)) > self._max_bytes:
      raise Drop('document_too_large')
    example = self._encode(values)
    values.append(b'')
    time = time_key(record.get('timestamp', '')) + values[self._timestamp]
    words = num_words(record['text'], values[self._text])
    digest = hashlib.sha256(example).digest()
    return group_id, time, values[self._url], digest, example, words, mask
