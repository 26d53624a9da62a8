"""Parts of the model cards of all kinds of models, as Markdown."""

import dataclasses
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel

SAFETENSORS = """\
As arrays, from `model.safetensors`, whose metadata hold `config.json` as
`config`:

```python
from safetensors.numpy import load_file

weights = load_file('model.safetensors')
```
"""
"""How weights of any model are loaded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardKind:
  """Words of a card that differ between kinds of models."""

  title: str
  """Such as 'Language model'."""
  architecture: Callable[[TrainedModel], str]
  """Such as 'A decoder-only transformer'."""
  sizes: Callable[[TrainedModel], dict[str, Any]]
  """Heading -> value: what fixes the weights' shapes."""
  examples_name: str
  """Name of the clients' data, such as 'documents'."""
  corpus: Callable[[TrainedModel, RunFacts], str]
  """The corpus by name, with its origin if that is known."""
  data_remarks: Callable[[TrainedModel], Iterator[str]]
  """Owners of the examples, or how they are read."""
  unit: str
  """Unit over which a loss is the mean, such as 'token'."""
  settings: Callable[[TrainedModel], dict[str, Any]]
  """Setting -> value: those that only this kind reads."""
  score_remarks: tuple[str, ...] = ()
  """Meaning of the names of metrics."""
  content_name: str
  """Contents of the examples, such as 'texts'."""
  leak: str
  """Data that the model may reveal, as an item of a list."""
  loading: Callable[[TrainedModel, Sequence[str]], Iterator[str]]
  """How each of the formats that were written is loaded."""


def prose(text: str, *, mark: str = '') -> str:
  """Returns a paragraph in lines of at most 80 characters.

  Args:
    text: The paragraph.
    mark: What it begins with, such as '- '; its other lines are indented.
  """
  # Names, such as that of the corpus, have hyphens that are no syllables'.
  return textwrap.fill(
    text,
    80,
    initial_indent=mark,
    subsequent_indent=' ' * len(mark),
    break_long_words=False,
    break_on_hyphens=False,
  )


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
