"""Keys of times sort by their value, exactly."""

import itertools

import pytest

from tff_fedfish.data.time_order import (
  MOMENT,
  NUMBER,
  OTHER,
  kind_of,
  parse_moment,
  time_key,
)


@pytest.mark.parametrize(
  ('kind', 'texts'),
  [
    (
      OTHER,
      (
        *('', ' ', 'yesterday', 'NaN', 'Infinity', '1_000', '٣', '.', 'e5'),
        *('2018-13-01', '2018-02-30', '2018-01', '2018-W01-1T10:11:12Z'),
        *('2018-01-01+02:00', '2018-01-01T10:30.5', '2018-01-01T1011:12'),
        *('0000-01-01', '2018-01-01x', '9999-12-31T23:59:60Z', '1/2/2018'),
      ),
    ),
    (
      NUMBER,
      ('0', '-0.0', '+.5', '5.', ' 12 ', '20180101', '1e-7', '9' * 10_000),
    ),
    (
      MOMENT,
      (
        *('2018-01-01', '2018-01-01 10', '2018-01-01T1011', ' 2018-01-01 '),
        *('2010-05-17 11:10:45.123 UTC', '2014-01-21T20:26:05.383'),
        *('2016-12-31T23:59:60Z', '0001-01-01T00:00:00+14:00'),
        *('9999-12-31T23:59:59-14', '2018-01-01T10:11:12 +0200'),
      ),
    ),
  ],
)
def test_kinds(kind, texts):
  assert [(text, kind_of(time_key(text))) for text in texts] == [
    (text, kind) for text in texts
  ]


def test_order_by_hand():
  texts = [
    *('', 'soon', '-1e30', '-2.5', '-2', '0'),
    *('1e-30', '2', '2.5', '10', '1e30'),
    # The leap second is the first of the next year.
    *('2016-12-31T23:59:60Z', '2017-01-01T00:00:00.1'),
    # 21:30, 22:00, half a second, three quarters, and 22:01 in UTC.
    *('2024-03-01T23:30:00+02:00', '2024-03-01T22:00:00Z'),
    *('2024-03-01T22:00:00.5Z', '2024-03-01T22:00:00.75Z'),
    '2024-03-02T07:01:00+09:00',
  ]
  keys = [time_key(text) + text.encode() for text in texts]
  assert keys == sorted(keys)
  # Nor is one the beginning of another, behind which more may follow.
  pairs = itertools.permutations(set(map(time_key, texts)), 2)
  assert not any(one.startswith(other) for one, other in pairs)


@pytest.mark.parametrize(
  'texts',
  [
    ('2016-12-31T23:59:60Z', '2017-01-01', '2017-01-01 01:30:00.000+0130'),
    ('15', '+015.0', '1.5e1', '.15E+2', '1500e-2'),
    ('-0.25', '-25e-2', '-.250'),
    ('0', '-0.0', '0e7'),
  ],
)
def test_equal_times(texts):
  assert len(set(map(time_key, texts))) == 1


def test_parsed():
  moment, fraction = parse_moment('2018-01-01 12:00:00.50+02:00')
  assert moment.isoformat() == '2018-01-01T12:00:00+02:00'
  assert fraction == '50'
  assert parse_moment('12') is None
