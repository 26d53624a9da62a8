"""Optimizers of clients and of the server.

TFF's own SGD and Adam, and beside them

  Nesterov  v <- mu v + g;  w <- w - rate (g + mu v)
  AdamW     w <- w - rate (Adam's step) - rate lambda w
  FedOpt    m <- m + (1 - beta_1)(g - m);  v <- one of `_NEXT_SCALE`
            w <- w - rate m / (sqrt(v) + tau)
  clipping  g <- g min(1, max_norm / |g|)

with weights w, gradient g, the rate of the round >= 0, mu and beta in [0, 1),
lambda >= 0, and moments m and v that begin at 0.
"""

import collections
import typing
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf
import tensorflow_federated as tff

if typing.TYPE_CHECKING:
  from tff_fedfish.config.optimizer_settings import OptimizerSettings

_tffs = tff.learning.optimizers
Optimizer = _tffs.Optimizer
_RATE = _tffs.LEARNING_RATE_KEY
_as_is = tf.autograph.experimental.do_not_convert
_NEXT_SCALE = {
  'adagrad': lambda v, squared, beta_2: v + squared,
  'adam': lambda v, squared, beta_2: v + (squared - v) * (1 - beta_2),
  'yogi': lambda v, squared, beta_2: (
    v - (1 - beta_2) * squared * tf.sign(v - squared)
  ),
}


def build_optimizer(
  settings: 'OptimizerSettings', is_matrix: Sequence[bool]
) -> Optimizer:
  """Builds the optimizer of `config.client_work` or `config.server`.

  It has the base rate. For `is_matrix` see `models.model_shapes.are_matrices`.
  """
  optimizer = _without_clipping(settings, is_matrix)
  max_norm = settings.max_gradient_norm
  return clip_by_global_norm(optimizer, max_norm) if max_norm else optimizer


def _without_clipping(settings, is_matrix):
  name, rate = settings.optimizer, settings.learning_rate
  if name == 'sgd':
    if settings.nesterov:
      return build_nesterov_sgd(rate, settings.momentum)
    return _Unconverted(_tffs.build_sgdm(rate, settings.momentum or None))
  moments = dict(
    beta_1=settings.beta_1, beta_2=settings.beta_2, epsilon=settings.epsilon
  )
  # `build_adamw` without decay is TFF's Adam.
  if name == 'adam' and settings.corrects_bias:
    return build_adamw(rate, **moments)
  if name == 'adamw':
    moments['weight_decay'] = settings.weight_decay
    return build_adamw(rate, **moments, is_decayed=is_matrix)
  if name == 'adagrad':
    moments['beta_1'] = 0.0
  return build_fed_opt(rate, name, **moments)


def build_nesterov_sgd(learning_rate: float, momentum: float) -> Optimizer:
  """Builds SGD with Nesterov momentum.

  Sutskever et al. (2013), "On the importance of initialization and momentum in
  deep learning", with the weights kept at the look-ahead point.
  """

  def step(rate, weight, gradient, velocity):
    mu = tf.cast(momentum, gradient.dtype)
    velocity = mu * velocity + gradient
    change = gradient + mu * velocity
    return weight - tf.cast(rate, weight.dtype) * change, velocity

  return _Unconverted(_Tensorwise(learning_rate, ('accumulator',), step))


def build_adamw(
  learning_rate: float,
  *,
  beta_1: float = 0.9,
  beta_2: float = 0.999,
  epsilon: float = 1e-7,
  weight_decay: float = 0.0,
  is_decayed: Sequence[bool] | None = None,
) -> Optimizer:
  """Builds AdamW: Adam, with weight decay that does not pass the moments.

  Loshchilov and Hutter (2019), "Decoupled weight decay regularization",
  algorithm 2, with the weights before the step. The moments and Adam's step are
  those of TFF's Adam: epsilon is added before the bias is corrected.

  Args:
    learning_rate: The rate.
    beta_1: Decay of the first moment.
    beta_2: Decay of the second moment.
    epsilon: Added to the root of the second moment, > 0.
    weight_decay: lambda. With 0 the optimizer is Adam.
    is_decayed: Flag per weight tensor. None: tensors of rank 2 and above decay.
  """
  adam = _tffs.build_adam(learning_rate, beta_1, beta_2, epsilon)
  if not weight_decay:
    return _Unconverted(adam)

  def step(state, weights, gradients):
    before, rate = tf.nest.flatten(weights), state[_RATE]
    flags = is_decayed or [tensor.shape.rank >= 2 for tensor in before]
    state, weights = adam.next(state, weights, gradients)
    decayed = [
      new - tf.cast(rate * weight_decay, old.dtype) * old if flag else new
      for new, old, flag in zip(
        tf.nest.flatten(weights), before, flags, strict=True
      )
    ]
    return state, tf.nest.pack_sequence_as(weights, decayed)

  return _Unconverted(adam, step)


