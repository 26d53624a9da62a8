"""Who may import what, read from the syntax trees of all files."""

import ast
import graphlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import source_files

_PACKAGES = ('tff_fedfish', 'pipelines', 'models', 'configs')
_TFF = 'tensorflow_federated'
_BEAM = 'apache_beam'
# What takes seconds to import.
_HEAVY = ('tensorflow', 'tensorflow_text', _TFF, _BEAM)

# A room imports those below it; rooms of one line do not import each other.
_CHAIN = (
  {'__init__', '__main__'},
  {'cli'},
  {'sweeping'},
  {'training', 'reporting', 'exporting'},
  {'evaluation'},
  {'run'},
  {'planning'},
  {'config'},
  {'methods'},
  {'rounds'},
  {'optimizers', 'runtime'},
  {'huggingface'},
  {'pipelines'},
  {'models', 'data'},
  {'fields', 'environment', 'files', 'locks', 'progress'},
  {'json_values', 'printing'},
  {'corpora', 'errors', 'late', 'version'},
)
_PLACE = {room: place for place, group in enumerate(_CHAIN) for room in group}
# The names of keys and sources, which a manifest holds.
_ALLOWED = {('data', 'pipelines')}


class _Import(NamedTuple):
  module: str  # Dotted, as imported; `from a import b` gives a and a.b.
  line: int
  at_top: bool  # Runs when the file is imported.


def _imports(tree: ast.Module) -> Iterator[_Import]:
  """Yields every import, but for those that only type checkers see."""

  def visit(node, at_top):
    for child in ast.iter_child_nodes(node):
      inside = isinstance(
        child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
      )
      if isinstance(child, ast.If) and _name(child.test) == 'TYPE_CHECKING':
        for branch in child.orelse:
          yield from visit(branch, at_top)
        continue
      if isinstance(child, ast.Import):
        for alias in child.names:
          yield _Import(alias.name, child.lineno, at_top)
      elif isinstance(child, ast.ImportFrom):
        # A relative import could hide its target from these rules.
        base = child.module if not child.level else f'.{child.module or ""}'
        yield _Import(base, child.lineno, at_top)
        for alias in child.names:
          yield _Import(f'{base}.{alias.name}', child.lineno, at_top)
      # `tff_fedfish.late.module`.
      if isinstance(child, ast.Call) and _name(child.func) == 'module':
        yield _Import(child.args[0].value, child.lineno, at_top=False)
      yield from visit(child, at_top and not inside)

  yield from visit(tree, True)


def _name(node: ast.AST) -> str:
  """Returns `name` of the expressions `name` and `x.name`."""
  return getattr(node, 'id', getattr(node, 'attr', ''))


def _is_in(module: str, *packages: str) -> bool:
  return any(f'{module}.'.startswith(f'{package}.') for package in packages)


def _room(module: str) -> str | None:
  """Returns the room of a module of the project, None for others."""
  top, _, rest = module.partition('.')
  if top == 'tff_fedfish':
    return rest.partition('.')[0] or '__init__'
  return top if top in ('models', 'pipelines') else None


# Modules that may use what these libraries do not publish.
_INTERNALS = {
  'tensorflow_federated.python': 'tff_fedfish.runtime.tff_internals',
  'tensorflow_federated.proto': 'tff_fedfish.runtime.tff_internals',
  'tensorflow.python': 'tff_fedfish.runtime.tensorflow_internals',
  'tensorflow.core': 'tff_fedfish.runtime.tensorflow_internals',
}
_METHODS = {
  path.stem for path in (source_files.ROOT / 'tff_fedfish/methods').iterdir()
} - {'method', 'parts', 'settings', 'registry', 'describe'}


def _reads_arguments(importer: str) -> bool:
  return _is_in(importer, 'tff_fedfish.cli', 'tff_fedfish.__main__')


