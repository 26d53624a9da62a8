"""Who may import what, read from the syntax trees of all files."""

import ast
import collections
import graphlib
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ('tff_fedfish', 'pipelines', 'models', 'configs')
_TFF = 'tensorflow_federated'
_BEAM = 'apache_beam'
# What takes seconds to import.
_HEAVY = ('tensorflow', 'tensorflow_text', _TFF, _BEAM)
_METHODS = 'tff_fedfish.algorithms'


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
      if isinstance(child, ast.If) and 'TYPE_CHECKING' in ast.unparse(
        child.test
      ):
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
      yield from visit(child, at_top and not inside)

  yield from visit(tree, True)


def _is_in(module: str, *packages: str) -> bool:
  return any(f'{module}.'.startswith(f'{package}.') for package in packages)


# Modules that may use what these libraries do not publish.
_INTERNALS = {
  'tensorflow_federated.python': 'tff_fedfish.runtime.tff_internals',
  'tensorflow_federated.proto': 'tff_fedfish.runtime.tff_internals',
  'tensorflow.python': 'tff_fedfish.runtime.tensorflow_internals',
  'tensorflow.core': 'tff_fedfish.runtime.tensorflow_internals',
  'ray._private': 'tff_fedfish.runtime.ray_internals',
}


def _import_problem(importer: str, imported: _Import) -> str:
  """Returns the rule that an import breaks, '' if none."""
  module = imported.module
  pure = (
    _is_in(importer, 'models', 'tff_fedfish.methods.fed_fish.fisher')
    or _is_in(importer, 'tff_fedfish.methods.fed_fish.fisher_diagonal')
    or _is_in(importer, 'tff_fedfish.rounds.gradients')
    or _is_in(importer, 'tff_fedfish.methods.one_shot.curvature')
    or _is_in(importer, 'tff_fedfish.rounds.local_training')
    or _is_in(importer, 'tff_fedfish.methods.tct.tangent_features')
    or _is_in(importer, 'tff_fedfish.mathematics')
  ) and importer != 'models.functional_model'
  is_method = importer.rpartition('.')[0] == _METHODS
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
    'tff_fedfish/data/ imports neither Beam nor TFF': _is_in(
      importer, 'tff_fedfish.data'
    )
    and _is_in(module, _BEAM, _TFF),
    'pure mathematics never imports TFF': pure and _is_in(module, _TFF),
    'methods never import each other': is_method
    and _is_in(module, _METHODS)
    and not _is_in(module, f'{_METHODS}.slots')
    and module != _METHODS,
    'runtime/ knows no algorithm': _is_in(importer, 'tff_fedfish.runtime')
    and _is_in(module, _METHODS),
    'a module imports itself': module == importer,
    'private names of a library are used in one module': any(
      _is_in(module, private) and importer != allowed
      for private, allowed in _INTERNALS.items()
    ),
    'cli/ and configs import TensorFlow late': imported.at_top
    and _answers_at_once(importer)
    and _is_in(module, *_HEAVY),
  }
  return next((rule for rule, broken in forbidden.items() if broken), '')


def _reads_arguments(importer: str) -> bool:
  programs = ('tff_fedfish.__main__', 'pipelines.clusters.spark_host')
  return _is_in(importer, 'tff_fedfish.cli', *programs)


def _answers_at_once(importer: str) -> bool:
  return _reads_arguments(importer) or _is_in(
    importer,
    'configs',
    'models.layers',
    'models.transformer_config',
    'tff_fedfish.methods.one_shot.curvature_shapes',
    'tff_fedfish.methods.tct.tangent_shapes',
    'tff_fedfish.doctor',
    'tff_fedfish.environment',
    'tff_fedfish.errors',
    'tff_fedfish.files',
    'tff_fedfish.config',
    'tff_fedfish.config_fields',
  )


def _problems(importer: str, source: str) -> list[str]:
  """Returns what breaks a rule in one file.

  Args:
    importer: The file's dotted name.
    source: Its text.
  """
  tree = ast.parse(source)
  problems = {
    f'{importer}:{imported.line}: {problem} ({imported.module})'
    for imported in _imports(tree)
    if (problem := _import_problem(importer, imported))
  }
  for node in ast.walk(tree):
    if (
      isinstance(node, ast.Attribute)
      and ast.unparse(node) == 'sys.argv'
      and not _reads_arguments(importer)
    ):
      problems.add(f'{importer}:{node.lineno}: only cli/ reads arguments')
    if (
      isinstance(node, ast.Attribute)
      and node.attr in ('_private', '_call_flat')
      and importer not in _INTERNALS.values()
    ):
      problems.add(
        f'{importer}:{node.lineno}: private names of a library are used in one '
        f'module ({node.attr})'
      )
    # NumPy's way to pickle.
    if isinstance(node, ast.keyword) and node.arg == 'allow_pickle':
      problems.add(f'{importer}:{node.value.lineno}: nothing reads pickle')
  return sorted(problems)


