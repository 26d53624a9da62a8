"""One round of a toy regression: the same local models, aggregated twice.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", figure 2, equations 4 and 5, and section 5.1. The paper
prints neither the target nor any setting; those here are ours. With a Gaussian
likelihood of unit variance (any common variance cancels in equation 4) the
Fisher diagonal of client i is

  F_i[j] = sum over x in D_i of (d f(x; theta_i) / d theta_i[j])^2

It needs no targets and does not vanish where the local model fits its data.
FedAvg is FedFish with F = 1. The model is a perceptron,

  f(x) = b_L + W_L tanh( ... tanh(b_1 + W_1 x) ... )

Its weights are a tuple (W_1, b_1, ..., W_L, b_L) of kernels [..., fan_in,
fan_out] and biases [..., fan_out]. Leading axes hold several models side by
side, so that small ones train in one operation.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tff_fedfish import fisher
from tff_fedfish.data import randomness
from tff_fedfish.toy.results import GRID, SUPPORTS, Round, ToySettings

Weights = tuple[tf.Tensor, ...]

# The defaults of TFF's Adam.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7


def run_rounds(seed: int, settings: ToySettings) -> dict[str, Round]:
  """Runs the round of one seed on every support, from the same weights.

  Args:
    seed: Seed of data and initial weights.
    settings: The task and the local training.

  Returns:
    A round for each of `SUPPORTS`, in that order.
  """
  initial = initial_weights(settings.hidden_widths, seed)
  data = [draw_clients(seed, support, settings) for support in SUPPORTS]
  inputs, targets = map(tf.concat, zip(*data, strict=True), (0, 0))
  trained = train(
    tuple(tf.stack([w] * len(inputs)) for w in initial),
    inputs,
    targets,
    num_steps=settings.num_local_steps,
    learning_rate=settings.learning_rate,
  )
  models = [tuple(w[k] for w in trained) for k in range(len(inputs))]
  return {
    support: _aggregate(initial, models[2 * k : 2 * k + 2], *data[k], settings)
    for k, support in enumerate(SUPPORTS)
  }


def target(inputs: np.ndarray) -> np.ndarray:
  """Returns the target function without noise, sin(3x) + 0.3x."""
  return np.sin(3.0 * inputs) + 0.3 * inputs


def draw_clients(
  seed: int, support: str, settings: ToySettings
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (inputs, targets) of both clients, float32 [2, num_examples].

  With one seed the `SUPPORTS` differ only in the intervals: the same uniform
  numbers are stretched to them, and the noise is the same.
  """
  inputs, targets = [], []
  for client, (low, high) in enumerate(SUPPORTS[support]):
    generator = randomness.generator('toy_data', seed, client)
    places = generator.uniform(size=settings.num_examples)
    noise = settings.noise * generator.standard_normal(settings.num_examples)
    inputs.append(low + (high - low) * places)
    targets.append(target(inputs[-1]) + noise)
  return np.array(inputs, np.float32), np.array(targets, np.float32)


def initial_weights(hidden_widths: Sequence[int], seed: int) -> Weights:
  """Draws float32 weights of one model uniformly from +-1 / sqrt(fan_in)."""
  generator = randomness.generator('toy_weights', seed)
  weights = []
  for fan_in, fan_out in itertools.pairwise((1, *hidden_widths, 1)):
    bound = fan_in**-0.5
    for shape in ((fan_in, fan_out), (fan_out,)):
      values = generator.uniform(-bound, bound, shape)
      weights.append(tf.constant(values.astype(np.float32)))
  return tuple(weights)


