"""README and docs: links, reasons for drops, Python code."""

import ast
import doctest
import functools
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest
import source_files
import tensorflow_federated as tff
from doc_pages import PAGES

import tff_fedfish
from tff_fedfish.rounds.compose import compose

_BLOCK = re.DOTALL | re.MULTILINE
_ROOT = pathlib.Path(__file__).parents[1]
_README = (_ROOT / 'README.md').read_text()


def test_is_short():
  assert len(_README.splitlines()) <= 170


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.name)
def test_links_and_pictures_exist(page):
  for target in re.findall(r'\]\(([^)#]+)\)', page.read_text()):
    if not target.startswith('https://'):
      assert (page.parent / target).exists(), target


def test_every_page_is_reachable():
  found, seen = [_ROOT / 'README.md'], set()
  while found:
    page = found.pop()
    if page not in seen:
      seen.add(page)
      targets = re.findall(r'\]\(([^)#]+\.md)', page.read_text())
      found += [
        (page.parent / target).resolve()
        for target in targets
        if not target.startswith('https://')
      ]
  assert not set(PAGES) - seen


def test_every_reason_for_a_drop_is_documented():
  text = (_ROOT / 'docs' / 'grouping.md').read_text()
  sources = (_ROOT / 'pipelines').glob('*.py')
  reasons = {
    reason
    for path in sources
    for reason in re.findall(r"Drop\(\s*'(\w+)'", path.read_text())
  }
  assert len(reasons) > 15
  for reason in reasons | {'duplicate_text', 'small_group', 'other_split'}:
    assert f'`{reason}`' in text, reason


def _calls():
  """Yields the calls of a dotted name in the Python code of all pages."""
  for page in PAGES:
    blocks = re.findall(r'^```python\n(.*?)^```', page.read_text(), _BLOCK)
    for node in (n for block in blocks for n in ast.walk(ast.parse(block))):
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield page.name, ast.unparse(node.func), {k.arg for k in node.keywords}


def test_python_code_calls_what_there_is():
  calls = [call for call in _calls() if call[1].startswith(('tff.', 'tff_'))]
  assert len(calls) >= 8
  rounds = inspect.signature(compose).parameters
  for page, name, keywords in calls:
    top, *rest = name.split('.')
    called = functools.reduce(getattr, rest, {'tff': tff}.get(top, tff_fedfish))
    # Builders hand on what `compose` takes.
    known = {**inspect.signature(called).parameters, **rounds}
    assert keywords <= known.keys() or top == 'tff', (page, name)


@pytest.mark.slow
def test_python_code_of_the_readme_runs(tmp_path):
  blocks = re.findall(r'^```python\n(.*?)^```', _README, _BLOCK)
  assert blocks
  for block in blocks:
    # As a script of the reader's, elsewhere.
    (tmp_path / 'script.py').write_text(block)
    command = [sys.executable, 'script.py']
    environment = os.environ | {'PYTHONPATH': str(_ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
  # It ends with a model that Keras can load.
  assert (tmp_path / 'model.keras').exists()


def test_examples_in_docstrings_give_what_they_say():
  num_examples = 0
  for path in source_files.trees('tff_fedfish', 'pipelines', 'models'):
    if '>>> ' in (_ROOT / path).read_text('utf-8'):
      module = path.removesuffix('.py').replace('/', '.')
      answer = doctest.testmod(importlib.import_module(module))
      assert answer.attempted and not answer.failed, path
      num_examples += answer.attempted
  assert num_examples > 5
