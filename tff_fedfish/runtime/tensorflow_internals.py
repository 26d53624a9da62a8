"""Private names of TensorFlow that the engine needs.

They are used here only; docs/upgrading.md says what to look for when a version
moves them.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context


def call_flat(function: Any, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
  """Calls a concrete function on a flat list of tensors.

  The public way first tries the arguments by name and formats every tensor into
  an error that it discards: 50 ms a call at a million weights.
  """
  return function._call_flat(  # pylint: disable=protected-access
    arguments, function.captured_inputs
  )


def remove_functions(names: Iterable[str]) -> None:
  """Removes functions from the eager context, which otherwise keeps them."""
  eager = context.context()
  for name in names:
    # They were added once for each function that was made of their graph.
    while eager.has_function(name):
      eager.remove_function(name)


@contextlib.contextmanager
def without_grappler() -> Iterator[None]:
  """Calls functions as they are, in this thread.

  Grappler would fold the initial weights of a large model, for minutes.
  """
  eager = context.context()
  config = eager.config
  config.allow_soft_placement = True
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  kept = eager.function_call_options
  eager.function_call_options = context.FunctionCallOptions(config_proto=config)
  try:
    yield
  finally:
    eager.function_call_options = kept
