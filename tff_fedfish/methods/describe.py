"""Descriptions of methods: as JSON values and as Markdown."""

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from tff_fedfish.config_fields import Section
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.registry import settings_of
from tff_fedfish.methods.settings import AlgorithmConfig, kind_of

_COMMAND = 'fedfish train --config demo --workdir runs/NAME'


def to_json_dict(method: Method) -> dict[str, Any]:
  """Returns a method's description as JSON values.

  Returns:
    name, title, summary, source, `settings` (name, kind, choices, bounds,
    default, doc), and `traffic`: models up and down per client and round, with
    the default settings.
  """
  return {
    'name': method.name,
    'title': method.title,
    'summary': method.summary,
    'source': method.source,
    'settings': [_setting(method.settings, f) for f in _own_fields(method)],
    'shared_settings': [_setting(AlgorithmConfig, f) for f in _shared_fields()],
    'traffic': method.traffic(method.settings(name=method.name))._asdict(),
  }


def to_markdown(methods: typing.Iterable[Method]) -> str:
  """Returns a page with a section for each method."""
  shared = [_setting(AlgorithmConfig, field) for field in _shared_fields()]
  parts = [
    '# Methods',
    '`fedfish methods --markdown` prints this page. `algorithm.name` chooses a '
    'method, and with it the settings of the section `algorithm`. All methods '
    'read these:',
    _table(shared),
    'A method of your own is a module that holds METHOD; '
    '[CONTRIBUTING.md](../CONTRIBUTING.md) shows one.',
    *(section(method, method.name) for method in methods),
  ]
  return '\n\n'.join(parts) + '\n'


def docs_of(section_class: type[Section]) -> dict[str, str]:
  """Returns the docstring under each field of a config's section, by name."""
  docs = {}
  for cls in reversed(section_class.__mro__):
    if not dataclasses.is_dataclass(cls):
      continue
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    for field, text in zip(body, body[1:], strict=False):
      if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
        # ast.Expr after a field is its docstring.
        docs[field.target.id] = ' '.join(str(text.value.value).split())
  return docs


def section(method: Method, name: str) -> str:
  """Returns the section of one method in Markdown.

  Args:
    method: The method.
    name: Value of `algorithm.name` that chooses it.
  """
  return '\n\n'.join(_paragraphs(method, name))


def _paragraphs(method, name) -> Iterator[str]:
  traffic = method.traffic(method.settings(name=method.name))
  yield f'## {method.title} (`{name}`)'
  yield method.summary
  yield (
    f'Models per client and round: {traffic.uplink:g} up, '
    f'{traffic.downlink:g} down. Source: {method.source}.'
  )
  settings = [_setting(method.settings, field) for field in _own_fields(method)]
  if settings:
    yield _table(settings)
  yield f'```\n{_COMMAND} --config.algorithm.name={name}\n```'


def _own_fields(method):
  shared = {field.name for field in _shared_fields()} | {'name'}
  return [f for n, f in settings_of(method).items() if n not in shared]


def _shared_fields():
  fields = dataclasses.fields(AlgorithmConfig)
  return [field for field in fields if field.name != 'name']


def _setting(section_class, field) -> dict[str, Any]:
  kind = kind_of(field)
  bounds = {k: v for k, v in field.metadata.items() if v is not None}
  return {
    'name': field.name,
    'kind': kind,
    **({'choices': _choices(field.type)} if kind == 'choice' else {}),
    **bounds,
    'default': field.default,
    'doc': docs_of(section_class).get(field.name, ''),
  }


def _choices(annotation) -> list[str]:
  found = typing.get_args(annotation)
  return [c for c in found if isinstance(c, str)] or _choices(found[0])


def _table(settings) -> str:
  rows = ['| setting | default | values | meaning |', '|---|---|---|---|']
  for setting in settings:
    values = ', '.join(f'`{c}`' for c in setting.get('choices', ()))
    doc = setting['doc'].replace('|', '\\|')
    rows.append(
      f'| `algorithm.{setting["name"]}` | `{setting["default"]}` | '
      f'{values or setting["kind"]} | {doc} |'
    )
  return '\n'.join(rows)
