"""Computations without parameters, whose large results are not kept.

TensorFlow folds what depends on no input into constants, which a function keeps
as long as it lives: a model's worth for the zeros of every sum and of every
optimizer.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tff_fedfish.runtime.graph_function import GraphFunction

# Results of a computation, and a single tensor, above these are not kept.
_MAX_FUNCTION_BYTES = 16 * 2**20
_MAX_TENSOR_BYTES = 100 * 2**10


class NoArgumentFunction:
  """A computation without parameters, imported anew where it would keep much.

  It runs at every call, as it may draw random numbers.
  """

  def __init__(self, proto):
    """Imports nothing yet; `proto` as for GraphFunction."""
    self._proto = proto
    self._function = None

  def __call__(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the results; `arguments` is empty."""
    function = self._function or GraphFunction(self._proto)
    results = function(arguments)
    if sum(map(_num_bytes, results)) <= _MAX_FUNCTION_BYTES:
      self._function = function
    return results


class RepeatedConstants:
  """A computation that always returns the same, such as the zeros of a sum."""

  def __init__(self, proto):
    """Imports nothing yet; `proto` as for GraphFunction."""
    self._proto = proto
    self._makers: list[Callable[[], tf.Tensor]] | None = None

  def __call__(self) -> list[tf.Tensor]:
    """Returns the constants; large ones of one value are made anew."""
    if self._makers is None:
      self._makers = [*map(_maker, GraphFunction(self._proto)([]))]
    return [make() for make in self._makers]


def _maker(tensor):
  if _num_bytes(tensor) > _MAX_TENSOR_BYTES:
    array = tensor.numpy()
    value = array.flat[0]
    if np.array_equal(array, np.broadcast_to(value, array.shape)):
      return functools.partial(tf.fill, tensor.shape, value)
  return lambda: tensor


def _num_bytes(tensor):
  # Strings and other things without a size are small.
  return math.prod(tensor.shape) * getattr(tensor.dtype, 'size', 0)
