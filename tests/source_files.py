"""The project's files, and syntax trees of those in Python, parsed once."""

import ast
import fnmatch
import functools
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Names that git ignores wherever they are; others are of the root.
_IGNORED = [
  line.strip('/')
  for line in (ROOT / '.gitignore').read_text('utf-8').splitlines()
  if not line.startswith('/')
]


def files(directory: str, pattern: str) -> list[pathlib.Path]:
  """Returns a directory's files, without those that git ignores.

  Args:
    directory: Path below the root.
    pattern: Glob pattern of paths below the directory.
  """
  return [
    path
    for path in sorted((ROOT / directory).glob(pattern))
    if path.is_file() and not is_ignored(path.relative_to(ROOT))
  ]


def is_ignored(path: pathlib.PurePath) -> bool:
  """Whether git ignores a path of a package or of the pages."""
  return any(
    fnmatch.fnmatch(part, name) for part in path.parts for name in _IGNORED
  )


@functools.cache
def trees(*packages: str) -> dict[str, ast.Module]:
  """Returns the tree of each file by its path below the root.

  Args:
    *packages: Directories below the root.
  """
  return {
    path.relative_to(ROOT).as_posix(): _tree(path)
    for package in packages
    for path in files(package, '**/*.py')
  }


@functools.cache
def _tree(path):
  return ast.parse(path.read_text('utf-8'))
