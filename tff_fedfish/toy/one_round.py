"""One round of the toy regression: the same local models, aggregated twice.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", equations 4 and 5 and section 5.1. With a Gaussian
likelihood of unit variance (any common variance cancels in equation 4) the
Fisher diagonal of client i is

  F_i[j] = sum over x in D_i of (d f(x; theta_i) / d theta_i[j])^2

It needs no targets and does not vanish where the local model fits its data.
FedAvg is FedFish with F = 1.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tff_fedfish import fisher
from tff_fedfish.toy import perceptron, task
from tff_fedfish.toy.results import Round

Weights = tuple[tf.Tensor, ...]


def gaussian_fisher_diagonal(
  predict: Callable[[Weights, tf.Tensor], tf.Tensor],
  weights: Weights,
  inputs: tf.Tensor,
) -> Weights:
  """Returns the exact Fisher diagonal under a Gaussian of unit variance.

  Args:
    predict: (weights, inputs) -> [num_examples], the means.
    weights: Of one model.
    inputs: [num_examples].

  Returns:
    Sums over the inputs of the squared derivatives, shaped like `weights`.
  """
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs = predict(weights, inputs)
  return tf.nest.map_structure(
    lambda jacobian: tf.reduce_sum(tf.square(jacobian), axis=0),
    tape.jacobian(outputs, weights),
  )


def fed_fish(
  initial: Weights,
  local_weights: Sequence[Weights],
  fisher_diagonals: Sequence[Weights],
  num_examples: Sequence[int],
  *,
  relative_floor: float,
) -> Weights:
  """Returns the server's weights after a step of 1 along FedFish's mean.

  Args:
    initial: theta_G, from which every client started.
    local_weights: theta_i of each client.
    fisher_diagonals: F_i of each client.
    num_examples: w_i of each client.
    relative_floor: See `fisher.fisher_weighted_terms`.

  Returns:
    The new theta_G; as it was where no client has any Fisher mass.
  """
  terms = [
    fisher.fisher_weighted_terms(
      tf.nest.map_structure(tf.subtract, initial, weights),
      diagonal,
      tf.constant(number, tf.float32),
      relative_floor=relative_floor,
    )
    for weights, diagonal, number in zip(
      local_weights, fisher_diagonals, num_examples, strict=True
    )
  ]
  sums = tf.nest.map_structure(lambda *parts: tf.add_n(parts), *terms)
  return tf.nest.map_structure(
    tf.subtract, initial, fisher.fisher_weighted_mean(*sums)
  )


def fed_avg(
  initial: Weights,
  local_weights: Sequence[Weights],
  num_examples: Sequence[int],
) -> Weights:
  """Returns the server's weights after a step of 1 along the plain mean.

  Args:
    initial: See `fed_fish`; so are the others.
    local_weights: See `fed_fish`.
    num_examples: See `fed_fish`.
  """
  ones = tf.nest.map_structure(tf.ones_like, initial)
  return fed_fish(
    initial,
    local_weights,
    [ones] * len(local_weights),
    num_examples,
    relative_floor=0.0,
  )


def run_rounds(seed: int, settings: task.ToySettings) -> tuple[Round, ...]:
  """Runs the round of one seed on every support, from the same weights.

  Args:
    seed: Of data and initial weights. Its results do not depend on how many
      other seeds there are.
    settings: The task and the local training.

  Returns:
    One round for each of `task.SUPPORTS`, in that order.
  """
  initial = perceptron.initial_weights(settings.hidden_widths, seed)
  data = [
    task.draw_clients(seed, support, settings) for support in task.SUPPORTS
  ]
  inputs, targets = (
    np.concatenate(arrays) for arrays in zip(*data, strict=True)
  )
  trained = perceptron.train(
    tuple(tf.stack([w] * len(inputs)) for w in initial),
    tf.constant(inputs),
    tf.constant(targets),
    num_steps=settings.num_local_steps,
    learning_rate=settings.learning_rate,
  )
  models = [tuple(w[k] for w in trained) for k in range(len(inputs))]
  return tuple(
    _aggregate(support, initial, models[2 * k : 2 * k + 2], *clients, settings)
    for k, (support, clients) in enumerate(
      zip(task.SUPPORTS, data, strict=True)
    )
  )


def _aggregate(support, initial, local_weights, inputs, targets, settings):
  """Returns the round of one support from its two local models."""
  diagonals = [
    _perceptron_fisher(weights, tf.constant(x))
    for weights, x in zip(local_weights, inputs, strict=True)
  ]
  numbers = [len(x) for x in inputs]
  global_weights = {
    'fed_avg': fed_avg(initial, local_weights, numbers),
    'fed_fish': fed_fish(
      initial,
      local_weights,
      diagonals,
      numbers,
      relative_floor=settings.relative_floor,
    ),
  }
  drawn = dict(zip(('client_1', 'client_2'), local_weights, strict=True))
  drawn |= global_weights
  return Round(
    support=support,
    inputs=inputs,
    targets=targets,
    local_mse=_errors(local_weights, inputs, targets),
    global_mse={
      method: _errors([weights] * 2, inputs, targets)
      for method, weights in global_weights.items()
    },
    curves={
      name: perceptron.predict(weights, tf.constant(task.GRID)).numpy()
      for name, weights in drawn.items()
    },
  )


@tf.function
def _perceptron_fisher(weights, inputs):
  return gaussian_fisher_diagonal(perceptron.predict, weights, inputs)


def _errors(models, inputs, targets) -> np.ndarray:
  """Returns the error of one model for each client, float64 [2]."""
  return np.array(
    [
      perceptron.mean_squared_error(weights, x, y).numpy()
      for weights, x, y in zip(models, inputs, targets, strict=True)
    ],
    np.float64,
  )
