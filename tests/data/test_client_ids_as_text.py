"""Tests of client ids as text."""

import unicodedata

import hypothesis
import pytest
from hypothesis import strategies as st

from tff_fedfish.data import client_ids


@pytest.mark.parametrize(
  'client_id, text',
  [
    (b'www.example.org', 'www.example.org'),
    ('bücher, "日本".de'.encode(), 'bücher, "日本".de'),
    (b'', ''),
    (b'100%', '100%25'),
    (b'%41', '%2541'),
    (b'a\nb\r\x00\x7f', 'a%0Ab%0D%00%7F'),
    (b'\xff\xc3(', '%FF%C3('),
    ('\u2028\u0085'.encode(), '%E2%80%A8%C2%85'),
    (b'\xed\xa0\x80', '%ED%A0%80'),  # A surrogate, which is not UTF-8.
  ],
)
def test_by_hand(client_id, text):
  assert client_ids.client_id_to_text(client_id) == text
  assert client_ids.text_to_client_id(text) == client_id


@hypothesis.given(
  st.one_of(
    st.binary(),
    st.text().map(lambda text: text.encode('utf-8', 'surrogatepass')),
  )
)
def test_every_id_returns_and_is_one_line(client_id):
  text = client_ids.client_id_to_text(client_id)
  assert client_ids.text_to_client_id(text) == client_id
  assert len(text.splitlines()) <= 1
  assert not any(unicodedata.category(c) in ('Cc', 'Cs') for c in text)
  text.encode('utf-8')


@pytest.mark.parametrize(
  'client_id, cell',
  [
    (b"=cmd|' /C calc'!A0", "%3Dcmd|' /C calc'!A0"),
    (b'+1+1', '%2B1+1'),
    (b'@SUM(1)', '%40SUM(1)'),
    (b'-2+3', '%2D2+3'),
    ('＝1'.encode(), '%EF%BC%9D1'),
    # Control characters are escaped anyway.
    (b'\t=1', '%09=1'),
    (b'\r=1', '%0D=1'),
    # Only the first character makes a formula.
    (b'a=1', 'a=1'),
    (b'', ''),
  ],
)
def test_cells_are_no_formulas(client_id, cell):
  assert client_ids.client_id_to_cell(client_id) == cell
  assert client_ids.text_to_client_id(cell) == client_id


@hypothesis.given(
  st.sampled_from([b'', b'=', b'+', b'-', b'@', b'\t', b'\r', '＠'.encode()]),
  st.binary(),
)
def test_every_id_returns_from_a_cell(start, rest):
  client_id = start + rest
  cell = client_ids.client_id_to_cell(client_id)
  assert not cell or cell[0] not in '=+-@\t\r＝＋－＠'
  assert client_ids.text_to_client_id(cell) == client_id
  # What stood in files before there were cells.
  text = client_ids.client_id_to_text(client_id)
  assert client_ids.text_to_client_id(text) == client_id


@pytest.mark.parametrize('text', ['50% off', 'x%', 'x%4', '%G0'])
def test_broken_escapes_are_errors(text):
  with pytest.raises(ValueError, match='two hexadecimal digits after %, found'):
    client_ids.text_to_client_id(text)
