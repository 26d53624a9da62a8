"""The text of a piece of HTML, one line per block, as C4 stores pages.

Made for the bodies of posts: well-formed for the most part, but nothing is
taken for granted. The work is linear in the length of the input, whatever it
holds. That of `html.parser` is quadratic in places, and three times as much for
real posts.
"""

import html
import re

# A tag reaches to its `>`, which may stand inside quotes before that. No part
# of a tag may hold a `<`: so no byte is looked at from more than one `<`, and a
# `<` that begins no tag is text.
_TAG = re.compile(
  r"""
  < ( [/!?]? [a-zA-Z] [a-zA-Z0-9]*+ )
  (?: (?: [^<>"']++ | "[^"<]*+" | '[^'<]*+' )*+ > | [^<>]*+ > )
  """,
  re.VERBOSE,
)

# Their tags, opening and closing, end a line. What is not listed, such as `a`,
# `code` and `em`, stands within a line.
_BLOCKS = frozenset(
  'address article aside blockquote body br caption center dd details div dl '
  'dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr '
  'html li main nav ol option p pre section summary table tbody tfoot thead '
  'title tr ul'.split()
)
_CELLS = ('td', 'th')
_NO_TEXT = ('script', 'style')

_LEADING_ZEROS = re.compile('&#0+(?=[0-9])')
_LARGE_REFERENCE = re.compile('&#[0-9]{8,};?')


def html_to_text(source: str) -> str:
  r"""Returns the text of a piece of HTML.

  Paragraphs, list items, headings, rows of tables and the like become lines,
  without empty ones between them. White space within a line becomes one space;
  inside `pre` it stays. References such as `&amp;` become characters. Comments,
  `script`, `style` and images leave nothing. What is no proper tag is text.

  Args:
    source: Any text.
  """
  lines: list[str] = []
  pieces: list[str] = []
  pre_depth = 0
  hidden_by = None
  # [text, tag, text, tag, ..., text]
  parts = _TAG.split(_without_comments(source))
  for i in range(0, len(parts) - 1, 2):
    tag = parts[i + 1].lower()
    if hidden_by is not None:
      if tag == f'/{hidden_by}':
        hidden_by = None
      continue
    pieces.append(parts[i])
    name = tag.removeprefix('/')
    if name in _CELLS:
      pieces.append(' ')
    elif tag in _NO_TEXT:
      hidden_by = tag
    elif pre_depth and tag == 'br':
      pieces.append('\n')
    elif name in _BLOCKS:
      _end_line(lines, pieces, pre_depth > 0)
      if tag == 'pre':
        pre_depth += 1
      elif tag == '/pre' and pre_depth:
        pre_depth -= 1
  if hidden_by is None:
    pieces.append(parts[-1])
  _end_line(lines, pieces, pre_depth > 0)
  return '\n'.join(lines)


def _without_comments(source: str) -> str:
  """Takes comments out; one without an end is text."""
  kept, end = [], 0
  while (start := source.find('<!--', end)) >= 0:
    after = source.find('-->', start + 4)
    if after < 0:
      break
    kept.append(source[end:start])
    end = after + 3
  return ''.join(kept) + source[end:]


def _end_line(lines: list[str], pieces: list[str], is_pre: bool) -> None:
  """Moves the pieces to the lines, if they hold more than white space."""
  text = ''.join(pieces)
  pieces.clear()
  if not text or text.isspace():
    return
  text = _unescape(text)
  if is_pre:
    text = text.replace('\r\n', '\n').strip('\n')
  else:
    text = ' '.join(text.split())
  # A reference such as `&nbsp;` may be white space too.
  if text and not text.isspace():
    lines.append(text)


def _unescape(text: str) -> str:
  try:
    return html.unescape(text)
  except ValueError:
    # Python makes no number of more than some thousand digits.
    text = _LEADING_ZEROS.sub('&#', text)
    return html.unescape(_LARGE_REFERENCE.sub('\ufffd', text))
