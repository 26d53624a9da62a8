"""Bases of the optimizers that TFF does not have."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

Structure = Any

RATE = tff.learning.optimizers.LEARNING_RATE_KEY


class OwnOptimizer(tff.learning.optimizers.Optimizer):
  """An optimizer whose only hyperparameter in the state is the learning rate.

  The state is an OrderedDict that begins with it; the other constants are part
  of the graph.
  """

  def get_hparams(self, state: Structure) -> Structure:
    """Returns the learning rate by its name."""
    return collections.OrderedDict({RATE: state[RATE]})

  def set_hparams(self, state: Structure, hparams: Structure) -> Structure:
    """Returns the state with another learning rate."""
    return collections.OrderedDict({**state, RATE: hparams[RATE]})


class WrappedOptimizer(tff.learning.optimizers.Optimizer):
  """An optimizer that changes the steps of another one, not its state."""

  def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
    """Keeps the optimizer whose state this one has."""
    self._optimizer = optimizer

  def initialize(self, specs: Structure) -> Structure:
    """Returns the other optimizer's initial state."""
    return self._optimizer.initialize(specs)

  def get_hparams(self, state: Structure) -> Structure:
    """Returns the other optimizer's hyperparameters."""
    return self._optimizer.get_hparams(state)

  def set_hparams(self, state: Structure, hparams: Structure) -> Structure:
    """Returns the other optimizer's state with other hyperparameters."""
    return self._optimizer.set_hparams(state, hparams)


def require(is_met: bool, name: str, wanted: str, value: Any) -> None:
  """Raises ValueError, naming an argument, unless what it must be is met."""
  if not is_met:
    raise ValueError(f'`{name}` must be {wanted}, found {value!r}.')


def full_like(specs: Structure, value: float) -> Structure:
  """Returns tensors of the specs' shapes and dtypes, filled with a number."""
  return tf.nest.map_structure(
    lambda spec: tf.fill(spec.shape, tf.cast(value, spec.dtype)), specs
  )


def map_tensors(
  step: Callable[..., tuple[tf.Tensor, ...]], *structures: Structure
) -> tuple[Structure, ...]:
  """Applies a step to the corresponding tensors of several structures.

  Args:
    step: From a tensor of each structure, some new tensors.
    *structures: Structures alike.

  Returns:
    A structure for each tensor that `step` returns.
  """
  flat = [tf.nest.flatten(structure) for structure in structures]
  columns = zip(*(step(*row) for row in zip(*flat, strict=True)), strict=True)
  return tuple(tf.nest.pack_sequence_as(structures[0], c) for c in columns)