def _files() -> Iterator[tuple[str, pathlib.Path]]:
  for package in _PACKAGES:
    for path in sorted((_ROOT / package).rglob('*.py')):
      parts = path.relative_to(_ROOT).with_suffix('').parts
      yield '.'.join(parts).removesuffix('.__init__'), path


def test_no_file_breaks_a_rule():
  files = list(_files())
  assert len(files) > 40
  assert not [
    problem
    for importer, path in files
    for problem in _problems(importer, path.read_text('utf-8'))
  ]


@pytest.mark.parametrize(
  ('importer', 'source', 'rule'),
  [
    ('pipelines.c4', 'import tensorflow_federated as tff', 'never imports TFF'),
    (
      'pipelines.c4',
      'from tensorflow_federated import learning',
      'imports TFF',
    ),
    ('pipelines.c4', 'def f():\n  import tensorflow_federated', 'imports TFF'),
    ('tff_fedfish.data.records', 'import apache_beam', 'neither Beam nor TFF'),
    ('tff_fedfish.data.records', 'import apache_beam.io', 'neither Beam nor'),
    ('tff_fedfish.data.x', 'import tensorflow_federated', 'neither Beam nor'),
    ('models.attention', 'import tensorflow_federated', 'pure mathematics'),
    (
      'tff_fedfish.methods.fed_fish.fisher_diagonal',
      'import tensorflow_federated',
      'pure',
    ),
    (
      'tff_fedfish.rounds.local_training',
      'import tensorflow_federated',
      'pure',
    ),
    (
      'tff_fedfish.methods.one_shot.curvature',
      'import tensorflow_federated',
      'pure',
    ),
    (
      'tff_fedfish.methods.tct.tangent_features',
      'import tensorflow_federated',
      'pure',
    ),
    (
      'tff_fedfish.methods.one_shot.curvature_shapes',
      'import tensorflow',
      'TensorFlow late',
    ),
    (
      'tff_fedfish.methods.tct.tangent_shapes',
      'import tensorflow',
      'TensorFlow late',
    ),
    (
      'tff_fedfish.algorithms.fed_avg',
      'from tff_fedfish.methods.fed_fish.process import build_fed_fish',
      'methods never import each other',
    ),
    (
      'tff_fedfish.algorithms.fed_avg',
      'from tff_fedfish.algorithms import fed_fish',
      'methods never import each other',
    ),
    (
      'tff_fedfish.runtime.execution',
      'import tff_fedfish.algorithms.fed_avg',
      'runtime/ knows no algorithm',
    ),
    (
      'tff_fedfish.runtime.values',
      'from tensorflow_federated.python.common_libs import structure',
      'private names of a library',
    ),
    (
      'tff_fedfish.runtime.tff_internals',
      'from tensorflow.python.eager import context',
      'private names of a library',
    ),
    ('tff_fedfish.demo', 'ray._private.worker', 'private names of a library'),
    ('tff_fedfish.demo', 'from configs import demo', 'nothing imports configs'),
    ('tff_fedfish.demo', 'from tff_fedfish import demo', 'imports itself'),
    ('tff_fedfish.demo', 'import tff_fedfish.demo', 'imports itself'),
    ('tff_fedfish.demo', 'import argparse', 'only cli/ reads arguments'),
    ('tff_fedfish.demo', 'import sys\nx = sys.argv[1]', 'only cli/ reads'),
    ('tff_fedfish.demo', 'from sys import argv', 'only cli/ reads arguments'),
    ('tff_fedfish.files', 'import pickle', 'nothing writes or reads pickle'),
    ('models.x', 'np.load(path, allow_pickle=True)', 'nothing reads pickle'),
    ('tff_fedfish.cli.train', 'import tensorflow as tf', 'TensorFlow late'),
    ('tff_fedfish.cli.train', 'if x:\n  import apache_beam', 'late'),
    ('tff_fedfish.cli.train', 'class A:\n  import tensorflow', 'late'),
    ('configs.demo', 'import tensorflow', 'TensorFlow late'),
    ('tff_fedfish.config.schema', 'import tensorflow', 'TensorFlow late'),
    ('tff_fedfish.demo', 'from . import files', 'relative imports'),
  ],
)
def test_planted_violation_is_found(importer, source, rule):
  problems = _problems(importer, source)
  assert problems
  assert all(rule in problem for problem in problems)
  assert all(problem.startswith(f'{importer}:') for problem in problems)


