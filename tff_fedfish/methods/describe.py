"""Descriptions of methods: as JSON values and as Markdown."""

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Iterable
from typing import Any

from models.image_model_config import EMNIST_SHAPE, ImageModelConfig
from tff_fedfish.errors import UserError
from tff_fedfish.fields import SET, Section, docs_of, readers_of
from tff_fedfish.methods.method import Method, kept_models, kind_of, own_fields

# Of one-shot methods traffic depends on the model's layers.
_EXAMPLE = ImageModelConfig(
  name='lenet', num_classes=10, image_shape=EMNIST_SHAPE
)
_BOUNDS = {'at_least': '>=', 'above': '>', 'at_most': '<=', 'below': '<'}
_COMMAND = (
  'fedfish train --config {} --workdir runs/NAME --config.algorithm.name={}'
)


def to_json_dict(method: type[Method]) -> dict[str, Any]:
  """Returns a method's description as JSON values.

  Returns:
    name, title, summary, source, `settings` (name, kind, choices, bounds,
    default, doc), `traffic`: models up and down per client and round, and
    `slots`: what a client keeps, both with the default settings.

  Raises:
    UserError: If the traffic depends on other sections.
  """
  settings = method()
  config = types.SimpleNamespace(
    algorithm=settings, method=settings, model_shape=lambda: _EXAMPLE
  )
  try:
    traffic = settings.traffic(config)
    slots = kept_models(config)
  except AttributeError as error:
    raise UserError(
      f'`traffic` and `kept` of the method {method.name!r} must read '
      '`config.algorithm` and `config.model_shape()` only, but raised '
      f'{error}.'
    ) from error
  return {
    'name': method.name,
    'title': method.title,
    'summary': summary_of(method),
    'source': method.source,
    'settings': _own_settings(method),
    'shared_settings': _shared_settings(),
    'traffic': traffic._asdict(),
    'slots': [{'name': n, 'num_models': m} for n, m in slots.items()],
  }


def summary_of(method: type[Method]) -> str:
  """Returns a method's docstring in one line."""
  return ' '.join(method.__doc__.split())


def to_markdown(methods: Iterable[type[Method]]) -> str:
  """Returns a page with a section for each method."""
  parts = [
    '# Methods',
    '`algorithm.name` chooses a method, and with it the settings of the '
    'section `algorithm`. `fedfish methods NAME` prints one with a command. '
    'All methods read these:',
    _table(Method, ['client_weighting']),
    'A method of your own is a module with one class; '
    '[CONTRIBUTING.md](../CONTRIBUTING.md) shows one.',
  ]
  described = {}
  for method in methods:
    known = [s for s in _own_settings(method) if described.get(_key(s))]
    parts += _facts(method, method.name, [s['name'] for s in known])
    if known:
      names = ', '.join(f'`algorithm.{s["name"]}`' for s in known)
      parts.append(f'{names}: see {described[_key(known[0])]}.')
    for setting in _own_settings(method):
      described.setdefault(_key(setting), method.title)
  return '\n\n'.join(parts) + '\n'


def section(method: type[Method], name: str) -> str:
  """Returns a method in Markdown, with a command that trains with it."""
  command = f'```\n{_COMMAND.format(method.example, name)}\n```'
  return '\n\n'.join([*_facts(method, name), command])


def _facts(method, name, left_out=()):
  """Returns the paragraphs of a method; some settings may be left out."""
  found = to_json_dict(method)
  uplink, downlink = found['traffic'].values()
  depends_on_model = bool(method.solve) or uplink != round(uplink)
  names = [s['name'] for s in found['settings']]
  shown = [n for n in names if n not in left_out]
  return [
    f'## {method.title} (`{name}`)',
    summary_of(method),
    f'Models per client and round{" (LeNet)" * depends_on_model}: '
    f'{uplink:.4g} up, {downlink:.4g} down.{_keeps(found["slots"])} Source: '
    f'{method.source}.',
    *([_table(method, shown)] if shown else []),
  ]


def _own_settings(method):
  return _settings(method, own_fields(method))


def _key(setting):
  return setting['name'], setting['doc']


def _keeps(slots) -> str:
  if not slots:
    return ''
  kept = ', '.join(f'{s["name"]} ({s["num_models"]:.4g})' for s in slots)
  return (
    f' Models that a client keeps: {kept}; see '
    '[client states](client_states.md).'
  )


def _shared_settings() -> list[dict[str, Any]]:
  fields = dataclasses.fields(Method)
  return _settings(Method, [f for f in fields if f.name != 'name'])


def _settings(section_class, fields) -> list[dict[str, Any]]:
  docs = docs_of(section_class)
  return [
    {
      'name': field.name,
      'kind': (kind := kind_of(field)),
      **({'choices': _choices(field.type)} if kind == 'choice' else {}),
      **{
        k: v
        for k, v in field.metadata.items()
        if v is not None and k not in ('may_change', 'read_with', 'required')
      },
      'default': field.default,
      'doc': docs.get(field.name, ''),
    }
    for field in fields
  ]


def _choices(annotation) -> list[str]:
  found = typing.get_args(annotation)
  return [c for c in found if isinstance(c, str)] or _choices(found[0])


def _table(section_class: type[Section], names: Collection[str]) -> str:
  docs, fields = docs_of(section_class), section_class.__dataclass_fields__
  return settings_table(
    (section_class, fields[n], docs.get(n, '')) for n in names
  )


def settings_table(
  settings: Iterable[tuple[type[Section], dataclasses.Field, str]],
) -> str:
  """Returns a table in Markdown of settings: their section, field and doc."""
  rows = ['| setting | default | values | meaning |', '|---|---|---|---|']
  for section_class, field, doc in settings:
    is_required = field.default is dataclasses.MISSING
    default = 'required' if is_required else f'`{field.default}`'
    # Pages in docs/ link each other.
    linked = re.sub(r'docs/(\w+\.md)', r'[\1](\1)', doc.replace('|', '\\|'))
    rows.append(
      f'| `{section_class.section}.{field.name}` | {default} | '
      f'{_values(field)} | {linked}{_conditions(section_class, field)} |'
    )
  return '\n'.join(rows)


def _values(field):
  kind, suffix = field.type, ''
  if isinstance(kind, types.UnionType):
    kind, suffix = typing.get_args(kind)[0], ' or `None`'
  if typing.get_origin(kind) is typing.Literal:
    return ', '.join(f'`{value}`' for value in typing.get_args(kind)) + suffix
  bounds = [
    f'{sign} {field.metadata[name]}'
    for name, sign in _BOUNDS.items()
    if field.metadata.get(name) is not None
  ]
  text = {bool: '`True`, `False`', float: 'number'}.get(kind, kind.__name__)
  return f'{text} {", ".join(bounds)}'.strip() + suffix


def _conditions(section_class, field):
  sentences = []
  for key, wanted in readers_of(section_class, field).items():
    verb = 'Required and read' if field.metadata['required'] else 'Read'
    values = 'set' if wanted is SET else ', '.join(map(repr, wanted))
    sentences.append(f' {verb} only with `{key}` {values}.')
  if field.metadata.get('may_change'):
    sentences.append(' May change when a run is resumed.')
  return ''.join(sentences)
