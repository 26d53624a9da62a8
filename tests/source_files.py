"""Syntax trees of the project's Python files, parsed once."""

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


@functools.cache
def trees(*packages: str) -> dict[str, ast.Module]:
  """Returns the tree of each file by its path below the root.

  Args:
    *packages: Directories below the root.
  """
  return {
    path.relative_to(ROOT).as_posix(): _tree(path)
    for package in packages
    for path in sorted((ROOT / package).rglob('*.py'))
  }


@functools.cache
def _tree(path):
  return ast.parse(path.read_text('utf-8'))
