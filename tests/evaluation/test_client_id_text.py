"""Tests of client ids as text."""

import unicodedata

import hypothesis
import pytest
from hypothesis import strategies as st

from tff_fedfish.evaluation import client_id_text


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
  assert client_id_text.client_id_to_text(client_id) == text
  assert client_id_text.text_to_client_id(text) == client_id


@hypothesis.given(
  st.one_of(
    st.binary(),
    st.text().map(lambda text: text.encode('utf-8', 'surrogatepass')),
  )
)
def test_every_id_returns_and_is_one_line(client_id):
  text = client_id_text.client_id_to_text(client_id)
  assert client_id_text.text_to_client_id(text) == client_id
  assert len(text.splitlines()) <= 1
  assert not any(unicodedata.category(c) in ('Cc', 'Cs') for c in text)
  text.encode('utf-8')


@pytest.mark.parametrize('text', ['50% off', 'x%', 'x%4', '%G0'])
def test_broken_escapes_are_errors(text):
  with pytest.raises(ValueError, match='two hexadecimal digits after %, found'):
    client_id_text.text_to_client_id(text)
