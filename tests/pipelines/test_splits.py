"""To which part of a split a record belongs, at and beside every limit."""

import pytest

from pipelines import splits
from pipelines.source import Drop, load_source
from pipelines.splits import SplitRule
from tff_fedfish.errors import UserError

_C4 = load_source('c4')


def _part(rule, record, group_id=b'g', path='x', source=_C4):
  route = splits.build_route(rule, source)
  return splits.split_names(rule, source)[route(path, record, group_id)]


@pytest.mark.parametrize(
  ('timestamp', 'part'),
  [
    ('2017-12-31T23:59:59Z', 'train'),
    ('2018-01-01T00:00:00Z', 'test'),
    ('2017-12-31', 'train'),
    ('2018-01-01', 'test'),
    # Two hours east, it is still 23:30 UTC of the day before.
    ('2018-01-01T01:30:00+02:00', 'train'),
    ('2017-12-31T23:30:00-01:00', 'test'),
  ],
)
def test_by_time(timestamp, part):
  rule = SplitRule(kind='time', time='2018-01-01')
  assert _part(rule, {'timestamp': timestamp}) == part


@pytest.mark.parametrize(
  ('timestamp', 'reason'),
  [
    ('', 'missing_timestamp'),
    ('2018', 'malformed_timestamp'),
    ('1514764800', 'malformed_timestamp'),
    # Milliseconds of 2021, which ISO 8601 without dashes takes for a date.
    ('1612010100123', 'malformed_timestamp'),
    ('2018-02-30', 'malformed_timestamp'),
  ],
)
def test_time_that_cannot_be_compared(timestamp, reason):
  rule = SplitRule(kind='time', time='2018-01-01')
  with pytest.raises(Drop, match=f'^{reason}$') as drop:
    _part(rule, {'timestamp': timestamp})
  assert drop.value.excerpt in (b'', timestamp.encode())


@pytest.mark.parametrize(
  ('timestamp', 'part'),
  [
    ('2018-01-01T10:00:00.00000004Z', 'train'),
    ('2018-01-01T10:00:00.0000000500', 'test'),
  ],
)
def test_by_time_to_the_last_digit(timestamp, part):
  rule = SplitRule(kind='time', time='2018-01-01T12:00:00.00000005+02:00')
  assert _part(rule, {'timestamp': timestamp}) == part
  assert splits.describe(rule, _C4) == (
    'train: examples before 2018-01-01T12:00:00+02:00; test: all others'
  )


def test_by_client_shares():
  rule = SplitRule(
    kind='client', held_out_fraction=0.2, validation_fraction=0.1
  )
  assert splits.split_names(rule, _C4) == ('train', 'validation', 'held_out')
  parts = [_part(rule, {}, b'%d' % i) for i in range(3000)]
  # Four standard deviations: 4 * sqrt(3000 * 0.2 * 0.8) = 88.
  assert abs(parts.count('held_out') - 600) < 88
  assert abs(parts.count('validation') - 300) < 66
  assert parts.count('train') == 3000 - (
    parts.count('held_out') + parts.count('validation')
  )


def test_by_source():
  rule = SplitRule(kind='source')
  path = '/data/c4-validation.00000-of-00008.json.gz'
  assert _part(rule, {'text': 'x'}, path=path) == 'validation'


def test_source_without_a_split():
  with pytest.raises(
    UserError,
    match='needs a corpus with a split of its own, but json_lines has none',
  ):
    splits.split_names(SplitRule(kind='source'), load_source('json_lines'))
