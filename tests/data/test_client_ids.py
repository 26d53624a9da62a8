"""Client ids are a sequence, and found among many."""

import hashlib
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from tff_fedfish.data.client_ids import ClientIds


def _in_chunks(ids, cuts):
  """Returns client ids whose Arrow arrays are slices of one another."""
  array = pa.array(ids, pa.binary())
  limits = [0, *(min(cut, len(array)) for cut in cuts), len(array)]
  chunks = [
    array.slice(start, stop - start)
    for start, stop in zip(limits, limits[1:], strict=False)
  ]
  return ClientIds(pa.chunked_array(chunks, pa.binary()))


class TestClientIds:
  _IDS = [b'', b'a', b'a\0', b'b', b'\xff']

  def _ids(self):
    return ClientIds(pa.array(self._IDS, pa.binary()))

  def test_is_a_sequence(self):
    ids = self._ids()
    assert list(ids) == self._IDS
    assert len(ids) == 5
    assert ids[-1] == b'\xff'
    assert ids[1:4:2] == [b'a', b'b']
    assert list(reversed(ids)) == self._IDS[::-1]
    assert [ids.index(client_id) for client_id in self._IDS] == [0, 1, 2, 3, 4]

  def test_finds_what_is_there_only(self):
    ids = self._ids()
    assert all(client_id in ids for client_id in self._IDS)
    absent = [b'A', b'a\1', b'aa', b'\xff\0', 'a', None]
    assert not any(client_id in ids for client_id in absent)

  @pytest.mark.parametrize('index', [5, -6])
  def test_index_out_of_range(self, index):
    with pytest.raises(IndexError, match=f'{index} is out of range for 5'):
      self._ids()[index]

  def test_index_of_an_unknown_client(self):
    with pytest.raises(ValueError, match="b'c' is not a client id"):
      self._ids().index(b'c')
    with pytest.raises(ValueError, match="b'a' is not a client id"):
      self._ids().index(b'a', 2)

  @hypothesis.given(
    st.sets(st.binary(max_size=3)).map(sorted),
    st.lists(st.integers(0, 40), max_size=3).map(sorted),
    st.lists(st.binary(max_size=3)),
  )
  def test_is_the_list_of_its_ids(self, expected, cuts, others):
    ids = _in_chunks(expected, cuts)
    assert list(ids) == expected == [ids[i] for i in range(len(ids))]
    for client_id in [*expected, *others]:
      found = expected.index(client_id) if client_id in expected else None
      assert ids.position(client_id) == found

  def test_finds_among_many(self):
    # More than are between two of the ids that are held as objects.
    expected = [b'%06d' % number for number in range(0, 4000, 2)]
    ids = ClientIds(pa.array(expected, pa.binary()))
    assert [ids.position(client_id) for client_id in expected] == list(
      range(2000)
    )
    assert not any(b'%06d' % number in ids for number in range(1, 4000, 2))
    assert list(pickle.loads(pickle.dumps(ids))) == expected

  @hypothesis.given(
    st.sets(st.binary(max_size=9)).map(sorted),
    st.lists(st.integers(0, 40), max_size=3).map(sorted),
  )
  def test_hash_is_that_of_a_loop(self, expected, cuts):
    self._assert_hash(expected, cuts)

  def test_hash_of_many(self):
    # Three times as many as are hashed at once, and a rest.
    self._assert_hash(
      [b'%06d' % i + b'x' * (i % 50) for i in range(30_000)], [7]
    )

  def _assert_hash(self, expected, cuts):
    one, other = hashlib.sha256(), hashlib.sha256()
    _in_chunks(expected, cuts).add_to_hash(one)
    for client_id in expected:
      other.update(len(client_id).to_bytes(8, 'big') + client_id)
    assert one.digest() == other.digest()


class TestChosenIds:
  @hypothesis.given(
    st.dictionaries(st.binary(max_size=3), st.booleans()),
    st.lists(st.integers(0, 40), max_size=3).map(sorted),
    st.slices(20),
  )
  def test_is_the_list_of_the_chosen(self, id_to_side, cuts, some):
    ids = sorted(id_to_side)
    expected = [i for i in ids if id_to_side[i]]
    mask = np.array([id_to_side[i] for i in ids], bool)
    chosen = _in_chunks(ids, cuts).where(mask)
    assert len(chosen) == len(expected)
    assert list(chosen) == expected
    assert [chosen[i] for i in range(len(chosen))] == expected
    assert chosen[some] == expected[some]
    assert {i for i in ids if i in chosen} == set(expected)
    assert None not in chosen
    assert chosen == expected
    assert expected == chosen
    assert chosen != [*expected, b'']
    assert list(pickle.loads(pickle.dumps(chosen))) == expected

  def test_index_out_of_range(self):
    chosen = _in_chunks([b'a', b'b'], []).where(np.array([False, True]))
    assert chosen[-1] == b'b'
    with pytest.raises(IndexError):
      chosen[1]
