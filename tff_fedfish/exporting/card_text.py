"""What the model cards of all kinds of models are made of, as Markdown."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

SAFETENSORS = """\
As arrays, from `model.safetensors`, whose metadata hold `config.json` as
`config`:

```python
from safetensors.numpy import load_file

weights = load_file('model.safetensors')
```
"""
"""How weights of any model are loaded."""


def prose(text: str) -> str:
  """Returns a paragraph, broken into lines of at most 80 characters."""
  # Names, such as that of the corpus, have hyphens that are no syllables'.
  return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """Returns a table; cells that are no text as they look in a config."""
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join(
    f'| {" | ".join(_cell(value) for value in line)} |' for line in lines
  )


def _cell(value: Any) -> str:
  if isinstance(value, str):
    return value.replace('|', '\\|')
  if isinstance(value, int) and not isinstance(value, bool):
    return f'{value:,}'
  return json.dumps(value)
