"""The page docs/settings.md, from the declarations of the settings."""

import dataclasses
import re
import types
import typing

from models.transformer_config import PRESETS
from tff_fedfish.config import names
from tff_fedfish.fields import SET, docs_of, readers_of

_INTRODUCTION = """\
# Settings

A config is a Python file whose `get_config()` returns a dictionary of sections
and settings, or the `config.json` of a run. `--config demo` names a shipped one
(`fedfish configs` lists them), `--config mine` the file `mine.py`. The file is
a program that `--config FILE` runs: read a file from somebody else first. To
change some settings of a shipped one:

```python
from tff_fedfish.config.given import base


def get_config():
  return base('demo', {'training.num_rounds': 60, 'server.learning_rate': 3e-3})
```

On the command line `--config.section.setting=value` overrides a setting. Types
and ranges are checked first, and all problems are reported at once; then
contradictions between settings, again all at once. An optimizer that is changed
without its learning rate takes
[its default](optimizers.md#default-learning-rates).
`--dry_run` prints the resolved config, the number of parameters and the cost of
a round, and names all that the run would refuse.

The table lists the settings of all methods; [methods.md](methods.md) has each
method's own, `algorithm.*`. A config may hold settings of several methods:
those that its method does not read are left out, and named. A setting that its
conditions leave unread must keep its default.

| setting | default | values | meaning |
|---|---|---|---|
"""
_BOUNDS = {'at_least': '>=', 'above': '>', 'at_most': '<=', 'below': '<'}


def to_markdown() -> str:
  """Returns the page."""
  known, rows = {}, []
  for dotted, field in names.fields_of(None).items():
    section, _, name = dotted.partition('.')
    doc = docs_of(names.SECTIONS[section])[name]
    meaning = f'As `{known[name, doc]}`.' if (name, doc) in known else doc
    known.setdefault((name, doc), dotted)
    rows.append(
      f'| `{dotted}` | {_default(field)} | {_values(field)} | '
      f'{_linked(meaning)}{_conditions(names.SECTIONS[section], field)} |'
    )
  presets = '; '.join(
    f'`{name}` {sizes["num_layers"]}x{sizes["width"]}, {sizes["num_heads"]}, '
    f'{sizes["vocabulary_size"]}'
    for name, sizes in PRESETS.items()
  )
  return (
    _INTRODUCTION
    + '\n'.join(rows)
    + f'\n\nModel presets (layers x width, heads, vocabulary): {presets}.\n'
  )


def _default(field):
  if field.default is dataclasses.MISSING:
    return 'required'
  return f'`{field.default}`'


def _values(field):
  choices = typing.get_args(field.type)
  if typing.get_origin(field.type) is typing.Literal:
    return ', '.join(f'`{choice}`' for choice in choices)
  is_optional = isinstance(field.type, types.UnionType)
  kind = choices[0] if is_optional else field.type
  bounds = [
    f'{sign} {field.metadata[name]}'
    for name, sign in _BOUNDS.items()
    if field.metadata.get(name) is not None
  ]
  text = {bool: '`True`, `False`', float: 'number'}.get(kind, kind.__name__)
  values = f'{text} {", ".join(bounds)}'.strip()
  return values + ' or `None`' * is_optional


def _linked(doc):
  """Returns text whose `docs/PAGE.md` are links from within docs/."""
  return re.sub(r'docs/(\w+\.md)', r'[\1](\1)', doc)


def _conditions(section_class, field):
  sentences = []
  for key, wanted in readers_of(section_class, field).items():
    verb = 'Required and read' if field.metadata['required'] else 'Read'
    values = 'set' if wanted is SET else ', '.join(map(repr, wanted))
    sentences.append(f' {verb} only with `{key}` {values}.')
  if field.metadata.get('may_change'):
    sentences.append(' May change when a run is resumed.')
  return ''.join(sentences)
