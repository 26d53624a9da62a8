"""The page docs/settings.md, from the declarations of the settings."""

from models.transformer_config import PRESETS
from tff_fedfish.config import names
from tff_fedfish.fields import docs_of
from tff_fedfish.methods.describe import settings_table

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

"""


def to_markdown() -> str:
  """Returns the page."""
  known, rows = {}, []
  for dotted, field in names.fields_of(None).items():
    section, _, name = dotted.partition('.')
    doc = docs_of(names.SECTIONS[section])[name]
    meaning = f'As `{known[name, doc]}`.' if (name, doc) in known else doc
    known.setdefault((name, doc), dotted)
    rows.append((names.SECTIONS[section], field, meaning))
  presets = '; '.join(
    f'`{name}` {sizes["num_layers"]}x{sizes["width"]}, {sizes["num_heads"]}, '
    f'{sizes["vocabulary_size"]}'
    for name, sizes in PRESETS.items()
  )
  return (
    _INTRODUCTION
    + settings_table(rows)
    + f'\n\nModel presets (layers x width, heads, vocabulary): {presets}.\n'
  )
