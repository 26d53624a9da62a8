"""The pages of the documentation, and the commands in them."""

import ast
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import source_files

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [
  ROOT / 'README.md',
  ROOT / 'CONTRIBUTING.md',
  *source_files.files('docs', '**/*.md'),
]
_BLOCK = re.compile(r'^```\w*\n(.*?)^```', re.DOTALL | re.MULTILINE)
_PROGRAMS = ('fedfish', 'make', 'python')
# What stands for a value of the reader's, and one such value.
_VALUES = {
  'ALPHA': '0.1',
  'CLIENTS': '5',
  'SEED': '1',
  'DIR': 'corpora/mine',
  'RUN': 'runs/mine',
  '$1': 'sgd',
  '$2': '0.1',
  '$3': '',
}
_VALUE = re.compile(r'(?<![\w$])(ALPHA|CLIENTS|SEED|DIR|RUN|\$[123])(?!\w)')


class Command(NamedTuple):
  """A command line of a page."""

  page: str
  """Path of the page below the root."""
  arguments: tuple[str, ...]
  """The program and its arguments."""
  needs: str = ''
  """Input that no test has, which the page names by a line '# needs ...'."""

  def __str__(self) -> str:
    return f'{pathlib.Path(self.page).stem}: {" ".join(self.arguments[:4])}'


def commands(*programs: str) -> list[Command]:
  """Returns the command lines of all pages that call one of the programs.

  Continued lines are joined, comments left out, and placeholders replaced.

  Args:
    programs: Of 'fedfish', 'make' and 'python'.
  """
  return [
    Command(str(page.relative_to(ROOT)), arguments, needs)
    for page in PAGES
    for line, needs in _lines(page)
    for arguments in _split(line)
    if arguments[0] in programs
  ]


def help_commands() -> list[Command]:
  """Returns the `fedfish` commands in the help texts of the commands."""
  found = []
  for path in sorted((ROOT / 'tff_fedfish' / 'cli').glob('*.py')):
    text = ast.get_docstring(ast.parse(path.read_text('utf-8'))) or ''
    for line in text.replace('\\\n', ' ').splitlines():
      if line.startswith('  fedfish '):
        found.append(Command(str(path.relative_to(ROOT)), *_split(line)))
  return found


def _lines(page: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields the lines of all blocks, each with what its block needs."""
  for block in _BLOCK.findall(page.read_text('utf-8')):
    needs = ', '.join(re.findall(r'^# needs (.+)', block, re.MULTILINE))
    for line in block.replace('\\\n', ' ').splitlines():
      yield line, needs


def _split(line: str) -> Iterator[tuple[str, ...]]:
  """Yields the commands of a line, which may stand in a loop of the shell."""
  line = re.sub(r'(^|\s)[#>].*', '', line).strip()
  if not line.startswith(_PROGRAMS):
    return
  line = _VALUE.sub(lambda match: _VALUES[match[1]], line)
  yield tuple(shlex.split(line))
