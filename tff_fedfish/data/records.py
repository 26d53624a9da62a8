"""Reads and writes group records: TFRecord frames around SequenceExamples.

A frame is an 8-byte length, the masked CRC-32C of those 8 bytes, the payload,
and the payload's masked CRC-32C, all little-endian. The payload of a group
record is a `tf.train.SequenceExample` with the feature list `serialized_bytes`
(one serialized `tf.train.Example` per stored example), the layout of
Dataset Grouper (Charles et al., 2023), to which the context features `group_id`
and, for a group that is stored in several records, `part` are added.
"""

import functools
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import google_crc32c
from google.protobuf import message

from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

EXAMPLES_FEATURE = 'serialized_bytes'
GROUP_ID_FEATURE = 'group_id'
PART_FEATURE = 'part'

_HEADER = struct.Struct('<QI')
_CHECKSUM = struct.Struct('<I')
_CUT_OFF = 'the record is cut off'
# How much is read at a time of a payload that is too long, and returned of it.
_SKIPPED_BYTES = 1 << 20
_SHOWN_BYTES = 1 << 10
# How much is copied at a time into a record.
_COPIED_BYTES = 1 << 20

# Lengths whose headers are held: nearly every value has one that was met.
_MAX_CACHED = 1 << 14
# What every reader of Protocol Buffers accepts.
_MAX_MESSAGE_BYTES = (1 << 31) - 1
# Wire type 2: the length of the content, and the content.
_TAGS = [bytes([number << 3 | 2]) for number in range(16)]


class BrokenFrame(Exception):
  """A frame at byte `offset` is cut off, or fails a checksum."""

  def __init__(self, offset: int, reason: str):
    super().__init__(reason)
    self.offset, self.is_cut_off = offset, reason == _CUT_OFF


class GroupRecord(NamedTuple):
  """One group, or one part of a group, as stored.

  Attributes:
    group_id: The group's key; None where the writer stored none, as Dataset
      Grouper's own writer does.
    part: 0-based number of this part; None for a group of one record.
    examples: The serialized `tf.train.Example`s, in stored order.
  """

  group_id: bytes | None
  part: int | None
  examples: list[bytes]


def write_group_record(
  file: BinaryIO,
  group_id: bytes,
  entries: BinaryIO,
  num_bytes: int,
  part: int | None = None,
) -> int:
  """Writes the frame of a group record, without holding it in memory.

  Args:
    file: Where to write.
    group_id: The group's key.
    entries: What `example_entry` returns of each example, in the order to
      store; read from where it stands to its end.
    num_bytes: Size of the entries.
    part: 0-based number of the part; None for a group of one record.

  Returns:
    The length of the payload in bytes.

  Raises:
    ValueError: If the record would take 2 GiB or more.
  """
  start = _start_of_group_record(group_id, num_bytes, part)
  length = struct.pack('<Q', len(start) + num_bytes)
  file.write(length + _CHECKSUM.pack(masked_crc(length)))
  file.write(start)
  crc = google_crc32c.value(start)
  while piece := entries.read(_COPIED_BYTES):
    file.write(piece)
    crc = google_crc32c.extend(crc, piece)
  file.write(_CHECKSUM.pack(_mask(crc)))
  return len(start) + num_bytes


def frame_size(num_payload_bytes: int) -> int:
  """Returns how many bytes a frame around such a payload takes in a file."""
  return _HEADER.size + num_payload_bytes + _CHECKSUM.size


def masked_crc(data: bytes) -> int:
  """Returns the CRC-32C of some bytes, masked as TFRecord does it."""
  return _mask(google_crc32c.value(data))


