"""Client ids, which are bytes, as text for people and CSV files."""

import re
import unicodedata
import urllib.parse

# Control characters, line and paragraph separators; and the surrogates that
# stand for bytes that are not UTF-8.
_ESCAPED_CATEGORIES = frozenset({'Cc', 'Zl', 'Zp', 'Cs'})
# Of a cell that a spreadsheet takes for a formula; also in full width.
_FORMULA_STARTS = ('=', '+', '-', '@', '＝', '＋', '－', '＠')
_BROKEN_ESCAPE = re.compile(r'%(?![0-9A-Fa-f]{2})')


def client_id_to_text(client_id: bytes) -> str:
  """Returns a client id as one line of text, reversibly.

  Valid UTF-8 stands for itself. Control characters, line separators, bytes
  that are not UTF-8, and the percent sign itself are written as `%XX`, one
  per byte.
  """
  text = client_id.decode('utf-8', 'surrogateescape')
  return ''.join(
    _escape(character)
    if character == '%'
    or unicodedata.category(character) in _ESCAPED_CATEGORIES
    else character
    for character in text
  )


def client_id_to_cell(client_id: bytes) -> str:
  """Returns a client id as a cell of a CSV file, reversibly.

  The text of `client_id_to_text`, in which a first character that would make
  it a formula of a spreadsheet is written as `%XX`, too: = + - @.
  """
  text = client_id_to_text(client_id)
  if text.startswith(_FORMULA_STARTS):
    text = _escape(text[0]) + text[1:]
  return text


def text_to_client_id(text: str) -> bytes:
  """Returns the client id that one of the two functions above wrote as `text`.

  Raises:
    ValueError: If a percent sign is not followed by two hexadecimal digits.
  """
  if _BROKEN_ESCAPE.search(text):
    raise ValueError(
      f'a client id must have two hexadecimal digits after %, found {text!r}'
    )
  return urllib.parse.unquote_to_bytes(text)


def _escape(character: str) -> str:
  data = character.encode('utf-8', 'surrogateescape')
  return ''.join(f'%{byte:02X}' for byte in data)
