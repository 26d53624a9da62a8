"""The bytes around single values in `tf.train` messages.

In what is stored nearly every `Feature` holds one bytes value. It is written as
a header, which depends on the value's length only, and then the value. Joining
headers and values gives the bytes that Protocol Buffers writes with
`deterministic=True`, in a third of its time or less: it copies every value into
a message first.
"""

import functools
from collections.abc import Callable

# Lengths whose headers are held: nearly every value has one that was met.
_MAX_CACHED = 1 << 14

# What every reader of Protocol Buffers accepts.
_MAX_MESSAGE_BYTES = (1 << 31) - 1

# Wire type 2: the length of the content, and the content.
_TAGS = [bytes([number << 3 | 2]) for number in range(16)]


def field_header(number: int, header: bytes, num_bytes: int) -> bytes:
  """Returns `header` with the head of the field that encloses it.

  Args:
    number: The number of a field that holds a message, a string or bytes; at
      most 15.
    header: What the field's content begins with.
    num_bytes: How many bytes of content follow `header`.
  """
  return _TAGS[number] + varint(len(header) + num_bytes) + header


def entry_header(key: bytes, header: bytes, num_bytes: int) -> bytes:
  """Returns the head of an entry of a map that is field 1 of its message.

  Args:
    key: The entry's first field, from `map_key`.
    header: What the content of its second field, the value, begins with.
    num_bytes: How many bytes of content follow `header`.
  """
  return field_header(1, key + field_header(2, header, num_bytes), num_bytes)


def map_key(name: str) -> bytes:
  """Returns the first field of a map's entry."""
  return field_header(1, name.encode(), 0)


def value_header(name: str | None = None) -> Callable[[int], bytes]:
  """Returns a function from a value's length to what precedes the value.

  Args:
    name: The feature's name in the `Features` that hold the value; None for an
      element of a `FeatureList`, which has none.
  """
  key = None if name is None else map_key(name)

  @functools.lru_cache(_MAX_CACHED)
  def header(num_bytes: int) -> bytes:
    bytes_list = field_header(1, b'', num_bytes)
    feature = field_header(1, bytes_list, num_bytes)
    if key is None:
      return field_header(1, feature, num_bytes)
    return entry_header(key, feature, num_bytes)

  return header


@functools.lru_cache(_MAX_CACHED)
def varint(number: int) -> bytes:
  """Returns a number, 0 or greater, in groups of seven bits, lowest first."""
  groups = bytearray()
  while number > 0x7F:
    groups.append(number & 0x7F | 0x80)
    number >>= 7
  groups.append(number)
  return bytes(groups)


def check_size(num_bytes: int) -> None:
  """Raises ValueError if a message of that size could not be read again."""
  if num_bytes > _MAX_MESSAGE_BYTES:
    raise ValueError(
      f'a message must take less than 2 GiB, but this one takes {num_bytes} '
      'bytes: store fewer bytes in a record'
    )
