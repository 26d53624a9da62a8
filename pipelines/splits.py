"""Splits a corpus into parts, each of which becomes a grouped corpus.

- source: the split that the corpus comes with, such as C4's train and
  validation files or Stack Overflow's train, held-out users and test.
- client: whole groups, drawn by a hash of the group id. With equal seeds the
  held-out groups are those that training holds out by itself.
- time: examples before a moment are `train`, the others `test`; a group may
  have examples in both.
"""

import dataclasses
from collections.abc import Callable, Iterable

from pipelines.source import Drop, RawRecord, Source
from tff_fedfish.data.client_splits import split_position
from tff_fedfish.data.time_order import (
  MOMENT,
  kind_of,
  parse_moment,
  time_key,
)
from tff_fedfish.errors import UserError

SPLIT_KINDS = ('source', 'client', 'time')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitRule:
  """How a corpus is split.

  Attributes:
    kind: One of `SPLIT_KINDS`.
    split_seed: For 'client': the seed of the split.
    held_out_fraction: For 'client': probability that a group is held out.
    validation_fraction: For 'client': probability that it is for validation.
    time: For 'time': ISO 8601, taken as UTC if it names no time zone.
  """

  kind: str
  split_seed: int = 3
  held_out_fraction: float = 0.1
  validation_fraction: float = 0.0
  time: str = ''

  def __post_init__(self):
    held_out, validation = self.held_out_fraction, self.validation_fraction
    if self.kind == 'client' and not (
      held_out >= 0 and validation >= 0 and 0 < held_out + validation < 1
    ):
      raise UserError(
        '`--held_out_fraction` and `--validation_fraction` must be at least 0 '
        f'and together between 0 and 1, but are {held_out} and {validation}. '
        'They are shares of the groups, such as 0.1.'
      )
    if self.kind == 'time' and parse_moment(self.time) is None:
      raise UserError(
        '`--split_time` must be a moment such as 2018-01-01 or '
        f'2018-01-01T12:00:00+02:00, but is {self.time!r}.'
      )


def split_names(
  rule: SplitRule, source: Source, paths: Iterable[str] = ()
) -> tuple[str, ...]:
  """Returns the names of the parts.

  Args:
    rule: How to split.
    source: What to split.
    paths: Raw files, whose names are checked where they tell the part.

  Raises:
    UserError: If the source has no split of its own and the rule asks for it,
      or a file's name must tell the part and does not.
  """
  if rule.kind == 'time':
    return 'train', 'test'
  if rule.kind == 'client':
    # Only parts that can get a group.
    validation = ('validation',) if rule.validation_fraction else ()
    held_out = ('held_out',) if rule.held_out_fraction else ()
    return 'train', *validation, *held_out
  if source.split is None:
    raise UserError(
      f'`--split_by source` needs a corpus with a split of its own, but '
      f'{source.name} has none. Split it by client or by time.'
    )
  if source.splits_by_path:
    for path in paths:
      source.split(path, {})
  return source.split_names


def describe(rule: SplitRule, source: Source) -> str:
  """Returns the rule in words, for the manifest."""
  if rule.kind == 'time':
    moment, fraction = parse_moment(rule.time)
    moment = moment.replace(microsecond=int(f'{fraction:0<6.6}'))
    return f'train: examples before {moment.isoformat()}; test: all others'
  if rule.kind == 'client':
    return (
      'by a hash of the group id: '
      f'held_out with probability {rule.held_out_fraction}, validation '
      f'{rule.validation_fraction}, split_seed {rule.split_seed}'
    )
  return f'the split of {source.name} itself'


def build_route(
  rule: SplitRule, source: Source
) -> Callable[[str, RawRecord, bytes], int]:
  """Returns a function: (path, record, group id) -> position in the names.

  The function raises `Drop`: missing_timestamp or malformed_timestamp, if the
  rule is 'time' and the record's cannot be compared.
  """
  names = split_names(rule, source)
  limit = time_key(rule.time) if rule.kind == 'time' else None

  def route(path: str, record: RawRecord, group_id: bytes) -> int:
    if limit is not None:
      return int(moment_of(record) >= limit)
    if rule.kind == 'source':
      return names.index(source.split(path, record))
    position = split_position(group_id, split_seed=rule.split_seed)
    if position < rule.held_out_fraction:
      return names.index('held_out')
    if position < rule.held_out_fraction + rule.validation_fraction:
      return names.index('validation')
    return names.index('train')

  return route


def moment_of(record: RawRecord) -> bytes:
  """Returns what the moment when a record was made is sorted by.

  Raises:
    Drop: missing_timestamp, or malformed_timestamp if it is no ISO 8601: a
      number may count seconds, or milliseconds.
  """
  timestamp = record.get('timestamp', '')
  if not timestamp.strip():
    raise Drop('missing_timestamp')
  key = time_key(timestamp)
  if kind_of(key) != MOMENT:
    raise Drop('malformed_timestamp', excerpt=timestamp.encode())
  return key