@pytest.mark.parametrize(
  ('importer', 'source'),
  [
    ('pipelines.write_groups', 'import apache_beam'),
    ('tff_fedfish.data.records', 'import tensorflow'),
    ('models.functional_model', 'import tensorflow_federated'),
    (
      'tff_fedfish.algorithms.fed_avg',
      'from tff_fedfish.algorithms.slots import compose',
    ),
    ('tff_fedfish.cli.train', 'def run():\n  import tensorflow'),
    (
      'tff_fedfish.cli.train',
      'if TYPE_CHECKING:\n  import tensorflow',
    ),
    ('tff_fedfish.cli.train', 'import argparse, sys\nx = sys.argv'),
    ('tff_fedfish.training.train', 'import tensorflow'),
    # A name that only begins like a forbidden one.
    ('tff_fedfish.demo', 'import configs_of_mine'),
  ],
)
def test_what_is_allowed_is_not_reported(importer, source):
  assert not _problems(importer, source)


def _package_imports(
  files: Iterable[tuple[str, str]],
) -> dict[str, set[str]]:
  """Returns package -> modules of other packages that it imports.

  A module directly below tff_fedfish is a package of its own. Imports inside
  functions count.

  Args:
    files: Dotted name and text of every file.
  """
  sources = {
    name.removeprefix('tff_fedfish.'): source
    for name, source in files
    if name.startswith('tff_fedfish.')
  }
  found = collections.defaultdict(set)
  for importer, source in sources.items():
    package = _package(importer)
    by_line = collections.defaultdict(set)
    for imported in _imports(ast.parse(source)):
      module = imported.module
      while module and module.removeprefix('tff_fedfish.') not in sources:
        module = module.rpartition('.')[0]
      by_line[imported.line].add(module.removeprefix('tff_fedfish.'))
    for modules in by_line.values():
      found[package] |= {
        module
        for module in modules - {''}
        # `from a import b` is an import of a.b where that is a module.
        if not any(other.startswith(f'{module}.') for other in modules)
        and _package(module) != package
      }
  return found


def _package(module: str) -> str:
  return module.partition('.')[0]


def _circle(package_imports: dict[str, set[str]]) -> list[str]:
  """Returns packages that import each other in turn, [] if none do."""
  graph = {
    package: set(map(_package, modules))
    for package, modules in package_imports.items()
  }
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    return error.args[1]
  return []


def test_packages_import_each_other_one_way():
  found = _package_imports(
    (name, path.read_text('utf-8')) for name, path in _files()
  )
  assert {'cli', 'data', 'errors', 'planning', 'training'} <= set(found)
  assert not _circle(found)


@pytest.mark.parametrize(
  ('sources', 'circle'),
  [
    ({'a.x': 'import tff_fedfish.b.y', 'b.y': 'import tff_fedfish.c'}, set()),
    (
      {'a.x': 'import tff_fedfish.b.y', 'b.y': 'from tff_fedfish.a import x'},
      {'a', 'b'},
    ),
    # Through a third, inside a function and by a name of a package itself.
    (
      {
        'a.x': 'def f():\n  from tff_fedfish.b.y import z',
        'b.y': 'from tff_fedfish import c',
        'c': 'from tff_fedfish.a import NAME',
        'a': 'NAME = 1',
      },
      {'a', 'b', 'c'},
    ),
    (
      {
        'a.x': 'if typing.TYPE_CHECKING:\n  import tff_fedfish.b.y',
        'b.y': 'import tff_fedfish.a.x',
      },
      set(),
    ),
    ({'a.x': 'import tff_fedfish.a.y', 'a.y': 'import tff_fedfish.a.x'}, set()),
  ],
)
def test_planted_circle_is_found(sources, circle):
  files = [(f'tff_fedfish.{name}', source) for name, source in sources.items()]
  assert set(_circle(_package_imports(files))) == circle