def build_fed_opt(
  learning_rate: float,
  rule: Literal['adagrad', 'adam', 'yogi'],
  *,
  beta_1: float = 0.9,
  beta_2: float = 0.99,
  epsilon: float = 1e-3,
) -> Optimizer:
  """Builds an adaptive server optimizer of FedOpt, without bias correction.

  Reddi et al. (2021), "Adaptive federated optimization", algorithm 2. Minus the
  gradient is their Delta_t; their v begins with at least tau^2.

  Args:
    learning_rate: Their eta.
    rule: The rule for v.
    beta_1: Decay of m. 0: no momentum, and no m in the state.
    beta_2: Decay of v. Adagrad does not read it.
    epsilon: tau, > 0.
  """

  def step(rate, weight, gradient, *moments):
    mean, scale = moments if beta_1 else (gradient, *moments)
    mean = mean + (gradient - mean) * (1 - beta_1)
    scale = _NEXT_SCALE[rule](scale, tf.square(gradient), beta_2)
    change = tf.cast(rate, weight.dtype) * mean
    weight = weight - change / (tf.sqrt(scale) + epsilon)
    return (weight, mean, scale) if beta_1 else (weight, scale)

  moments = ('accumulator', 'preconditioner') if beta_1 else ('preconditioner',)
  return _Unconverted(_Tensorwise(learning_rate, moments, step))


def clip_by_global_norm(optimizer: Optimizer, max_norm: float) -> Optimizer:
  """Bounds an optimizer's gradients by `clip_to_norm`, over all tensors.

  Pascanu et al. (2013), "On the difficulty of training recurrent neural
  networks", algorithm 1.
  """

  def step(state, weights, gradients):
    # Dense, as sparse gradients may name a row twice.
    gradients = tf.nest.map_structure(tf.convert_to_tensor, gradients)
    gradients, _ = clip_to_norm(gradients, max_norm)
    return optimizer.next(state, weights, gradients)

  return _Unconverted(optimizer, step)


def clip_to_norm(tensors: Any, max_norm: float) -> tuple[Any, tf.Tensor]:
  """Scales tensors t to t min(1, max_norm / |t|), |t| over all entries of all.

  Args:
    tensors: Structure of float tensors, such as a model delta.
    max_norm: The largest L2 norm that is left as it is, > 0.

  Returns:
    (tensors, whether they were scaled, a scalar bool). Within the bound they
    are returned bit for bit. With an entry that is not finite all become NaN,
    so that a client is rejected for it, bound or not.

  Example:
    >>> delta, is_scaled = clip_to_norm([tf.constant([3.0, 4.0])], max_norm=1.0)
    >>> delta[0].numpy(), bool(is_scaled)
    (array([0.6, 0.8], dtype=float32), True)
  """
  flat = tf.nest.flatten(tensors)
  largest = tf.reduce_max(
    [tf.cast(tf.reduce_max(tf.abs(t)), tf.float32) for t in flat]
  )
  # Relative to the largest entry, as the squares may overflow.
  relative = [
    tf.math.divide_no_nan(tf.cast(t, tf.float32), largest) for t in flat
  ]
  squares = [tf.reduce_sum(tf.square(t)) for t in relative]
  relative_norm = tf.sqrt(tf.add_n(squares))
  # False for NaN, which infinite entries become.
  is_within = largest * relative_norm <= max_norm

  def scaled(tensor):
    factor = tf.cast(max_norm / relative_norm, tensor.dtype)
    return tensor / tf.cast(largest, tensor.dtype) * factor

  clipped = tf.cond(
    is_within,
    lambda: tf.nest.map_structure(tf.identity, tensors),
    lambda: tf.nest.map_structure(scaled, tensors),
  )
  return clipped, tf.logical_not(is_within)


class _Unconverted(Optimizer):
  """An optimizer, perhaps with another step; AutoGraph would take a second."""

  def __init__(self, optimizer, step=None):
    self._optimizer, self._step = optimizer, step or optimizer.next

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


class _Tensorwise(Optimizer):
  """Steps each tensor by itself; the state is the rate and named moments.

  `step` is (rate, weight, gradient, *moments) -> (weight, *moments).
  """

  def __init__(self, learning_rate, moments, step):
    self._rate, self._moments, self._step = learning_rate, moments, step

  def initialize(self, specs):
    zeros = {
      name: tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
      for name in self._moments
    }
    return collections.OrderedDict({_RATE: self._rate, **zeros})

  def next(self, state, weights, gradients):
    structures = (weights, gradients, *(state[name] for name in self._moments))
    rows = zip(*map(tf.nest.flatten, structures), strict=True)
    stepped = [self._step(state[_RATE], *row) for row in rows]
    weights, *moments = (
      tf.nest.pack_sequence_as(weights, column)
      for column in zip(*stepped, strict=True)
    )
    moments = dict(zip(self._moments, moments, strict=True))
    return collections.OrderedDict({_RATE: state[_RATE], **moments}), weights

  def get_hparams(self, state):
    return collections.OrderedDict({_RATE: state[_RATE]})

  def set_hparams(self, state, hparams):
    return collections.OrderedDict({**state, _RATE: hparams[_RATE]})
