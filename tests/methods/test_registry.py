"""Methods are found by name and by module."""

import dataclasses
import sys
import textwrap

import planned_configs
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.settings import AlgorithmConfig, kind_of

_METHOD = """
  from tff_fedfish.methods import AlgorithmConfig, Method

  METHOD = Method(
    name={name!r},
    title='Mine',
    summary='Mine.',
    source='here',
    settings={settings},
    builder='mine:build',
  )
"""

_FOLDERS = ('', '.one_shot')


@pytest.fixture(autouse=True)
def forgets(monkeypatch):
  """Methods found in one test are not known in the next."""
  monkeypatch.setattr(registry, '_found', {})
  registry._from_module.cache_clear()
  yield
  registry._from_module.cache_clear()


@pytest.fixture
def write_module(tmp_path, monkeypatch):
  """Writes an importable module; returns its file."""
  monkeypatch.syspath_prepend(tmp_path)

  def write(module, text=_METHOD, **values):
    values = {'name': 'mine', 'settings': 'AlgorithmConfig', **values}
    path = tmp_path / f'{module.replace(".", "/")}.py'
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text).format(**values))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return str(path)

  return write


def _error(name):
  with pytest.raises(UserError) as caught:
    registry.find(name)
  assert '\n' not in str(caught.value)
  return str(caught.value)


def test_names_are_those_of_the_modules():
  for name, method in registry.BUILT_IN.items():
    assert method.name == name
    places = (f'tff_fedfish.methods{folder}.{name}' for folder in _FOLDERS)
    (module,) = (sys.modules[place] for place in places if place in sys.modules)
    assert module.METHOD is method
    assert issubclass(method.settings, AlgorithmConfig)


def test_client_work_that_is_set_reaches_the_builder():
  settings = dict(
    keeps_optimizer_state=True,
    max_delta_norm=1.0,
    micro_batch_size=2,
    num_local_steps=3,
  )
  config = planned_configs.shipped('demo', algorithm__name='fed_avg')
  assert config.method.keywords(config) == {}
  work = dataclasses.replace(
    config.client_work,
    max_sequences_per_client=None,
    momentum=0.9,
    **settings,
  )
  config = dataclasses.replace(config, client_work=work)
  assert config.method.keywords(config) == settings


def test_one_name_has_one_kind_in_all_methods():
  kinds = {}
  for method in registry.BUILT_IN.values():
    for name, field in registry.settings_of(method).items():
      kind = kind_of(field)
      assert kinds.setdefault(name, kind) == kind, name
      assert name == 'name' or field.default is not dataclasses.MISSING


def test_hues_differ():
  hues = [m.hue for m in registry.BUILT_IN.values() if m.hue]
  assert len(set(hues)) == len(hues)


def test_unknown():
  assert _error('fedfish') == (
    '`config.algorithm.name` must be one of '
    f'{", ".join(registry.BUILT_IN)}, or the module of a method of your own '
    "with its package (my_package.my_method), found 'fedfish'; the nearest "
    "known one is 'fed_fish'."
  )


def test_a_module_by_its_name(write_module):
  write_module('my_package.my_method')
  assert registry.find('my_package.my_method').title == 'Mine'
  assert registry.find_or_none('my_package.my_method').title == 'Mine'
  assert registry.readers('algorithm.mu') == ['fed_prox', 'moon']


def test_no_such_module():
  assert _error('no_package.method') == (
    "`config.algorithm.name` 'no_package.method' must name an importable "
    "module, but importing 'no_package.method' raised ModuleNotFoundError: No "
    "module named 'no_package'. Correct it, start `fedfish` in the directory "
    'that holds its package, or put that on PYTHONPATH.'
  )
  assert registry.find_or_none('no_package.method') is None


def test_what_a_module_prints_is_no_answer(write_module, capsys):
  write_module('my_package.loud', 'print("hello")\n' + _plain_method())
  registry.find('my_package.loud')
  assert capsys.readouterr() == ('', 'hello\n')


def test_a_module_without_a_method(write_module):
  path = write_module('my_package.empty', 'METHOD = 3')
  assert _error('my_package.empty') == (
    "`config.algorithm.name` 'my_package.empty' must name a module that holds "
    f'METHOD, a tff_fedfish.methods.Method, found int in {path!r}.'
  )


_CONFIG = """
import dataclasses
from typing import Literal
from tff_fedfish.methods import AlgorithmConfig

{decorator}
class Config(AlgorithmConfig):
  strength: {kind}
"""
_DATACLASS = '@dataclasses.dataclass(frozen=True, kw_only=True)'


def _with_config(kind='float = 1.0', decorator=_DATACLASS):
  config = _CONFIG.format(decorator=decorator, kind=kind)
  return config + _plain_method(settings='Config')


def _plain_method(name='mine', settings='AlgorithmConfig'):
  return textwrap.dedent(_METHOD).format(name=name, settings=settings)


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('raise ValueError("two\\nlines")', 'raised ValueError: two lines.'),
    ('raise SystemExit(0)', 'raised SystemExit: 0.'),
    (_with_config('float'), "the setting 'strength' must have a default."),
    (_with_config('Literal[1, 2] = 1'), 'found typing.Literal[1, 2].'),
    (_with_config('tuple = ()'), "found <class 'tuple'>."),
    (_with_config('int | float = 1'), 'found int | float.'),
    (
      _with_config(decorator=''),
      '`settings` must be a subclass of AlgorithmConfig with '
      '@dataclasses.dataclass(frozen=True, kw_only=True), found ',
    ),
    (_plain_method(settings='int'), "found <class 'int'>."),
    (
      _plain_method(name='my method'),
      "`name` must be a Python name, such as 'fed_prox', found 'my method'.",
    ),
  ],
)
def test_a_module_that_cannot_be_imported(text, words, write_module):
  write_module('my_package.wrong', text)
  found = _error('my_package.wrong')
  assert found.startswith(
    "`config.algorithm.name` 'my_package.wrong' must name an importable "
    "module, but importing 'my_package.wrong' raised "
  )
  assert words in found
  assert found.endswith('or put that on PYTHONPATH.')


def test_kinds_that_may_be_none(write_module):
  write_module('my_package.kinds', _with_config('int | None = None'))
  settings = registry.settings_of(registry.find('my_package.kinds'))
  assert kind_of(settings['strength']) == 'int'
