"""Methods are found by name, by module and by entry point."""

import dataclasses
import importlib.metadata
import sys
import textwrap

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import AlgorithmConfig

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


@pytest.fixture(autouse=True)
def forgets(monkeypatch):
  """Methods found in one test are not known in the next."""
  monkeypatch.setattr(registry, '_found', {})
  registry._from_module.cache_clear()
  registry._entry_points.cache_clear()
  yield
  registry._from_module.cache_clear()
  registry._entry_points.cache_clear()


@pytest.fixture
def write_module(tmp_path, monkeypatch):
  """Writes an importable module; returns its file."""
  monkeypatch.syspath_prepend(tmp_path)

  def write(module, text=_METHOD, **values):
    values = {'name': 'mine', 'settings': 'AlgorithmConfig', **values}
    path = tmp_path / f'{module.replace(".", "/")}.py'
    path.parent.mkdir(exist_ok=True)
    text = textwrap.dedent(text)
    path.write_text(text.format(**values) if text.count('{') else text)
    monkeypatch.delitem(sys.modules, module, raising=False)
    return str(path)

  return write


@pytest.fixture
def install(monkeypatch):
  """Declares entry points, as installed distributions do."""

  def declare(**modules):
    points = [
      importlib.metadata.EntryPoint(name, module, registry.ENTRY_POINTS)
      for name, module in modules.items()
    ]
    monkeypatch.setattr(
      importlib.metadata, 'entry_points', lambda group: points
    )

  return declare


def _error(name):
  with pytest.raises(UserError) as caught:
    registry.find(name)
  assert '\n' not in str(caught.value)
  return str(caught.value)


def test_names_are_those_of_the_modules():
  for name, method in registry.BUILT_IN.items():
    assert method.name == name
    assert sys.modules[f'tff_fedfish.methods.{name}'].METHOD is method
    assert issubclass(method.settings, AlgorithmConfig)


def test_one_name_has_one_kind_in_all_methods():
  kinds = {}
  for method in registry.BUILT_IN.values():
    for name, field in registry.settings_of(method).items():
      kind = registry.kind_of(field)
      assert kinds.setdefault(name, kind) == kind, name
      assert name == 'name' or field.default is not dataclasses.MISSING


def test_hues_differ():
  hues = [m.hue for m in registry.BUILT_IN.values() if m.hue]
  assert len(set(hues)) == len(hues)


def test_unknown():
  assert _error('fedfish') == (
    '`config.algorithm.name` must be one of '
    f'{", ".join(registry.BUILT_IN)}, or the module of a method of your own, '
    "such as my_package.my_method, found 'fedfish'."
  )


def test_a_module_by_its_name(write_module):
  write_module('my_package.my_method')
  assert registry.find('my_package.my_method').title == 'Mine'
  assert registry.find_or_none('my_package.my_method').title == 'Mine'
  assert 'my_package.my_method' not in registry.installed()


def test_an_installed_method_by_its_own_name(write_module, install):
  write_module('my_package.my_method')
  install(mine='my_package.my_method:METHOD')
  assert registry.find('mine').title == 'Mine'
  # The same file under its module's name is the same method, not a second one.
  assert registry.find('my_package.my_method') is registry.find('mine')
  assert list(registry.installed())[-1:] == ['mine']


def test_no_such_module():
  assert _error('no_package.method') == (
    "`config.algorithm.name` 'no_package.method' must name an importable "
    "module, but importing 'no_package.method' raised ModuleNotFoundError: No "
    "module named 'no_package'. Correct it, or put it on PYTHONPATH."
  )
  assert registry.find_or_none('no_package.method') is None


def test_a_module_that_raises(write_module):
  write_module('my_package.broken', 'raise ValueError("two\\nlines")')
  assert 'raised ValueError: two lines. Correct it' in _error(
    'my_package.broken'
  )


def test_a_broken_installed_method_is_named(install):
  install(mine='no_package.method')
  assert "`config.algorithm.name` 'mine' must name" in _error('mine')
  with pytest.raises(UserError, match="importing 'no_package.method' raised"):
    registry.installed()


def test_a_module_without_a_method(write_module):
  path = write_module('my_package.empty', 'METHOD = 3')
  assert _error('my_package.empty') == (
    "`config.algorithm.name` 'my_package.empty' must name a module that holds "
    f'METHOD, a tff_fedfish.methods.Method, found int in {path!r}.'
  )


def test_two_methods_of_one_name(write_module):
  first, second = write_module('my_package.a'), write_module('my_package.b')
  registry.find('my_package.a')
  assert _error('my_package.b') == (
    f'Methods must differ in name, but {first!r} and {second!r} both hold a '
    "METHOD named 'mine'. Rename one."
  )


def test_the_name_of_a_built_in_method(write_module):
  path = write_module('my_package.fish', name='fed_fish')
  text = _error('my_package.fish')
  assert 'fed_fish.py' in text
  assert repr(path) in text


def test_two_installed_methods_of_one_name(write_module, monkeypatch):
  first, second = write_module('my_package.a'), write_module('my_package.b')
  points = [
    importlib.metadata.EntryPoint('mine', module, registry.ENTRY_POINTS)
    for module in ('my_package.a', 'my_package.b')
  ]
  monkeypatch.setattr(importlib.metadata, 'entry_points', lambda group: points)
  assert f'but {first!r} and {second!r} both' in _error('mine')


def test_a_setting_without_a_default(write_module):
  write_module(
    'my_package.required',
    """
    import dataclasses
    from tff_fedfish.methods import AlgorithmConfig

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(AlgorithmConfig):
      strength: float
    """
    + _METHOD.format(name='mine', settings='Config').replace('\n  ', '\n    '),
  )
  assert "The setting 'strength' of METHOD in" in _error('my_package.required')


def test_a_setting_of_another_kind(write_module):
  write_module(
    'my_package.kinds',
    """
    import dataclasses
    from tff_fedfish.methods import AlgorithmConfig

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(AlgorithmConfig):
      relative_floor: bool = True
    """
    + _METHOD.format(name='mine', settings='Config').replace('\n  ', '\n    '),
  )
  assert (
    'must be of the kind that fed_fish gives it, float, found bool. Rename it.'
  ) in _error('my_package.kinds')