def _answers_at_once(importer: str) -> bool:
  """Returns whether importing the module must not import TensorFlow."""
  method = importer.removeprefix('tff_fedfish.methods')
  return (
    _reads_arguments(importer)
    or _is_in(importer, 'configs', 'models.layers', 'models.transformer_config')
    or (method != importer and method.count('.') <= 1)
    or (_room(importer) or '') in ('environment', 'errors', 'files')
    or _room(importer) in ('config', 'fields')
  )


def _is_sibling(importer: str, module: str) -> bool:
  """Returns whether a method imports another."""
  one, other = (
    name.removeprefix('tff_fedfish.methods.').partition('.')[0]
    for name in (importer, module)
  )
  return one != other and {one, other} <= _METHODS


def _order_problem(importer: str, module: str) -> str:
  pair = _room(importer), _room(module)
  # `from tff_fedfish import files` names the package, too.
  is_free = None in pair or pair[0] == pair[1] or module == 'tff_fedfish'
  if is_free or pair in _ALLOWED:
    return ''
  places = [_PLACE.get(room) for room in pair]
  if None in places:
    return 'a room has no place in the order'
  return '' if places[0] < places[1] else 'imports go one way'


def _import_problem(importer: str, imported: _Import) -> str:
  """Returns the rule that an import breaks, '' if none."""
  module = imported.module
  forbidden = {
    'relative imports are not used': module.startswith('.'),
    'nothing writes or reads pickle': _is_in(
      module, 'pickle', 'cloudpickle', 'dill', 'joblib', 'shelve', 'marshal'
    ),
    'nothing imports configs': _is_in(module, 'configs'),
    'only cli/ reads arguments': _is_in(module, 'argparse', 'sys.argv')
    and not _reads_arguments(importer),
    'pipelines/ never imports TFF': _is_in(importer, 'pipelines')
    and _is_in(module, _TFF),
    'data/ imports neither Beam nor TFF': _is_in(importer, 'tff_fedfish.data')
    and _is_in(module, _BEAM, _TFF),
    'models/ is pure TensorFlow': _is_in(importer, 'models')
    and importer != 'models.functional_model'
    and _is_in(module, _TFF),
    'methods never import each other': _is_sibling(importer, module),
    'private names of a library are used in one module': any(
      _is_in(module, private) and importer != allowed
      for private, allowed in _INTERNALS.items()
    ),
    'TensorFlow is imported late': imported.at_top
    and _answers_at_once(importer)
    and _is_in(module, *_HEAVY),
  }
  broken = (rule for rule, holds in forbidden.items() if holds)
  return next(broken, '') or _order_problem(importer, module)


def _problems(importer: str, tree: ast.Module) -> list[str]:
  """Returns what breaks a rule in the file with a dotted name."""
  problems = {
    f'{importer}:{imported.line}: {problem} ({imported.module})'
    for imported in _imports(tree)
    if (problem := _import_problem(importer, imported))
  }
  for node in ast.walk(tree):
    problem = ''
    if isinstance(node, ast.Attribute):
      if node.attr == 'argv' and not _reads_arguments(importer):
        problem = 'only cli/ reads arguments'
      if node.attr in ('_private', '_call_flat') and (
        importer not in _INTERNALS.values()
      ):
        problem = 'private names of a library are used in one module'
    # NumPy's way to pickle.
    elif isinstance(node, ast.keyword) and node.arg == 'allow_pickle':
      problem = 'nothing reads pickle'
    if problem:
      problems.add(f'{importer}:{node.lineno}: {problem}')
  return sorted(problems)


def _files() -> dict[str, ast.Module]:
  """Returns the tree of every source file by its dotted name."""
  return {
    path.removesuffix('.py').replace('/', '.').removesuffix('.__init__'): tree
    for path, tree in source_files.trees(*_PACKAGES).items()
  }


def test_no_file_breaks_a_rule():
  files = _files()
  assert len(files) > 200
  assert not [
    problem
    for importer, tree in files.items()
    for problem in _problems(importer, tree)
  ]


