"""Finds where a command raises UserErrors, over the syntax trees.

From a function on, everything that it mentions is followed, called or not:

- a name or `module.name`: the function, the class, or the value of the
  variable of that name, in whichever module of ours defines it;
- a class that is mentioned: its `__init__`, `__enter__` and so on, and those
  of its bases;
- `anything.name`: the methods and properties of that name of all classes that
  are mentioned anywhere.

Annotations are followed only where they are those of a class's fields, whose
values somebody makes. A site is a `raise` of a class derived from
`UserError`, or of what a function that returns one makes.
"""

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Collection, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
_BASE = ('tff_fedfish.errors', 'UserError')
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Site:
  """One `raise` statement."""

  module: str
  function: str
  """Its name within the module, such as 'GroupedCorpus._column'."""
  first_line: int
  last_line: int
  message: str
  """The literal text of the statement, with {} for values."""

  def __str__(self):
    path = self.module.replace('.', '/')
    return f'{path}.py:{self.first_line} {self.function}: {self.message[:90]}'


def find(
  start: tuple[str, str],
  *,
  stops: Collection[tuple[str, str]] = (),
  root: pathlib.Path = ROOT,
) -> set[Site]:
  """Returns the sites that can be reached from a function.

  Args:
    start: Its module and name.
    stops: Functions that are not followed, such as ('a.b', 'Class.method').
    root: The directory that modules lie in.
  """
  search = _Search(root, set(stops))
  search.mention(*start)
  search.follow()
  return search.sites


@dataclasses.dataclass
class _Module:
  """The names of a module."""

  definitions: dict[str, ast.AST]
  """Functions, classes, and values of variables."""
  imports: dict[str, tuple[str, str]]
  """Local name -> (module, name); the name is '' for a module."""


@functools.cache
def _parse(root: pathlib.Path, name: str) -> _Module | None:
  """Reads a module; None where it is not ours."""
  path = root.joinpath(*name.split('.'))
  path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
  if not path.is_file():
    return None
  module = _Module({}, {})
  tree = ast.parse(path.read_text('utf-8'))
  for node in tree.body:
    if isinstance(node, _FUNCTIONS | ast.ClassDef):
      module.definitions[node.name] = node
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
      targets = node.targets if isinstance(node, ast.Assign) else [node.target]
      for target in targets:
        if isinstance(target, ast.Name):
          module.definitions[target.id] = node.value
  # Also those within functions: no two of ours give a name two meanings.
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        module.imports[alias.asname or alias.name] = (alias.name, '')
    elif isinstance(node, ast.ImportFrom) and node.module:
      for alias in node.names:
        target = (node.module, alias.name)
        if _parse(root, '.'.join(target)):
          target = ('.'.join(target), '')
        module.imports[alias.asname or alias.name] = target
  return module