def _mask(crc: int) -> int:
  # TFRecord rotates and shifts the sum, so that a sum over data that holds
  # sums stays meaningful.
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_frames(
  file: BinaryIO, max_payload_bytes: int = sys.maxsize
) -> Iterator[tuple[int, int, bytes]]:
  """Yields (offset, length of the payload, payload) of every frame.

  Args:
    file: TFRecords, not compressed, read from where it stands; offsets count
      from there.
    max_payload_bytes: Of a payload longer than that and 1 KiB, only the first
      1 KiB are yielded.

  Raises:
    BrokenFrame: If a frame is cut off, or fails its checksum.
  """
  offset = 0
  while header := file.read(_HEADER.size):
    if len(header) < _HEADER.size:
      raise BrokenFrame(offset, _CUT_OFF)
    # Before the length is believed: it decides how much memory is asked for.
    if not starts_with_frame(header):
      raise BrokenFrame(offset, 'its length fails the checksum')
    length, _ = _HEADER.unpack(header)
    num_left = length + _CHECKSUM.size
    if length > max(max_payload_bytes, _SHOWN_BYTES):
      body = b''
      while num_left and (piece := file.read(min(num_left, _SKIPPED_BYTES))):
        body, num_left = body or piece[:_SHOWN_BYTES], num_left - len(piece)
    else:
      body = file.read(num_left)
      num_left -= len(body)
    if num_left:
      raise BrokenFrame(offset, _CUT_OFF)
    payload = body[:length]
    if len(payload) == length and (
      masked_crc(payload) != _CHECKSUM.unpack_from(body, length)[0]
    ):
      raise BrokenFrame(offset, 'its content fails the checksum')
    yield offset, length, payload
    offset += frame_size(length)


def starts_with_frame(data: bytes) -> bool:
  """Says whether these are the first bytes of a file of TFRecords.

  Those of another file pass with probability 1 in 4 billion.
  """
  return len(data) >= _HEADER.size and (
    masked_crc(data[:8]) == _HEADER.unpack_from(data)[1]
  )


def read_record(file: BinaryIO, offset: int, path: str | os.PathLike) -> bytes:
  """Returns the payload of the frame that starts at `offset`.

  Args:
    file: A TFRecord file that is not compressed.
    offset: Byte of the file.
    path: The file's path, for errors.

  Raises:
    UserError: If there is no whole frame, or it fails its checksum; names the
      file and the byte.
  """
  file.seek(offset)
  for _, payload in iterate_records(file, path, offset):
    return payload
  raise _damaged(path, offset, 'the file ends there')


def iterate_records(
  file: BinaryIO, path: str | os.PathLike, start: int = 0
) -> Iterator[tuple[int, bytes]]:
  """Yields (offset, payload) of every frame from byte `start` on, in order.

  See `read_record`; the file stands at that byte.

  Raises:
    UserError: If a frame is cut off or fails its checksum; names the file and
      the byte.
  """
  try:
    for offset, _, payload in read_frames(file):
      yield start + offset, payload
  except BrokenFrame as broken:
    raise _damaged(path, start + broken.offset, str(broken)) from broken


def example_entry(example: bytes) -> bytes:
  """Returns a serialized example as an entry of a group record's list."""
  return _value_header(None)(len(example)) + example


def _start_of_group_record(group_id, num_bytes, part):
  """Returns what precedes entries of so many bytes in all."""
  # The fields of a SequenceExample: 1 is the context, 2 the feature lists.
  context = _value_header(GROUP_ID_FEATURE)(len(group_id)) + group_id
  if part is not None:
    # Field 3 of a Feature is its Int64List.
    number = _varint(part)
    int64_list = _field_header(1, number, 0)
    feature = _field_header(3, int64_list, 0)
    context += _entry_header(PART_FEATURE, feature, 0)
  lists = _entry_header(EXAMPLES_FEATURE, b'', num_bytes)
  lists = _field_header(2, lists, num_bytes)
  start = _field_header(1, context, 0) + lists
  _check_size(len(start) + num_bytes)
  return start


def decode_group_record(payload: bytes) -> GroupRecord:
  """Returns the group record of a payload.

  Raises:
    ValueError: If the payload is no SequenceExample of this layout.
  """
  try:
    record = messages().SequenceExample.FromString(payload)
  except message.DecodeError as error:
    raise ValueError('not a SequenceExample') from error
  if EXAMPLES_FEATURE not in record.feature_lists.feature_list:
    raise ValueError(f'no feature list `{EXAMPLES_FEATURE}`')
  features = record.feature_lists.feature_list[EXAMPLES_FEATURE].feature
  context = record.context.feature
  group_id = part = None
  if GROUP_ID_FEATURE in context:
    group_id = _single_bytes(context[GROUP_ID_FEATURE], GROUP_ID_FEATURE)
  if PART_FEATURE in context:
    (part,) = context[PART_FEATURE].int64_list.value
  examples = [_single_bytes(feature, EXAMPLES_FEATURE) for feature in features]
  return GroupRecord(group_id, part, examples)


