"""Lists what users see of a checkout, a line each, to compare two of them.

  python tests/surface.py [--pages DIR ...] > after.txt
  git worktree add /tmp/before COMMIT
  python tests/surface.py --root /tmp/before [--pages DIR ...] > before.txt
  diff before.txt after.txt

Lines are the help of all commands, the settings of all methods, error texts of
the source, words that tests look for in errors, keys of each summary.json, and
the headings, table columns and figures of each report page in DIR.
"""

import argparse
import ast
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

_PACKAGES = ('tff_fedfish', 'pipelines', 'models')
_SETTINGS = """
import dataclasses
from tff_fedfish.methods import registry
try:
  from tff_fedfish.config.names import fields_of
except ImportError:
  # Where it lay before.
  from tff_fedfish.config.files import fields_of
for method in registry.BUILT_IN.values():
  for name, field in fields_of(method).items():
    bounds = dict(field.metadata)
    is_required = field.default is dataclasses.MISSING
    default = 'required' if is_required else repr(field.default)
    print(method.name, name, field.type, default, bounds)
"""


def main(argv=None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--root', default=pathlib.Path(__file__).parents[1])
  parser.add_argument('--pages', nargs='*', default=[])
  arguments = parser.parse_args(argv)
  root = pathlib.Path(arguments.root).resolve()
  for lines in (
    _help(root),
    (f'setting {line}' for line in _run(root, '-c', _SETTINGS).splitlines()),
    _errors(root),
    _expected_errors(root / 'tests'),
    *map(_page, map(pathlib.Path, arguments.pages)),
  ):
    for line in sorted(set(lines)):
      print(line)


def _run(root, *arguments):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=root,
    env=os.environ | {'PYTHONPATH': str(root), 'COLUMNS': '80'},
    check=True,
    capture_output=True,
    text=True,
  ).stdout


def _help(root) -> Iterator[str]:
  top = _run(root, '-m', 'tff_fedfish', '--help')
  commands = re.findall(r'^    (\w+)  ', top, re.MULTILINE)
  for command in ('', *commands):
    arguments = [command] * bool(command)
    text = _run(root, '-m', 'tff_fedfish', *arguments, '--help')
    for line in text.splitlines():
      if line.strip():
        yield f'help {command or "fedfish"}: {line.strip()}'


def _errors(root) -> Iterator[str]:
  for package in _PACKAGES:
    for path in (root / package).rglob('*.py'):
      for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
          if text := _template(node.exc):
            yield f'raises {text}'


def _expected_errors(tests) -> Iterator[str]:
  for path in tests.rglob('test_*.py'):
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
      if isinstance(node, ast.keyword) and node.arg == 'match':
        yield f'expects {_template(node.value)}'


def _template(node) -> str:
  """Returns the strings under a node, with {} for what is put in."""
  if isinstance(node, ast.Constant) and isinstance(node.value, str):
    return node.value
  if isinstance(node, ast.FormattedValue):
    return '{}'
  return ''.join(map(_template, ast.iter_child_nodes(node)))


def _page(directory) -> Iterator[str]:
  for path in sorted(directory.rglob('summary.json')):
    for key in _keys(json.loads(path.read_text('utf-8'))):
      yield f'summary {key}'
  for path in sorted(directory.rglob('*')):
    if path.suffix in ('.png', '.svg', '.csv'):
      yield f'file {directory.name}: {path.relative_to(directory)}'
    if path.name == 'index.html':
      page = _Page()
      page.feed(path.read_text('utf-8'))
      for line in page.lines:
        yield f'page {directory.name}: {line}'


def _keys(value, prefix='') -> Iterator[str]:
  if isinstance(value, dict):
    for key, item in value.items():
      yield from _keys(item, f'{prefix}.{key}')
  elif isinstance(value, list):
    for item in value:
      yield from _keys(item, f'{prefix}[]')
  else:
    yield prefix


class _Page(html.parser.HTMLParser):
  """Headings, table headers, cells and figures of a page."""

  _TAGS = ('h1', 'h2', 'h3', 'th', 'td', 'figcaption', 'caption', 'summary')

  def __init__(self):
    super().__init__()
    self.lines = []
    self._open = []

  def handle_starttag(self, tag, attrs):
    if tag in self._TAGS:
      self._open.append([tag, ''])
    if tag == 'img':
      source = dict(attrs).get('src', '')
      self.lines.append(f'img {source if len(source) < 200 else "inline"}')

  def handle_data(self, data):
    for entry in self._open:
      entry[1] += data

  def handle_endtag(self, tag):
    if self._open and self._open[-1][0] == tag:
      name, text = self._open.pop()
      self.lines.append(f'{name} {" ".join(text.split())}')


if __name__ == '__main__':
  main()