def predict(weights: Weights, inputs: tf.Tensor) -> tf.Tensor:
  """Returns f(x), shaped like `inputs`, [..., num_examples]."""
  values = inputs[..., tf.newaxis]
  for layer in range(0, len(weights), 2):
    kernel, bias = weights[layer : layer + 2]
    values = values if layer == 0 else tf.tanh(values)
    values = tf.matmul(values, kernel) + bias[..., tf.newaxis, :]
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
  """Trains models side by side: full-batch Adam on the mean squared error.

  Args:
    weights: With a leading axis of models, as the result.
    inputs: [num_models, num_examples]; each model sees only its own.
    targets: Shaped like `inputs`.
    num_steps: Number of steps, >= 0.
    learning_rate: Step size.
  """
  first = second = tuple(tf.zeros_like(w) for w in weights)
  for step in tf.range(1, num_steps + 1):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      # No model's error depends on another's weights: the gradient of the sum
      # is the gradient of each.
      loss = tf.reduce_sum(mean_squared_error(weights, inputs, targets))
    gradients = tape.gradient(loss, weights)
    first = _decayed(_BETA_1, first, gradients)
    second = _decayed(_BETA_2, second, [tf.square(g) for g in gradients])
    time = tf.cast(step, tf.float32)
    bias_1, bias_2 = 1 - _BETA_1**time, 1 - _BETA_2**time
    weights = tuple(
      w - learning_rate * (m / bias_1) / (tf.sqrt(v / bias_2) + _EPSILON)
      for w, m, v in zip(weights, first, second, strict=True)
    )
  return weights


@tf.function
def gaussian_fisher_diagonal(
  function: Callable[[Weights, tf.Tensor], tf.Tensor],
  weights: Weights,
  inputs: tf.Tensor,
) -> Weights:
  """Returns the exact Fisher diagonal under a Gaussian of unit variance.

  It is the sum over `inputs`, [num_examples], of the squared derivatives of
  `function`, (weights, inputs) -> [num_examples], shaped like `weights`.
  """
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs = function(weights, inputs)
  return tuple(
    tf.reduce_sum(tf.square(jacobian), axis=0)
    for jacobian in tape.jacobian(outputs, weights)
  )


def server_step(
  initial: Weights,
  local_weights: Sequence[Weights],
  num_examples: Sequence[int],
  fisher_diagonals: Sequence[Weights] | None = None,
  *,
  relative_floor: float = 0.0,
) -> Weights:
  """Returns the server's weights after a step of 1 along the weighted mean.

  Args:
    initial: theta_G, from which every client started.
    local_weights: theta_i of each client.
    num_examples: w_i of each client.
    fisher_diagonals: F_i of each client, for FedFish. `None`: 1, for FedAvg.
    relative_floor: See `fisher.fisher_weighted_terms`.

  Returns:
    The new theta_G; coordinates in which no client has Fisher mass are kept.
  """
  if fisher_diagonals is None:
    fisher_diagonals = [tuple(map(tf.ones_like, initial))] * len(local_weights)
  terms = [
    fisher.fisher_weighted_terms(
      tuple(map(tf.subtract, initial, weights)),
      diagonal,
      tf.constant(number, tf.float32),
      relative_floor=relative_floor,
    )
    for weights, diagonal, number in zip(
      local_weights, fisher_diagonals, num_examples, strict=True
    )
  ]
  sums = tf.nest.map_structure(lambda *parts: tf.add_n(parts), *terms)
  return tuple(map(tf.subtract, initial, fisher.fisher_weighted_mean(*sums)))


def _aggregate(initial, local_weights, inputs, targets, settings) -> Round:
  """Returns the round of two local models."""
  numbers = [len(x) for x in inputs]
  fishers = [
    gaussian_fisher_diagonal(predict, weights, tf.constant(x))
    for weights, x in zip(local_weights, inputs, strict=True)
  ]
  floor = settings.relative_floor
  global_weights = {
    'fed_avg': server_step(initial, local_weights, numbers),
    'fed_fish': server_step(
      initial, local_weights, numbers, fishers, relative_floor=floor
    ),
  }

  def errors(models):
    found = map(mean_squared_error, models, inputs, targets)
    return np.array([error.numpy() for error in found], np.float64)

  first, second = local_weights
  drawn = {'client_1': first, 'client_2': second, **global_weights}
  return Round(
    inputs=inputs,
    targets=targets,
    errors={
      'local': errors(local_weights),
      **{name: errors([w, w]) for name, w in global_weights.items()},
    },
    curves={name: predict(w, GRID).numpy() for name, w in drawn.items()},
  )


def _decayed(decay, means, values):
  return tuple(
    decay * mean + (1 - decay) * value
    for mean, value in zip(means, values, strict=True)
  )
