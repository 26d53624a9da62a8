"""Text in plots: short, and without what the font lacks."""

import textwrap
from typing import Any

from matplotlib import font_manager, ft2font

from tff_fedfish.reporting.style import RC_PARAMS

MAX_CHARACTERS = 44
"""Characters of a label that fit below a figure."""


def drawable(text: str, max_characters: int) -> str:
  """Returns `text` for a plot: short, without what its font cannot draw.

  An ellipsis is the last character of what is cut; '?' stands for one that the
  font lacks.
  """
  font = ft2font.FT2Font(font_manager.findfont(RC_PARAMS['font.family']))
  if len(text) > max_characters:
    text = f'{text[: max_characters - 1]}…'
  return ''.join(
    c if c.isprintable() and font.get_char_index(ord(c)) else '?' for c in text
  )


def wrapped(text: str, width: int, max_lines: int) -> str:
  """Returns lines for a plot; an ellipsis stands for what is too much."""
  text = text.replace(' = ', '\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}')
  lines = textwrap.wrap(text, width, max_lines=max_lines, placeholder='…')
  return '\n'.join(drawable(' '.join(line.split()), width) for line in lines)


def of_series(name: str) -> str:
  """Returns a series' name in a legend."""
  # matplotlib leaves out what begins with an underscore.
  return drawable(f' {name}' if name.startswith('_') else name, 60)


def tick(place: Any) -> str:
  """Returns the name of a place on the horizontal axis."""
  return place if isinstance(place, str) else f'{place:g}'


def short_tick(value: float, _: int) -> str:
  """Returns a tick's label: 1, 10, and so on to 100,000, 1M, 10M."""
  for unit, suffix in ((10**9, 'G'), (10**6, 'M')):
    if value >= unit:
      return f'{value / unit:,.0f}{suffix}'
  return f'{value:,.0f}' if value >= 1 else ''
