r"""The order of times: numbers by value, ISO 8601 by moment.

A time is stored as its source gives it, such as '1500000000.5' or
'2024-03-01T23:30:00+02:00'. It is sorted by its kind and then

    0  absent, or any other text:  by the text
    1  a number:                   by its exact value
    2  ISO 8601, '2018-01-01...':  by its moment, exact to the last digit of the
                                   fraction; UTC where it names no offset

and at last by the text. A key is a string of bytes in that order, which sorts
like all other columns of a grouping job do.
"""

import datetime
import re

OTHER, NUMBER, MOMENT = range(3)
"""Kinds of times, in their order."""

_UTC = ('', 'Z', ' UTC')
# Makes negative exponents positive 8-byte numbers.
_OFFSET = 1 << 63
_END = b'\0'
_COMPLEMENT = bytes(range(255, -1, -1))
_NUMBER = re.compile(
  r'([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,18}))?', re.ASCII
)
_MOMENT = re.compile(
  r'(\d{4}-\d\d-\d\d)'
  r'(?:[T ](\d\d(?:(:?)\d\d(?:\3(\d\d)(?:[.,](\d+))?)?)?)'
  r' ?(Z|UTC|[+-]\d\d(?::?\d\d)?)?)?',
  re.ASCII,
)


def time_key(text: str) -> bytes:
  """Returns what a time is sorted by, before its text.

  Args:
    text: The time as it is stored; empty if there is none.

  Returns:
    Bytes that begin with the kind. None is the beginning of another's, so that
    the text can follow.
  """
  text = text.strip()
  if not text:
    return b'\0'
  if text[4:5] == '-':
    if key := _utc_key(text):
      return key
    if found := parse_moment(text):
      moment, fraction = found
      return _moment_key(_in_utc(moment), fraction)
  if (match := _NUMBER.fullmatch(text)) and (match[2] or match[3]):
    return _number_key(*match.groups(''))
  return b'\0'


def kind_of(key: bytes) -> int:
  """Returns the kind of the time that has a key."""
  return key[0]


def parse_moment(text: str) -> tuple[datetime.datetime, str] | None:
  """Returns a moment without its fraction of a second, and that fraction.

  Args:
    text: ISO 8601 with dashes in the date, such as '2018-01-01' or '2018-01-01
      12:00:00.5 UTC'.

  Returns:
    The moment, with its offset from UTC, and digits; None if it is no such text
    or no date of the calendar.
  """
  match = _MOMENT.fullmatch(text.strip())
  if match is None:
    return None
  date, clock, _, second, fraction, zone = match.groups('')
  if fraction:
    clock = clock[: -1 - len(fraction)]
  is_leap = second == '60'
  if is_leap:
    clock = f'{clock[:-2]}59'
  zone = '+00:00' if zone in ('', 'Z', 'UTC') else zone
  try:
    moment = datetime.datetime.fromisoformat(f'{date}T{clock or "00"}{zone}')
    return moment + datetime.timedelta(seconds=is_leap), fraction
  except (ValueError, OverflowError):
    return None


def _utc_key(text: str) -> bytes | None:
  """Returns the key of a moment in a frequent form, or None.

  Takes a fourth of the time of `parse_moment`, which takes all forms.
  """
  # The two dashes of the date, and the two colons of the time.
  if text[4:8:3] != '--' or text[13:17:3] != '::' or text[10] not in 'T ':
    return None
  fraction = text[19:]
  if fraction not in _UTC:
    fraction = fraction.removesuffix('Z' if fraction[-1] == 'Z' else ' UTC')
    is_fraction = fraction[:1] == '.' and fraction[1:].isdigit()
    if not (is_fraction and fraction.isascii()):
      return None
  else:
    fraction = ''
  try:
    datetime.datetime.fromisoformat(text[:19])
  except ValueError:
    return None
  return _moment_key(f'{text[:10]}T{text[11:19]}', fraction[1:])


def _in_utc(moment: datetime.datetime) -> str:
  """Returns ISO 8601 that sorts, 2018-01-01T00:00:00, of any moment."""
  try:
    return moment.astimezone(datetime.UTC).isoformat()
  except OverflowError:
    # In the year 0 or 10000 of UTC. The calendar repeats after 400 years.
    years, shown = (400, '0000') if moment.year == 1 else (-400, ':000')
    moment = moment.replace(year=moment.year + years)
    return shown + moment.astimezone(datetime.UTC).isoformat()[4:]


def _moment_key(text: str, fraction: str) -> bytes:
  return b'\2' + text[:19].encode() + fraction.rstrip('0').encode() + _END


def _number_key(sign: str, whole: str, fraction: str, exponent: str) -> bytes:
  """Returns the key of sign 0.DIGITS * 10 ** EXPONENT, DIGITS without zeros."""
  digits = (whole + fraction).lstrip('0')
  if not digits:
    return b'\1\1'
  # A zero that is dropped at the start lowers it; the fraction does not count.
  power = int(exponent or 0) + len(digits) - len(fraction) + _OFFSET
  size = power.to_bytes(8, 'big') + digits.rstrip('0').encode() + _END
  if sign == '-':
    return b'\1\0' + size.translate(_COMPLEMENT)
  return b'\1\2' + size
