"""Methods outside the package that a run refuses, and words of what is said."""

import sys

import pytest
from refused_inputs import Case, from_settings

from tff_fedfish.methods import registry

_METHOD = """
import dataclasses

from tff_fedfish.methods import Column, Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused(Method):
  'Refused.'

  title, source = 'Refused', 'here'
  {field}
  'A setting.'

  def columns(self, config):
    return (Column({column!r}, ('train',)),)
"""


def _method(field='strength: float = 1.0', column='train/refused'):
  return _METHOD.format(field=field, column=column)


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
  _module('tff_fedfish.methods.Method, found none', 'METHOD = 3\n'),
  _module(
    "raised ValueError: the setting 'strength' must have a default. Correct it",
    _method(field='strength: float'),
  ),
  _module(
    "metrics.csv has another 'train/loss'. Rename it.",
    _method(column='train/loss'),
  ),
)
