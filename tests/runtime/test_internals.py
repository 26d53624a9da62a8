"""Private names of TensorFlow are where the engine looks.

An import of `tff_internals` names what a version of TFF has moved.
"""

import tensorflow as tf
from tensorflow.python.eager import context

from tff_fedfish.runtime import tensorflow_internals


def test_names_of_tensorflow():
  see = 'docs/upgrading.md says what it is needed for'
  eager = context.context()
  for name in ('function_call_options', 'has_function', 'remove_function'):
    assert hasattr(eager, name), f'{tf.__version__} has no {name}; {see}'
  function = tf.function(lambda x: [x + 1]).get_concrete_function(
    tf.TensorSpec([])
  )
  assert hasattr(function, '_call_flat'), f'{tf.__version__}; {see}'
  (found,) = tensorflow_internals.call_flat(function, [tf.constant(2.0)])
  assert float(found) == 3.0
