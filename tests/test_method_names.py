"""Methods are spelled in one place: no other source file holds a name."""

import ast
from collections.abc import Iterator

import pytest
import source_files

from tff_fedfish.methods import registry

_PACKAGES = ('tff_fedfish', 'pipelines', 'models')
# Declarations.
_MAY_SPELL = ('tff_fedfish/methods/',)


def _strings(tree: ast.Module) -> Iterator[ast.Constant]:
  """Yields the strings of a file, parts of f-strings too, but no docstrings."""
  # An attribute's docstring is a statement, as is a function's.
  statements = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
  docstrings = {id(statement.value) for statement in statements}
  for node in ast.walk(tree):
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    if is_string and id(node) not in docstrings:
      yield node


def _spelled(text: str) -> list[str]:
  """Returns the names of methods that a string holds.

  A name without an underscore may be a word: only the whole string counts.
  """
  return [
    name
    for name in registry.BUILT_IN
    if name == text or ('_' in name and name in text)
  ]


def _problems(path: str, tree: ast.Module) -> list[str]:
  if path.startswith(_MAY_SPELL):
    return []
  return [
    f'{path}:{string.lineno}: {name!r} in {string.value!r}'
    for string in _strings(tree)
    for name in _spelled(string.value)
  ]


def test_no_file_spells_a_method():
  trees = source_files.trees(*_PACKAGES)
  assert len(trees) > 200
  problems = [p for path, tree in trees.items() for p in _problems(path, tree)]
  assert not problems, '\n'.join(['', *problems])


@pytest.mark.parametrize(
  ('source', 'line'),
  [
    ("NAME = 'fed_avg'", 1),
    ("if name == 'fed_fish':\n  pass", 1),
    ("PATH = 'tff_fedfish.methods.fed_avg:build'", 1),
    ("text = f'{x} fed_fish {y}'", 1),
    ("x = 1\ncall(\n  'fed_avg'\n)", 3),
    # A string that is used is no docstring.
    ("def f():\n  return 'fed_avg'", 2),
  ],
)
def test_planted_name_is_found(source, line):
  [problem] = _problems('tff_fedfish/planning/plan.py', ast.parse(source))
  assert problem.startswith(f'tff_fedfish/planning/plan.py:{line}: ')


@pytest.mark.parametrize(
  ('path', 'source'),
  [
    ('tff_fedfish/methods/fed_avg.py', "NAME = 'fed_avg'"),
    ('tff_fedfish/x.py', '"""Such as \'fed_avg\'."""'),
    ('tff_fedfish/x.py', 'def f():\n  """Builds fed_avg."""'),
    ('tff_fedfish/x.py', 'class A:\n  b: int\n  """As in fed_avg."""'),
    ('tff_fedfish/x.py', 'fed_avg = build_fed_avg()  # fed_avg'),
    ('tff_fedfish/x.py', "NAME = 'fedfish'"),
  ],
)
def test_what_is_allowed_is_not_reported(path, source):
  assert not _problems(path, ast.parse(source))


def test_a_single_word_counts_only_as_a_whole(monkeypatch):
  monkeypatch.setattr(registry, 'BUILT_IN', {'scaffold': None})
  assert _spelled('scaffold') == ['scaffold']
  assert not _spelled('a scaffold around it')
