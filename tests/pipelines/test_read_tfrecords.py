"""Examples of whole, cut and corrupt TFRecord files."""

import gzip
import io

import hypothesis
import hypothesis.strategies as st
import pytest
from group_records import encode_example, write_record

from pipelines.objects import read_objects
from pipelines.read_examples import decode_features
from pipelines.source import Drop
from tff_fedfish.data.protos import messages

_ROWS = [{'text': f'text {i} ' * i, 'url': f'u{i}'} for i in range(50)]


def _encode(row):
  return encode_example({k: v.encode() for k, v in row.items()})


def _frames(payloads):
  file = io.BytesIO()
  for payload in payloads:
    write_record(file, payload)
  return file.getvalue()


_DATA = _frames(map(_encode, _ROWS))
# Where each frame starts, and the end of the last.
_OFFSETS = [len(_frames(map(_encode, _ROWS[:i]))) for i in range(51)]


def _read(path, data, max_document_bytes=1000):
  """Returns (rows or reasons, the last Drop or None)."""
  path.write_bytes(data)
  found = list(read_objects(str(path), max_document_bytes))
  assert [num for num, _ in found] == [*range(1, len(found) + 1)]
  values = [
    value.reason if isinstance(value, Drop) else value for _, value in found
  ]
  drops = [value for _, value in found if isinstance(value, Drop)]
  return values, drops[-1] if drops else None


@pytest.mark.parametrize('pack', [bytes, gzip.compress])
def test_rows(tmp_path, pack):
  assert _read(tmp_path / 'a', pack(_DATA)) == (_ROWS, None)


def test_kinds_of_values():
  example = messages().Example()
  features = example.features.feature
  features['one'].bytes_list.value.append('é'.encode())
  features['two'].bytes_list.value.extend([b'a', b'b'])
  features['number'].int64_list.value.append(-3)
  features['numbers'].float_list.value.extend([0.5, 2])
  features['none'].bytes_list.SetInParent()
  features['nothing'].SetInParent()
  assert decode_features(example.SerializeToString()) == {
    'one': 'é',
    'two': ['a', 'b'],
    'number': -3,
    'numbers': [0.5, 2.0],
  }


def test_payloads_that_are_no_text(tmp_path):
  bad = encode_example({'text': b'a\xff'})
  data = _frames([bad, _encode(_ROWS[1]), b'\xff\xff', b''])
  values, drop = _read(tmp_path / 'a', data)
  assert values == ['invalid_utf8', _ROWS[1], 'malformed_example', {}]
  assert (drop.damage, drop.excerpt) == (False, b'\xff\xff')


# Longer than three times 1,000 and 1 MiB.
_LONG = b'x' * (1_100_000)


def test_long_record_is_skipped(tmp_path):
  data = _frames([_LONG, _encode(_ROWS[1]), _LONG])
  values, drop = _read(tmp_path / 'a', data)
  assert values == ['document_too_large', _ROWS[1], 'document_too_large']
  assert drop.excerpt == b'x' * 200


@pytest.mark.parametrize('num_bytes', [1, 11, 12, 15, 1_100_011, 1_100_015])
def test_cut_long_record(tmp_path, num_bytes):
  good = _frames([_encode(_ROWS[1])])
  data = good + _frames([_LONG])[:num_bytes]
  values, drop = _read(tmp_path / 'a', data)
  assert values == [_ROWS[1], 'truncated_file']
  assert drop.damage


@hypothesis.given(size=st.integers(12, len(_DATA) - 1))
def test_cut_file(tmp_path_factory, size):
  values, drop = _read(tmp_path_factory.getbasetemp() / 'cut', _DATA[:size])
  num_whole = sum(offset <= size for offset in _OFFSETS) - 1
  if size in _OFFSETS:
    assert (values, drop) == (_ROWS[:num_whole], None)
  else:
    assert values == [*_ROWS[:num_whole], 'truncated_file']
    assert drop.damage


def test_damage_of_the_packing(tmp_path):
  packed = gzip.compress(_DATA)[:-1]
  values, drop = _read(tmp_path / 'a', packed)
  assert values == [*_ROWS, 'truncated_file']
  assert drop.damage
