"""Docstrings begin with a verb or a noun, in the field's words."""

import ast
import re
from collections.abc import Iterator

from source_files import ROOT, files, trees

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


def test_no_docstring_begins_without_a_subject():
  found = [
    f'{path}:{line}: {text.strip().splitlines()[0]}'
    for path, tree in trees(*_PACKAGES).items()
    for line, text in _docstrings(tree)
    if _BEGINNING.match(text.strip())
  ]
  assert not found, '\n'.join(found)


def test_the_usual_words():
  paths = [ROOT / path for path in trees(*_PACKAGES[:-1])]
  paths += [*files('docs', '**/*.md'), ROOT / 'README.md']
  found = [
    f'{path.relative_to(ROOT)}: {match[0]}'
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
