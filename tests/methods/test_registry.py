"""Methods are found by name and by module."""

import dataclasses
import sys

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import kind_of, require_method

_METHOD = """
import dataclasses
from typing import Literal
from tff_fedfish.methods import Method

{decorator}
class Mine(Method):
  {summary}

  {title}
  source = 'here'
  {setting}
"""
_DATACLASS = '@dataclasses.dataclass(frozen=True, kw_only=True)'


def _method(
  setting='',
  decorator=_DATACLASS,
  title="title = 'Mine'",
  summary="'Mine.'",
):
  return _METHOD.format(
    decorator=decorator, title=title, setting=setting, summary=summary
  )


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

  def write(module, text):
    path = tmp_path / f'{module.replace(".", "/")}.py'
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
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
    assert method.name == method().name == name
    places = (f'tff_fedfish.methods{folder}.{name}' for folder in _FOLDERS)
    (module,) = (sys.modules[place] for place in places if place in sys.modules)
    assert registry._methods_in(module) == [method]
    require_method(method)


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
  write_module('my_package.my_method', _method())
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
  write_module('my_package.loud', 'print("hello")\n' + _method())
  registry.find('my_package.loud')
  assert capsys.readouterr() == ('', 'hello\n')


@pytest.mark.parametrize(
  ('text', 'found'),
  [
    ('METHOD = 3', 'none'),
    (_method() + _method().replace('Mine(', 'Other('), 'Mine, Other'),
  ],
)
def test_a_module_without_one_method(text, found, write_module):
  path = write_module('my_package.wrong', text)
  assert _error('my_package.wrong') == (
    "`config.algorithm.name` 'my_package.wrong' must name a module that "
    'defines one public class derived from tff_fedfish.methods.Method, found '
    f'{found} in {path!r}.'
  )


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('raise ValueError("two\\nlines")', 'raised ValueError: two lines.'),
    ('raise SystemExit(0)', 'raised SystemExit: 0.'),
    (_method('strength: float'), "setting 'strength' must have a default."),
    (_method('strength: Literal[1, 2] = 1'), 'found typing.Literal[1, 2].'),
    (_method('strength: tuple = ()'), "found <class 'tuple'>."),
    (_method('strength: int | float = 1'), 'found int | float.'),
    (
      _method(decorator=''),
      'the class Mine must have the decorator '
      '@dataclasses.dataclass(frozen=True, kw_only=True). Correct',
    ),
    (_method(title=''), 'the class Mine must have a title.'),
    (_method(summary=''), 'the class Mine must have a docstring.'),
    (_method('mu: float = 1.0'), "the setting 'mu' must have a docstring."),
    (_method('kept: float = 1.0'), "'kept' must have another name"),
    (_method('source: str = "me"'), "'source' must have another name"),
    (
      _method('def make_updat(self, client): ...'),
      "'make_updat' is no hook; did you mean 'make_update'?",
    ),
    (
      _method('def build(self, model, *, client_optimizer): pass'),
      '`build` must take **training and pass it on.',
    ),
    (
      _method('def solve(self, uploads, start, context): pass'),
      '`solve` is one of tff_fedfish.methods.one_shot.OneShot. Correct',
    ),
    (_method("hue = 'red'"), "`hue` must be None or '#RRGGBB' in upper case"),
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
  write_module(
    'my_package.kinds', _method('strength: int | None = None; "A number."')
  )
  settings = registry.settings_of(registry.find('my_package.kinds'))
  assert kind_of(settings['strength']) == 'int'
