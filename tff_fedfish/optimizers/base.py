"""Two ways to make an optimizer that TFF does not have.

Their steps have no loops over tensors: AutoGraph, which would take a second to
convert them, leaves them as they are.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require

Structure = Any

RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_as_is = tf.autograph.experimental.do_not_convert


def build_tensorwise(
  learning_rate: float,
  slots: Sequence[str],
  step: Callable[..., tuple[tf.Tensor, ...]],
) -> tff.learning.optimizers.Optimizer:
  """Builds an optimizer that treats every weight tensor by itself.

  Its state is an OrderedDict of the learning rate, the only hyperparameter,
  and a structure like the weights for each slot.

  Args:
    learning_rate: The rate, >= 0.
    slots: Names of the slots, which hold zeros at first.
    step: (rate, weight, gradient, *slots) -> (weight, *slots), tensors.

  Raises:
    ValueError: If the rate is negative.
  """
  require(learning_rate >= 0, 'learning_rate', 'at least 0', learning_rate)
  return _Tensorwise(learning_rate, slots, step)


def wrap(
  optimizer: tff.learning.optimizers.Optimizer,
  step: Callable[
    [Structure, Structure, Structure], tuple[Structure, Structure]
  ],
) -> tff.learning.optimizers.Optimizer:
  """Returns an optimizer with the state of another one, and its own step.

  Args:
    optimizer: The other one.
    step: (state, weights, gradients) -> (state, weights).
  """
  return _Wrapped(optimizer, step)


class _Tensorwise(tff.learning.optimizers.Optimizer):
  def __init__(self, learning_rate, slots, step):
    self._learning_rate, self._slots, self._step = learning_rate, slots, step

  @_as_is
  def initialize(self, specs):
    state = collections.OrderedDict({RATE: self._learning_rate})
    for name in self._slots:
      state[name] = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), specs
      )
    return state

  @_as_is
  def next(self, state, weights, gradients):
    structures = (weights, gradients, *(state[name] for name in self._slots))
    rows = zip(*map(tf.nest.flatten, structures), strict=True)
    stepped = [self._step(state[RATE], *row) for row in rows]
    weights, *slots = (
      tf.nest.pack_sequence_as(weights, column)
      for column in zip(*stepped, strict=True)
    )
    slots = dict(zip(self._slots, slots, strict=True))
    return collections.OrderedDict({RATE: state[RATE], **slots}), weights

  @_as_is
  def get_hparams(self, state):
    return collections.OrderedDict({RATE: state[RATE]})

  @_as_is
  def set_hparams(self, state, hparams):
    return collections.OrderedDict({**state, RATE: hparams[RATE]})


class _Wrapped(tff.learning.optimizers.Optimizer):
  def __init__(self, optimizer, step):
    self._optimizer, self._step = optimizer, step

  @_as_is
  def initialize(self, specs):
    return self._optimizer.initialize(specs)

  @_as_is
  def next(self, state, weights, gradients):
    return self._step(state, weights, gradients)

  @_as_is
  def get_hparams(self, state):
    return self._optimizer.get_hparams(state)

  @_as_is
  def set_hparams(self, state, hparams):
    return self._optimizer.set_hparams(state, hparams)
