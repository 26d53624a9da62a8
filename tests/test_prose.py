"""Docstrings begin with a verb or a noun, in the field's words."""

import ast
import pathlib
import re
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGES = ('tff_fedfish', 'pipelines', 'models', 'configs', 'tests')
# Such a beginning leaves out the subject, or says it last.
_BEGINNING = re.compile(r'(What|Whose|Of|By|Where|Those)\b')
# Words for "only", "again" and "also".
_WORDS = re.compile(r'\b(alone|anew|likewise)\b', re.IGNORECASE)
_MAX_WORDS = 15


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
  """Yields line and text of each docstring, those under fields included."""
  for node in ast.walk(tree):
    body = getattr(node, 'body', None)
    if not isinstance(body, list):
      continue
    for before, statement in zip([None, *body], body, strict=False):
      if (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
        and isinstance(before, ast.Assign | ast.AnnAssign | None)
      ):
        yield statement.lineno, statement.value.value


def _python_files():
  for package in _PACKAGES:
    yield from sorted((_ROOT / package).rglob('*.py'))


def test_no_docstring_begins_without_a_subject():
  found = [
    f'{path.relative_to(_ROOT)}:{line}: {text.strip().splitlines()[0]}'
    for path in _python_files()
    for line, text in _docstrings(ast.parse(path.read_text('utf-8')))
    if _BEGINNING.match(text.strip())
  ]
  assert not found, '\n'.join(found)


def test_the_usual_words():
  tests = _ROOT / 'tests'
  paths = [path for path in _python_files() if tests not in path.parents]
  paths += sorted((_ROOT / 'docs').rglob('*.md')) + [_ROOT / 'README.md']
  found = [
    f'{path.relative_to(_ROOT)}: {match[0]}'
    for path in paths
    for match in _WORDS.finditer(path.read_text('utf-8'))
  ]
  assert len(found) <= _MAX_WORDS, '\n'.join(found)


def test_planted_docstrings():
  tree = ast.parse(
    '"""What a module."""\nclass A:\n  x: int\n  """Of x."""\n'
    'def f():\n  """Returns it."""\n  return """By no docstring."""\n'
  )
  found = [text for _, text in _docstrings(tree)]
  assert found == ['What a module.', 'Of x.', 'Returns it.']
  assert [bool(_BEGINNING.match(text)) for text in found] == [True, True, False]
