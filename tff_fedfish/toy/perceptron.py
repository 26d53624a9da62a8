"""A perceptron of one input and one output, in plain TensorFlow.

  f(x) = b_L + W_L tanh( ... tanh(b_1 + W_1 x) ... )

Weights are a tuple (W_1, b_1, ..., W_L, b_L) of kernels [..., fan_in, fan_out]
and biases [..., fan_out]. Leading axes hold several models side by side, so
that small ones train in one operation.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_fedfish.data import randomness

Weights = tuple[tf.Tensor, ...]

# Those of TFF's Adam.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7


def initial_weights(hidden_widths: Sequence[int], seed: int) -> Weights:
  """Draws kernels and biases uniformly from +-1 / sqrt(fan_in).

  Args:
    hidden_widths: Units of the hidden layers.
    seed: Equal seeds give equal weights.

  Returns:
    Float32 weights of one model.
  """
  generator = randomness.generator('toy_weights', seed)
  weights = []
  for fan_in, fan_out in itertools.pairwise((1, *hidden_widths, 1)):
    bound = fan_in**-0.5
    for shape in ((fan_in, fan_out), (fan_out,)):
      values = generator.uniform(-bound, bound, shape)
      weights.append(tf.constant(values.astype(np.float32)))
  return tuple(weights)


def predict(weights: Weights, inputs: tf.Tensor) -> tf.Tensor:
  """Returns f(x).

  Args:
    weights: Of one model or, with leading axes, of several.
    inputs: [..., num_examples], leading axes as in `weights`.

  Returns:
    Outputs shaped like `inputs`.
  """
  layers = list(zip(weights[::2], weights[1::2], strict=True))
  values = inputs[..., tf.newaxis]
  for number, (kernel, bias) in enumerate(layers, start=1):
    values = tf.matmul(values, kernel) + bias[..., tf.newaxis, :]
    if number < len(layers):
      values = tf.tanh(values)
  return values[..., 0]


def mean_squared_error(
  weights: Weights, inputs: tf.Tensor, targets: tf.Tensor
) -> tf.Tensor:
  """Returns the mean over the last axis of (f(x) - y)^2, [...]."""
  return tf.reduce_mean(tf.square(predict(weights, inputs) - targets), axis=-1)


@tf.function
def train(
  weights: Weights,
  inputs: tf.Tensor,
  targets: tf.Tensor,
  *,
  num_steps: int,
  learning_rate: float,
) -> Weights:
  """Trains models side by side, each on all of its own data at every step.

  Args:
    weights: With a leading axis of models.
    inputs: [num_models, num_examples].
    targets: [num_models, num_examples].
    num_steps: Steps of Adam on the mean squared error.
    learning_rate: Its step size.

  Returns:
    The trained weights.
  """
  first = tf.nest.map_structure(tf.zeros_like, weights)
  second = tf.nest.map_structure(tf.zeros_like, weights)
  for step in tf.range(1, num_steps + 1):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      # No model's error depends on another's weights: the gradient of the sum
      # is the gradient of each.
      loss = tf.reduce_sum(mean_squared_error(weights, inputs, targets))
    gradients = tape.gradient(loss, weights)
    weights, first, second = _adam_step(
      tf.cast(step, tf.float32),
      learning_rate,
      gradients,
      weights,
      first,
      second,
    )
  return weights


def _adam_step(step, learning_rate, gradients, weights, first, second):
  """Returns weights and moments after step number `step`, from 1 on."""
  first = tf.nest.map_structure(
    lambda m, g: _BETA_1 * m + (1 - _BETA_1) * g, first, gradients
  )
  second = tf.nest.map_structure(
    lambda v, g: _BETA_2 * v + (1 - _BETA_2) * tf.square(g), second, gradients
  )
  bias_1, bias_2 = 1 - _BETA_1**step, 1 - _BETA_2**step
  weights = tf.nest.map_structure(
    lambda w, m, v: (
      w - learning_rate * (m / bias_1) / (tf.sqrt(v / bias_2) + _EPSILON)
    ),
    weights,
    first,
    second,
  )
  return weights, first, second
