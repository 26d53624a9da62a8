"""A federated round as a plain TensorFlow loop: what any engine is held to.

The arithmetic of `build_fed_avg` on `build_language_model`, metrics included:
the same model functions, local SGD, the mean of the model deltas weighted by
rows, and Adam on it. But nothing of TFF: eager loops over clients and batches
around a `tf.function` per step, and variables that are updated in place.
"""

import tensorflow as tf
from benchmarks import engine_data
from benchmarks.engine_settings import Workload

from models import transformer

MODEL_SEED = 1
CLIENT_LEARNING_RATE = 0.1
SERVER_LEARNING_RATE = 1e-3
# The defaults of tff.learning.optimizers.build_adam.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7


class PlainLoop:
  """Rounds of FedAvg with client SGD and server Adam."""

  def __init__(self, workload: Workload):
    """Draws the initial weights and makes the clients' data."""
    self._config = workload.transformer_config()
    self._num_local_epochs = workload.num_local_epochs
    self._datasets = engine_data.client_datasets(workload)

    def variables(tensors):
      return [tf.Variable(tensor, trainable=False) for tensor in tensors]

    weights = transformer.initial_weights(self._config, MODEL_SEED)
    zeros = [tf.zeros_like(weight) for weight in weights]
    self._server = variables(weights)
    self._local = variables(weights)
    self._delta_sum = variables(zeros)
    self._first_moment = variables(zeros)
    self._second_moment = variables(zeros)
    self._num_rounds = tf.Variable(0.0, trainable=False)
    block_length = workload.sequence_length + 1
    signature = [
      tf.TensorSpec(shape, tf.int32) for shape in ([None, block_length], [None])
    ]
    self._step = tf.function(self._take_step, input_signature=signature)

  def run_round(self) -> float:
    """Runs a round; returns the mean loss over all local steps, in nats."""
    metrics = [tf.constant(0.0), tf.constant(0.0), tf.constant(0.0)]
    num_rows_sum = 0
    for dataset in self._datasets:
      self._start_client()
      num_rows = 0
      for epoch in range(self._num_local_epochs):
        for batch in dataset:
          step_metrics = self._step(batch['x'], batch['y'])
          metrics = [
            tf.add(*pair) for pair in zip(metrics, step_metrics, strict=True)
          ]
          num_rows += batch['x'].shape[0] if epoch == 0 else 0
      self._accumulate(tf.constant(num_rows, tf.float32))
      num_rows_sum += num_rows
    self._finish_round(tf.constant(num_rows_sum, tf.float32))
    loss_sum, _, num_targets = metrics
    return float(loss_sum / num_targets)

  def close(self) -> None:
    """Does nothing: there are no worker processes."""

  def _take_step(self, tokens, num_targets):
    """One step of SGD; returns sums over targets of loss, of hits, and 1."""
    mask = tf.sequence_mask(
      num_targets, self._config.sequence_length, dtype=tf.float32
    )
    with tf.GradientTape() as tape:
      weights = [weight.read_value() for weight in self._local]
      tape.watch(weights)
      losses, hits = transformer.next_token_losses(
        self._config, weights, tokens
      )
      loss_sum, num_real = tf.reduce_sum(losses * mask), tf.reduce_sum(mask)
      loss = loss_sum / num_real
    for weight, gradient in zip(
      self._local, tape.gradient(loss, weights), strict=True
    ):
      # The token embedding's is sparse, in part.
      weight.assign_sub(CLIENT_LEARNING_RATE * tf.convert_to_tensor(gradient))
    return loss_sum, tf.reduce_sum(hits * mask), num_real

  @tf.function
  def _start_client(self):
    for local, server in zip(self._local, self._server, strict=True):
      local.assign(server)

  @tf.function
  def _accumulate(self, num_rows):
    for delta_sum, server, local in zip(
      self._delta_sum, self._server, self._local, strict=True
    ):
      delta_sum.assign_add(num_rows * (server - local))

  @tf.function
  def _finish_round(self, num_rows):
    self._num_rounds.assign_add(1.0)
    learning_rate = (
      SERVER_LEARNING_RATE
      * tf.sqrt(1 - tf.pow(_BETA_2, self._num_rounds))
      / (1 - tf.pow(_BETA_1, self._num_rounds))
    )
    for weight, delta_sum, first, second in zip(
      self._server,
      self._delta_sum,
      self._first_moment,
      self._second_moment,
      strict=True,
    ):
      gradient = delta_sum / num_rows
      first.assign_add((1 - _BETA_1) * (gradient - first))
      second.assign_add((1 - _BETA_2) * (tf.square(gradient) - second))
      weight.assign_sub(learning_rate * first / (tf.sqrt(second) + _EPSILON))
      delta_sum.assign(tf.zeros_like(delta_sum))
