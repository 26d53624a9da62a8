"""Client ids: a sequence that finds them among many, and one id as text."""

import pickle
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from tff_fedfish.data import client_ids
from tff_fedfish.data.client_ids import ClientIds

_CUTS = st.lists(st.integers(0, 40), max_size=3).map(sorted)


def _in_chunks(ids, cuts):
  """Returns client ids whose Arrow arrays are slices of one another."""
  array = pa.array(ids, pa.binary())
  limits = [0, *(min(cut, len(array)) for cut in cuts), len(array)]
  chunks = [
    array.slice(start, stop - start)
    for start, stop in zip(limits, limits[1:], strict=False)
  ]
  return ClientIds(chunks)


class TestClientIds:
  _IDS = [b'', b'a', b'a\0', b'b', b'\xff']

  def _ids(self):
    return ClientIds([pa.array(self._IDS, pa.binary())])

  def test_is_a_sequence(self):
    ids = self._ids()
    assert list(ids) == self._IDS
    assert len(ids) == 5
    assert ids[-1] == ids[np.int32(4)] == b'\xff'
    assert ids[1:4:2] == [b'a', b'b']
    assert list(reversed(ids)) == self._IDS[::-1]
    assert [ids.index(client_id) for client_id in self._IDS] == [0, 1, 2, 3, 4]
    assert list(pickle.loads(pickle.dumps(ids))) == self._IDS

  def test_finds_what_is_there_only(self):
    ids = self._ids()
    assert all(client_id in ids for client_id in self._IDS)
    absent = [b'A', b'a\1', b'aa', b'\xff\0', 'a', None]
    assert not any(client_id in ids for client_id in absent)
    for index in (5, -6):
      with pytest.raises(IndexError):
        ids[index]

  @hypothesis.given(
    st.dictionaries(st.binary(max_size=3), st.booleans()), _CUTS, st.slices(20)
  )
  def test_chosen_are_the_list_of_the_chosen(self, id_to_side, cuts, some):
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
    assert chosen != [*expected, b'']
    assert list(pickle.loads(pickle.dumps(chosen))) == expected
    with pytest.raises(IndexError):
      chosen[len(expected)]


class TestText:
  @pytest.mark.parametrize(
    'client_id, text, cell',
    [
      (b'www.example.org', 'www.example.org', None),
      ('bücher, "日本".de'.encode(), 'bücher, "日本".de', None),
      (b'%41', '%2541', None),
      (b'a\nb\r\x00\x7f', 'a%0Ab%0D%00%7F', None),
      (b'\xff\xc3(', '%FF%C3(', None),
      ('\u2028\u0085'.encode(), '%E2%80%A8%C2%85', None),
      (b'\xed\xa0\x80', '%ED%A0%80', None),  # A surrogate, which is not UTF-8.
      # Of formulas, the first character is written otherwise in a cell.
      (b"=cmd|' /C calc'!A0", "=cmd|' /C calc'!A0", "%3Dcmd|' /C calc'!A0"),
      (b'+1+1', '+1+1', '%2B1+1'),
      ('＝1'.encode(), '＝1', '%EF%BC%9D1'),
      (b'\t=1', '%09=1', None),
    ],
  )
  def test_by_hand(self, client_id, text, cell):
    assert client_ids.client_id_to_text(client_id) == text
    assert client_ids.client_id_to_cell(client_id) == (cell or text)

  @hypothesis.settings(max_examples=50)
  @hypothesis.given(
    st.sampled_from([b'', b'=', b'+', b'-', b'@', b'\t', '＠'.encode()]),
    st.binary()
    | st.text().map(lambda text: text.encode('utf-8', 'surrogatepass')),
  )
  def test_every_id_returns_and_is_one_line(self, start, rest):
    client_id = start + rest
    text = client_ids.client_id_to_text(client_id)
    cell = client_ids.client_id_to_cell(client_id)
    for written in (text, cell):
      assert client_ids.text_to_client_id(written) == client_id
      assert len(written.splitlines()) <= 1
      assert not any(unicodedata.category(c) in ('Cc', 'Cs') for c in written)
      written.encode('utf-8')
    assert not cell or cell[0] not in '=+-@\t\r＝＋－＠'

  @pytest.mark.parametrize('text', ['50% off', 'x%', 'x%4', '%G0'])
  def test_broken_escapes_are_errors(self, text):
    with pytest.raises(ValueError, match='two hexadecimal digits after %, f'):
      client_ids.text_to_client_id(text)