@functools.lru_cache(maxsize=64)
def example_encoder(
  feature_names: tuple[str, ...],
) -> Callable[[Sequence[bytes]], bytes]:
  """Returns what serializes a `tf.train.Example` of some bytes features.

  It takes the values in the order of `feature_names`, which are distinct. Equal
  features give equal bytes, whatever their order: names are sorted. It raises a
  ValueError if the example would take 2 GiB or more.
  """
  fields = [
    (feature_names.index(name), _value_header(name))
    for name in sorted(feature_names)
  ]

  def encode(values: Sequence[bytes]) -> bytes:
    pieces = [b'']
    num_bytes = 0
    for position, header_of in fields:
      value = values[position]
      header = header_of(len(value))
      pieces += header, value
      num_bytes += len(header) + len(value)
    if num_bytes:
      pieces[0] = _field_header(1, b'', num_bytes)
    _check_size(len(pieces[0]) + num_bytes)
    return b''.join(pieces)

  return encode


def decode_example(serialized: bytes) -> dict[str, bytes]:
  """Returns the bytes features of a serialized `tf.train.Example`, by name.

  Raises:
    ValueError: If it is no Example, or a feature is not one bytes value.
  """
  try:
    example = messages().Example.FromString(serialized)
  except message.DecodeError as error:
    raise ValueError('not a tf.train.Example') from error
  return {
    name: _single_bytes(feature, name)
    for name, feature in sorted(example.features.feature.items())
  }


# In what is stored nearly every `Feature` holds one bytes value. It is written
# as a header, which depends on the value's length only, and then the value.
# Joining headers and values gives the bytes that Protocol Buffers writes with
# `deterministic=True`, in a third of its time or less: it copies every value
# into a message first.


@functools.lru_cache(maxsize=64)
def _value_header(name: str | None) -> Callable[[int], bytes]:
  """Returns a function from a value's length to what precedes the value.

  The name is the feature's in the `Features` that hold the value; None stands
  for an element of a `FeatureList`, which has none.
  """

  @functools.lru_cache(_MAX_CACHED)
  def header(num_bytes: int) -> bytes:
    bytes_list = _field_header(1, b'', num_bytes)
    feature = _field_header(1, bytes_list, num_bytes)
    if name is None:
      return _field_header(1, feature, num_bytes)
    return _entry_header(name, feature, num_bytes)

  return header


def _entry_header(name: str, header: bytes, num_bytes: int) -> bytes:
  """Returns the head of an entry of a map that is field 1 of its message.

  `name` is its first field, the key; the content of its second field, the
  value, is `header` and `num_bytes` that follow.
  """
  key = _field_header(1, name.encode(), 0)
  return _field_header(1, key + _field_header(2, header, num_bytes), num_bytes)


def _field_header(number: int, header: bytes, num_bytes: int) -> bytes:
  """Returns the head of a field of `header` and `num_bytes` that follow.

  The field holds a message, a string or bytes; its number is at most 15.
  """
  return _TAGS[number] + _varint(len(header) + num_bytes) + header


@functools.lru_cache(_MAX_CACHED)
def _varint(number: int) -> bytes:
  """Returns a number, 0 or greater, in groups of seven bits, lowest first."""
  groups = bytearray()
  while number > 0x7F:
    groups.append(number & 0x7F | 0x80)
    number >>= 7
  groups.append(number)
  return bytes(groups)


def _check_size(num_bytes: int) -> None:
  """Raises ValueError if a message of that size could not be read again."""
  if num_bytes > _MAX_MESSAGE_BYTES:
    raise ValueError(
      f'a message must take less than 2 GiB, but this one takes {num_bytes} '
      'bytes: store fewer bytes in a record'
    )


def _single_bytes(feature: message.Message, name: str) -> bytes:
  values = feature.bytes_list.value
  if len(values) != 1:
    raise ValueError(f'feature `{name}` is not a single bytes value')
  return values[0]


def _damaged(path: str | os.PathLike, offset: int, found: str) -> UserError:
  return UserError(
    f'{str(path)!r} must hold whole TFRecords, but the one at byte {offset} '
    f'is damaged: {found}. Run `fedfish group` again, or copy the file again.'
  )