@pytest.mark.parametrize(
  ('importer', 'source', 'rule'),
  [
    ('pipelines.job', 'def f():\n  import tensorflow_federated', 'imports TFF'),
    ('tff_fedfish.data.records', 'import apache_beam.io', 'neither Beam nor'),
    ('models.attention', 'import tensorflow_federated', 'pure TensorFlow'),
    (
      'tff_fedfish.methods.fed_avg',
      'def f():\n  from tff_fedfish.methods.fed_fish import process',
      'methods never import each other',
    ),
    (
      'tff_fedfish.runtime.values',
      'from tff_fedfish.methods import fed_avg',
      'imports go one way',
    ),
    ('tff_fedfish.files', 'from tff_fedfish import sweeping', 'one way'),
    ('tff_fedfish.files', "x = module('tff_fedfish.run.build')", 'one way'),
    ('tff_fedfish.unknown.x', 'import tff_fedfish.files', 'no place'),
    (
      'tff_fedfish.runtime.tff_internals',
      'from tensorflow.python.eager import context',
      'private names of a library',
    ),
    ('tff_fedfish.run.x', 'ray._private.worker', 'private names of a library'),
    ('tff_fedfish.run.x', 'from configs import demo', 'imports configs'),
    ('tff_fedfish.run.x', 'import sys\nx = sys.argv[1]', 'only cli/ reads'),
    ('tff_fedfish.run.x', 'from sys import argv', 'only cli/ reads arguments'),
    ('tff_fedfish.files', 'import pickle', 'nothing writes or reads pickle'),
    ('models.x', 'np.load(path, allow_pickle=True)', 'nothing reads pickle'),
    ('tff_fedfish.cli.train', 'if x:\n  import apache_beam', 'late'),
    ('tff_fedfish.methods.moon', 'import tensorflow as tf', 'late'),
    ('tff_fedfish.run.x', 'from . import files', 'relative imports'),
  ],
)
def test_planted_violation_is_found(importer, source, rule):
  problems = _problems(importer, ast.parse(source))
  assert problems
  assert all(rule in problem for problem in problems)
  assert all(problem.startswith(f'{importer}:') for problem in problems)


@pytest.mark.parametrize(
  ('importer', 'source'),
  [
    ('pipelines.write_groups', 'import apache_beam'),
    ('tff_fedfish.data.records', 'import tensorflow'),
    ('models.functional_model', 'import tensorflow_federated'),
    ('tff_fedfish.methods.moon', 'def f():\n  import tensorflow'),
    ('tff_fedfish.methods.moon', 'from tff_fedfish.methods import settings'),
    ('tff_fedfish.methods.moon', 'from tff_fedfish.rounds import kept'),
    ('tff_fedfish.cli.train', 'if TYPE_CHECKING:\n  import tensorflow'),
    ('tff_fedfish.cli.train', 'import argparse, sys\nx = sys.argv'),
    # A name that only begins like a forbidden one.
    ('tff_fedfish.run.x', 'import configs_of_mine'),
  ],
)
def test_what_is_allowed_is_not_reported(importer, source):
  assert not _problems(importer, ast.parse(source))


def _circle(files: dict[str, ast.Module]) -> list[str]:
  """Returns files that import each other in turn, [] if none do.

  A package's own file may import its parts, late ones included.
  """
  graph = {
    importer: {
      imported.module
      for imported in _imports(tree)
      if imported.module in files
      and not _is_in(importer, imported.module)
      and (imported.at_top or not _is_in(imported.module, importer))
    }
    for importer, tree in files.items()
  }
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    return error.args[1]
  return []


def test_files_import_each_other_one_way():
  assert not _circle(_files())


@pytest.mark.parametrize(
  ('sources', 'circle'),
  [
    ({'a.x': 'import b.y', 'b.y': 'import c', 'c': ''}, set()),
    (
      {'a.x': 'import a.y', 'a.y': 'def f():\n  from a import x'},
      {'a.x', 'a.y'},
    ),
    ({'a.x': 'if TYPE_CHECKING:\n  import b.y', 'b.y': 'import a.x'}, set()),
  ],
)
def test_planted_circle_is_found(sources, circle):
  files = {name: ast.parse(source) for name, source in sources.items()}
  assert set(_circle(files)) == circle
