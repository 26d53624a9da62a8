"""Frames and messages, against hand-made bytes and against TensorFlow."""

import struct

import google_crc32c
import hypothesis
import hypothesis.strategies as st
import pytest

from tff_fedfish.data import records
from tff_fedfish.data.records import GroupRecord
from tff_fedfish.errors import UserError


def _write(path, payloads):
  with open(path, 'wb') as file:
    return [records.write_record(file, payload) for payload in payloads]


class TestFraming:
  def test_frame_by_hand(self, tmp_path):
    # 3 payload bytes: 8 (length) + 4 (its sum) + 3 + 4 (payload's sum) = 19.
    path = tmp_path / 'a.tfrecord'
    assert _write(path, [b'abc']) == [19]
    frame = path.read_bytes()
    assert frame[:8] == b'\x03\0\0\0\0\0\0\0'
    assert frame[12:15] == b'abc'
    crc = google_crc32c.value(b'abc')
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    assert struct.unpack('<I', frame[15:]) == (masked,)

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
    assert records.read_record(path, 18) == b'cdefg'
    assert records.read_record(path, 39) == b'hi'
    assert [offset for offset, _ in records.iterate_records(path)] == [
      0,
      18,
      39,
    ]

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
      records.read_record(path, 18)
    with pytest.raises(UserError, match=f'byte 18 is damaged: {found}'):
      list(records.iterate_records(path))

  @pytest.mark.parametrize('size', [19, 29, 31, 38])
  def test_cut_file_names_the_cut_record(self, tmp_path, size):
    path = tmp_path / 'a.tfrecord'
    _write(path, [b'ab', b'cdefg'])
    path.write_bytes(path.read_bytes()[:size])
    iterator = records.iterate_records(path)
    assert next(iterator) == (0, b'ab')
    with pytest.raises(
      UserError, match='byte 18 is damaged: the record is cut'
    ):
      next(iterator)

  def test_offset_behind_the_end(self, tmp_path):
    path = tmp_path / 'a.tfrecord'
    _write(path, [b'ab'])
    with pytest.raises(UserError, match='byte 18 is damaged: the file ends'):
      records.read_record(path, 18)


class TestExample:
  @hypothesis.given(st.dictionaries(st.text(), st.binary()))
  def test_round_trip(self, features):
    assert records.decode_example(records.encode_example(features)) == features

  def test_bytes_do_not_depend_on_feature_order(self):
    forward = {'text': b'a', 'url': b'b', 'author': b''}
    backward = dict(reversed(forward.items()))
    assert records.encode_example(forward) == records.encode_example(backward)

  def test_bytes_equal_tensorflows(self):
    import tensorflow as tf

    features = {'url': b'\xff\0', 'text': b'', 'timestamp': b'2'}
    example = tf.train.Example()
    for name, value in features.items():
      example.features.feature[name].bytes_list.value.append(value)
    expected = example.SerializeToString(deterministic=True)
    assert records.encode_example(features) == expected

  @pytest.mark.parametrize('num_values', [0, 2])
  def test_not_a_single_value(self, num_values):
    import tensorflow as tf

    example = tf.train.Example()
    example.features.feature['n'].bytes_list.value.extend([b''] * num_values)
    with pytest.raises(ValueError, match='`n` is not a single bytes value'):
      records.decode_example(example.SerializeToString())

  def test_not_an_example(self):
    with pytest.raises(ValueError, match='not a tf.train.Example'):
      records.decode_example(b'\xff\xff')


class TestGroupRecord:
  @hypothesis.given(
    st.binary(),
    st.lists(st.binary()),
    st.none() | st.integers(0, 2**31),
  )
  def test_round_trip(self, group_id, examples, part):
    payload = records.encode_group_record(group_id, examples, part)
    found = records.decode_group_record(payload)
    assert found == GroupRecord(group_id, part, examples)

  def test_bytes_equal_tensorflows(self):
    import tensorflow as tf

    record = tf.train.SequenceExample()
    context = record.context.feature
    context['part'].int64_list.value.append(300)
    context['group_id'].bytes_list.value.append(b'\xe9')
    features = record.feature_lists.feature_list['serialized_bytes'].feature
    for example in (b'a', b''):
      features.add().bytes_list.value.append(example)
    expected = record.SerializeToString(deterministic=True)
    assert records.encode_group_record(b'\xe9', [b'a', b''], 300) == expected

  def test_file_of_something_else(self, tmp_path):
    path = tmp_path / 'a.tfrecord'
    _write(path, [records.encode_example({'text': b'a'})])
    with pytest.raises(
      UserError,
      match='a.tfrecord.*`serialized_bytes`, but the record at byte 0',
    ):
      list(records.read_group_records(path))
