"""The one loop over batches, rows and candidates inside a `tf.function`."""

from collections.abc import Callable
from typing import Any

from tff_fedfish.late import tf
from tff_fedfish.rounds.client import Structure


def fold(
  elements: Any, state: Structure, step: Callable[[Structure, Any], Structure]
) -> Structure:
  """Returns the state after `step(state, element)` of all elements, in order.

  It iterates over a dataset: reducing it would leave accelerators idle. One
  iteration runs at a time: TensorFlow's ten would keep the activations of as
  many batches where, as in an evaluation, none waits for the one before it.

  Args:
    elements: A `tf.data.Dataset`, or a tensor, for its entries.
    state: Structure of tensors.
    step: Traced by AutoGraph.
  """
  if isinstance(elements, tf.data.Dataset):
    elements = iter(elements)
  for element in elements:
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    state = step(state, element)
  return state
