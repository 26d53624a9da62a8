"""Frames and messages, against hand-made bytes and against TensorFlow."""

import hypothesis
import hypothesis.strategies as st
import pytest
from group_records import encode_example, encode_group_record, write_record

from tff_fedfish.data import records
from tff_fedfish.data.protos import messages
from tff_fedfish.data.records import GroupRecord
from tff_fedfish.errors import UserError

# Lengths on both sides of those at which a length takes another byte: 2^7, 2^14
# and 2^21, less what the messages around a value add.
_NEAR_LIMITS = st.one_of(
  st.integers(100, 130),
  st.integers(16_340, 16_390),
  st.integers((1 << 21) - 30, 1 << 21),
).map(lambda num_bytes: b'v' * num_bytes)
# None begins another: Protocol Buffers' writer in Python puts the longer of two
# such names first, its others the shorter, as we do.
_NAMES = st.text(st.characters(codec='utf-8', exclude_characters='.')).map(
  lambda name: f'{name}.'
)
_VALUES = st.binary() | _NEAR_LIMITS


def _example_message(features):
  """Returns the serialized Example as Protocol Buffers writes it."""
  example = messages().Example()
  for name, value in features.items():
    example.features.feature[name].bytes_list.value.append(value)
  return example.SerializeToString(deterministic=True)


def _group_message(group_id, examples, part):
  """Returns the serialized SequenceExample as Protocol Buffers writes it."""
  record = messages().SequenceExample()
  context = record.context.feature
  context['group_id'].bytes_list.value.append(group_id)
  if part is not None:
    context['part'].int64_list.value.append(part)
  features = record.feature_lists.feature_list['serialized_bytes'].feature
  for example in examples:
    features.add().bytes_list.value.append(example)
  return record.SerializeToString(deterministic=True)


def _write(path, payloads):
  with open(path, 'wb') as file:
    return [write_record(file, payload) for payload in payloads]


def _record_at(path, offset):
  with open(path, 'rb') as file:
    return records.read_record(file, offset, path)


def _records(path):
  with open(path, 'rb') as file:
    yield from records.iterate_records(file, path)


class TestFraming:
  def test_tensorflow_reads_our_frames_and_we_read_its(self, tmp_path):
    import tensorflow as tf

    payloads = [b'', b'one', b'\0' * 70_000]
    ours, theirs = tmp_path / 'ours', tmp_path / 'theirs'
    _write(ours, payloads)
    with tf.io.TFRecordWriter(str(theirs)) as writer:
      for payload in payloads:
        writer.write(payload)
    assert ours.read_bytes() == theirs.read_bytes()
    found = tf.data.TFRecordDataset(str(ours)).as_numpy_iterator()
    assert list(found) == payloads

  def test_reads_at_offset(self, tmp_path):
    path = tmp_path / 'a.tfrecord'
    # Frames of 16 + 2 and 16 + 5 bytes: the third begins at 18 + 21 = 39.
    _write(path, [b'ab', b'cdefg', b'hi'])
    assert _record_at(path, 18) == b'cdefg'
    assert _record_at(path, 39) == b'hi'
    assert [offset for offset, _ in _records(path)] == [0, 18, 39]

  @pytest.mark.parametrize(
    ('byte', 'found'),
    [
      (18, 'its length fails the checksum'),
      (18 + 9, 'its length fails the checksum'),
      (18 + 12, 'its content fails the checksum'),
      (18 + 18, 'its content fails the checksum'),
    ],
  )
  def test_flipped_bit_names_file_and_byte(self, tmp_path, byte, found):
    path = tmp_path / 'a.tfrecord'
    _write(path, [b'ab', b'cdefg', b'hi'])
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=f'a.tfrecord.* byte 18 .*: {found}'):
      _record_at(path, 18)
    with pytest.raises(UserError, match=f'byte 18 is damaged: {found}'):
      list(_records(path))

  @pytest.mark.parametrize('size', [19, 29, 31, 38])
  def test_cut_file_names_the_cut_record(self, tmp_path, size):
    path = tmp_path / 'a.tfrecord'
    _write(path, [b'ab', b'cdefg'])
    path.write_bytes(path.read_bytes()[:size])
    iterator = _records(path)
    assert next(iterator) == (0, b'ab')
    with pytest.raises(
      UserError, match='byte 18 is damaged: the record is cut'
    ):
      next(iterator)

  def test_offset_behind_the_end(self, tmp_path):
    path = tmp_path / 'a.tfrecord'
    _write(path, [b'ab'])
    words = 'the one at byte 18 is damaged: the file ends there'
    with pytest.raises(UserError, match=words):
      _record_at(path, 18)


class TestExample:
  @hypothesis.settings(max_examples=30)
  @hypothesis.given(st.dictionaries(_NAMES, _VALUES))
  def test_bytes_equal_those_of_the_message(self, features):
    expected = _example_message(features)
    assert encode_example(features) == expected
    assert records.decode_example(expected) == features
    encode = records.example_encoder(tuple(features))
    assert encode(list(features.values())) == expected

  def test_a_name_comes_before_those_that_it_begins(self):
    encoded = encode_example({'ab': b'', 'b': b'', 'a': b'', '': b''})
    # An entry ends in 12 04 (a Feature), 0a 02 (a BytesList), 0a 00 (a value).
    end = b'\x12\x04\x0a\x02\x0a\x00'
    entries = [b'\x0a\x08\x0a\0', b'\x0a\x09\x0a\1a', b'\x0a\x0a\x0a\2ab']
    entries.append(b'\x0a\x09\x0a\1b')
    # (2 + 8) + (2 + 9) + (2 + 10) + (2 + 9) bytes.
    assert encoded == b'\x0a\x2c' + b''.join(entry + end for entry in entries)
    # Whatever the order of the features.
    assert encoded == encode_example({'a': b'', '': b'', 'b': b'', 'ab': b''})

  @pytest.mark.parametrize('num_values', [0, 2])
  def test_not_a_single_value(self, num_values):
    example = messages().Example()
    example.features.feature['n'].bytes_list.value.extend([b''] * num_values)
    with pytest.raises(ValueError, match='`n` is not a single bytes value'):
      records.decode_example(example.SerializeToString())

  def test_not_an_example(self):
    with pytest.raises(ValueError, match='not a tf.train.Example'):
      records.decode_example(b'\xff\xff')


class TestGroupRecord:
  @hypothesis.settings(max_examples=30)
  @hypothesis.given(
    _VALUES,
    st.lists(_VALUES),
    st.none() | st.integers(0, 2**63 - 1),
  )
  def test_bytes_equal_those_of_the_message(self, group_id, examples, part):
    expected = _group_message(group_id, examples, part)
    assert encode_group_record(group_id, examples, part) == expected
    record = records.decode_group_record(expected)
    assert record == GroupRecord(group_id, part, examples)

  def test_no_record_reaches_2_gib(self):
    # Refused before it is put together: 2,048 times the same MiB. Around each
    # are 12 bytes: three times a tag and a length of 3 bytes.
    with pytest.raises(
      ValueError,
      match=f'less than 2 GiB, but this one takes {(1 << 31) + 2048 * 12 + 57}',
    ):
      encode_group_record(b'a', [bytes(1 << 20)] * 2048)