class _Search:
  def __init__(self, root, stops):
    self._root, self._stops = root, stops
    self._seen, self._todo = set(), []
    # Class -> its methods that were followed; names asked of any object.
    self._classes, self._asked = {}, set()
    self.sites = set()

  def mention(self, module_name, name):
    """Takes note of a name in a module of ours."""
    found = self._resolve(module_name, name)
    if not found or found in self._seen:
      return
    self._seen.add(found)
    module_name, name = found
    node = _parse(self._root, module_name).definitions[name]
    if isinstance(node, ast.ClassDef):
      self._todo.append((module_name, node, node.name, ()))
      self._classes[found] = node
      for base in self._bases(found):
        self.mention(*base)
    else:
      self._todo.append((module_name, node, name, None))

  def follow(self):
    """Follows what was noted until nothing new is found."""
    while True:
      while self._todo:
        module_name, node, name, owner = self._todo.pop()
        if (module_name, name) not in self._stops:
          self._read(module_name, node, name, owner)
      for found, node in list(self._classes.items()):
        for method in node.body:
          if isinstance(method, _FUNCTIONS) and (
            method.name in self._asked or method.name.startswith('__')
          ):
            self._method(found, method)
      if not self._todo:
        return

  def _method(self, owner, method):
    name = f'{owner[1]}.{method.name}'
    if (owner[0], name) not in self._seen:
      self._seen.add((owner[0], name))
      self._todo.append((owner[0], method, name, owner))

  def _read(self, module_name, node, name, owner):
    for part in _body(node):
      if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
        self.mention(module_name, part.id)
      elif isinstance(part, ast.Attribute):
        self._attribute(module_name, part, owner)
      elif isinstance(part, ast.Raise) and part.exc:
        if self._is_user_error(module_name, part.exc, owner):
          self.sites.add(
            Site(module_name, name, part.lineno, part.end_lineno, _text(part))
          )

  def _attribute(self, module_name, node, owner):
    target = self._module_of(module_name, node.value)
    if target:
      self.mention(target, node.attr)
    elif target is None:
      self._asked.add(node.attr)

  def _module_of(self, module_name, node):
    """Returns the module that an expression is; '' one of others', or None."""
    dotted = ast.unparse(node)
    module = _parse(self._root, module_name)
    first = dotted.split('.')[0]
    if dotted in module.imports:
      target, name = module.imports[dotted]
      if not name:
        return target if _parse(self._root, target) else ''
    if first in module.imports and not self._resolve(module_name, first):
      return ''
    return None

  def _resolve(self, module_name, name):
    """Returns where a name is defined, as (module, name); None: not by us."""
    module = _parse(self._root, module_name)
    if module is None:
      return None
    if name in module.definitions:
      return module_name, name
    target, of = module.imports.get(name, ('', ''))
    return self._resolve(target, of) if of else None

  def _bases(self, found):
    names = (
      base.id
      for base in self._classes[found].bases
      if isinstance(base, ast.Name)
    )
    resolved = (self._resolve(found[0], name) for name in names)
    return [base for base in resolved if base]

  def _is_user_error(self, module_name, node, owner):
    """Whether an expression makes a UserError."""
    if isinstance(node, ast.Call):
      node = node.func
    if isinstance(node, ast.Attribute):
      target = self._module_of(module_name, node.value)
      if target:
        found = self._resolve(target, node.attr)
      else:
        return owner is not None and self._makes(module_name, node.attr, owner)
    elif isinstance(node, ast.Name):
      found = self._resolve(module_name, node.id)
    else:
      return False
    if found is None:
      return False
    definition = _parse(self._root, found[0]).definitions[found[1]]
    if isinstance(definition, ast.ClassDef):
      return self._derives(found)
    return self._returns_user_error(found[0], definition, None)

  def _makes(self, module_name, attribute, owner):
    for method in self._classes[owner].body:
      if isinstance(method, _FUNCTIONS) and method.name == attribute:
        return self._returns_user_error(module_name, method, owner)
    return False

  def _returns_user_error(self, module_name, function, owner):
    return isinstance(function, _FUNCTIONS) and any(
      isinstance(part, ast.Return)
      and isinstance(part.value, ast.Call)
      and self._is_user_error(module_name, part.value, owner)
      for part in _body(function)
    )

  def _derives(self, found):
    if found == _BASE:
      return True
    self.mention(*found)
    return found in self._classes and any(
      map(self._derives, self._bases(found))
    )


def _body(node: ast.AST) -> Iterator[ast.AST]:
  """Yields the nodes of a function or value without its annotations.

  Of a class, those of its bases, decorators and fields, not of its methods.
  """
  is_class = isinstance(node, ast.ClassDef)
  for field, value in ast.iter_fields(node):
    if (
      field == 'returns' or field == 'annotation' and isinstance(node, ast.arg)
    ):
      continue
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.AST):
        if is_class and isinstance(child, _FUNCTIONS):
          continue
        yield child
        yield from _body(child)


def _text(node: ast.AST) -> str:
  """Returns the string literals of a statement, {} for what is put in."""
  parts = []

  def visit(part):
    if isinstance(part, ast.JoinedStr):
      for value in part.values:
        visit(value)
    elif isinstance(part, ast.FormattedValue):
      parts.append('{}')
    elif isinstance(part, ast.Constant) and isinstance(part.value, str):
      parts.append(part.value)
    else:
      for child in ast.iter_child_nodes(part):
        visit(child)

  visit(node)
  return ''.join(parts)
