"""Private names of TFF and TensorFlow are where the engine looks."""

import ast
import importlib
import pathlib

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context

from tff_fedfish.runtime import tensorflow_internals, tff_internals

_SEE = 'docs/upgrading.md says what it is needed for'


def _moved(module, library):
  """Returns a line for each name that a module imports and does not find."""
  tree = ast.parse(pathlib.Path(module.__file__).read_text('utf-8'))
  lines = []
  for node in tree.body:
    if not isinstance(node, ast.ImportFrom):
      continue
    for alias in node.names:
      try:
        found = hasattr(importlib.import_module(node.module), alias.name)
        found = found or importlib.import_module(f'{node.module}.{alias.name}')
      except ImportError:
        found = False
      if not found:
        lines.append(
          f'{library.__name__} {library.__version__} has no '
          f'{node.module}.{alias.name}; {_SEE}'
        )
  return lines


def test_names_of_tff():
  assert not _moved(tff_internals, tff)


def test_names_of_tensorflow():
  assert not _moved(tensorflow_internals, tf)
  eager = context.context()
  for name in (
    'config',
    'function_call_options',
    'has_function',
    'remove_function',
  ):
    assert hasattr(eager, name), f'{tf.__version__} has no {name}; {_SEE}'
  function = tf.function(lambda x: [x + 1]).get_concrete_function(
    tf.TensorSpec([])
  )
  assert hasattr(function, '_call_flat'), f'{tf.__version__}; {_SEE}'
  (found,) = tensorflow_internals.call_flat(function, [tf.constant(2.0)])
  assert float(found) == 3.0
