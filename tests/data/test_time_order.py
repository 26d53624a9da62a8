"""Keys of times sort as `decimal` and `datetime` do."""

import datetime
import decimal

import hypothesis
import hypothesis.strategies as st
import pytest

from tff_fedfish.data.time_order import (
  MOMENT,
  NUMBER,
  OTHER,
  kind_of,
  parse_moment,
  time_key,
)

_DIGITS = st.text('0123456789', max_size=30)
_OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59)


@st.composite
def _numbers(draw):
  """Returns a number as JSON or people write it, of up to 60 digits."""
  sign, whole, fraction = draw(
    st.tuples(st.sampled_from('+-') | st.just(''), _DIGITS, _DIGITS)
  )
  if not whole + fraction:
    whole = '0'
  text = (
    sign + whole + ('.' + fraction if fraction or draw(st.booleans()) else '')
  )
  if draw(st.booleans()):
    text += draw(st.sampled_from(['e', 'E', 'e+', 'e-'])) + str(
      draw(st.integers(0, 10**6))
    )
  return text


@st.composite
def _moments(draw):
  """Returns (text, moment without fraction, fraction)."""
  # Two years leave room for any offset at both ends of the calendar.
  moment = draw(
    st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1))
  ).replace(microsecond=0)
  minutes = draw(st.just(0) | _OFFSETS)
  zone = datetime.timezone(datetime.timedelta(minutes=minutes))
  fraction = draw(_DIGITS)
  text = moment.isoformat(draw(st.sampled_from('T ')))
  text += draw(st.sampled_from('.,')) + fraction if fraction else ''
  if minutes or draw(st.booleans()):
    hours, rest = divmod(abs(minutes), 60)
    colon = draw(st.sampled_from([':', '']))
    text += f'{"-" if minutes < 0 else "+"}{hours:02}{colon}{rest:02}'
  else:
    text += draw(st.sampled_from(['', 'Z', ' UTC']))
  return text, moment.replace(tzinfo=zone), fraction


@hypothesis.given(_numbers(), _numbers())
def test_numbers_by_value(first, second):
  keys = [time_key(text) for text in (first, second)]
  assert set(map(kind_of, keys)) == {NUMBER}
  values = [decimal.Decimal(text) for text in (first, second)]
  assert (keys[0] < keys[1]) == (values[0] < values[1])
  assert (keys[0] == keys[1]) == (values[0] == values[1])


@hypothesis.given(_moments(), _moments())
def test_moments_exactly(first, second):
  keys = [time_key(text) for text, _, _ in (first, second)]
  assert set(map(kind_of, keys)) == {MOMENT}
  exact = [
    (moment, decimal.Decimal(f'0.{fraction or 0}'))
    for _, moment, fraction in (first, second)
  ]
  assert (keys[0] < keys[1]) == (exact[0] < exact[1])
  assert (keys[0] == keys[1]) == (exact[0] == exact[1])


@hypothesis.given(
  st.text() | _numbers() | _moments().map(lambda m: m[0]), st.text()
)
def test_no_key_is_the_beginning_of_another(first, second):
  keys = sorted({time_key(first), time_key(second)})
  assert len(keys) == 1 or not keys[1].startswith(keys[0])


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
    *('', 'soon', '-1e30', '-2', '-1.5', '0', '1e-30', '2', '10', '1e30'),
    # 21:30, 22:00, half a second, three quarters, and 22:01 in UTC.
    *('2024-03-01T23:30:00+02:00', '2024-03-01T22:00:00Z'),
    *('2024-03-01T22:00:00.5Z', '2024-03-01T22:00:00.75Z'),
    '2024-03-02T07:01:00+09:00',
    # The leap second is the first of the next year.
    *('2016-12-31T23:59:60Z', '2017-01-01T00:00:00.1'),
  ]
  texts = [*texts[:10], *texts[15:], *texts[10:15]]
  keys = [time_key(text) + text.encode() for text in texts]
  assert keys == sorted(keys)
  assert time_key('2016-12-31T23:59:60Z') == time_key('2017-01-01')


def test_parsed():
  moment, fraction = parse_moment('2018-01-01 12:00:00.50+02:00')
  assert moment.isoformat() == '2018-01-01T12:00:00+02:00'
  assert fraction == '50'
  assert parse_moment('12') is None
