"""Methods outside the package that a run refuses, and words of what is said."""

import sys

import pytest
from refused_inputs import Case, from_settings

from tff_fedfish.methods import registry

_METHOD = """
import dataclasses

from tff_fedfish.methods import AlgorithmConfig, Column, Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
  {field}


METHOD = Method(
  name={name!r},
  title='Refused',
  summary='Refused.',
  source='here',
  settings=Config,
  builder={builder!r},
  columns=lambda config: (Column({column!r}, ('train',)),),
)


def build(model, *, strength, **training):
  pass


def build_nothing(model):
  pass
"""


def _method(
  name='refused',
  field='strength: float = 1.0',
  builder='build',
  column='train/refused',
):
  module = 'refused_package.method'
  builder = builder if ':' in builder else f'{module}:{builder}'
  return _METHOD.format(name=name, field=field, builder=builder, column=column)


def _prepare(place):
  """Makes modules in the directory importable, for this dry run only."""
  patch = place.stack.enter_context(pytest.MonkeyPatch.context())
  patch.syspath_prepend(place.directory)
  patch.setattr(registry, '_found', {})
  registry._from_module.cache_clear()
  place.stack.callback(registry._from_module.cache_clear)


def _module(words, text):
  """Returns the case of a method named by its module."""

  def prepare(place):
    _prepare(place)
    place.file('refused_package/method.py', text)
    place.stack.callback(_forget)
    return place.arguments(algorithm__name='refused_package.method')

  return Case(words, prepare)


def _forget():
  for name in [n for n in sys.modules if n.startswith('refused_package')]:
    del sys.modules[name]


CASES = (
  from_settings(
    '`config.algorithm.name` must be one of fed_avg', algorithm__name='unknown'
  ),
  from_settings(
    "must name an importable module, but importing 'no_package.method' raised",
    algorithm__name='no_package.method',
  ),
  _module('found int in', 'METHOD = 3\n'),
  _module(
    "raised ValueError: the setting 'strength' must have a default. Correct it",
    _method(field='strength: float'),
  ),
  _module(
    'must name a function of an importable module, found ModuleNotFoundError',
    _method(builder='no_package:build'),
  ),
  _module('found AttributeError', _method(builder='refused_package.method:no')),
  _module(
    'must take a model and the keywords client_optimizer, server_optimizer, '
    'num_local_epochs, client_weighting, strength, found: got an unexpected '
    "keyword argument 'client_optimizer'",
    _method(builder='build_nothing'),
  ),
  _module(
    "metrics.csv has another 'train/loss'. Rename it.",
    _method(column='train/loss'),
  ),
)
