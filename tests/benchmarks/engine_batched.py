"""Part of `make bench-engine`: steps of several small clients as one step.

Batched, the weights of all clients are stacked, and every product of a step
becomes one of stacks of matrices. It saves calls of operations, not operations.
"""

import time

import tensorflow as tf
from benchmarks import engine_data, engine_flops, plain_loop
from benchmarks.engine_figures import Figure, Goal, measured, ratio
from benchmarks.engine_processes import take_turns
from benchmarks.engine_settings import Settings, Workload

_NUM_CLIENTS = 8
_LENGTHS = (128, 32)
_REPEATED = 4


def batched(settings: Settings) -> list[Figure]:
  """Steps of 8 clients of `tiny` with 4 rows each, in turns."""
  figures = []
  for length in _LENGTHS:
    workload = Workload(
      preset='tiny',
      num_clients=_NUM_CLIENTS,
      num_local_steps=1,
      sequence_length=length,
    )
    variants = {
      name: ('client_steps', {'workload': workload, 'is_batched': is_batched})
      for name, is_batched in (('one by one', False), ('batched', True))
    }
    turns = take_turns(settings, variants, repeats=settings.repeats)
    seconds = {
      name: [turn['seconds'] for turn in found] for name, found in turns.items()
    }
    rate = engine_flops.step_flops(workload) * _NUM_CLIENTS / 1e9
    figures += [
      measured(
        'batched',
        f'steps of 8 clients of {length} tokens, {name}',
        [rate / value for value in found],
        'GFLOP/s',
      )
      for name, found in seconds.items()
    ]
    figures.append(
      ratio(
        'batched',
        f'tokens/s with {length} tokens, batched / one by one',
        seconds['one by one'],
        seconds['batched'],
        Goal(1.3),
      )
    )
  return figures


class ClientSteps:
  """One local step of every client, from the same weights."""

  def __init__(self, workload: dict, is_batched: bool):
    """Builds the step, and stacks the clients' batches."""
    from models import transformer

    parsed = Workload(**workload)
    config = parsed.transformer_config()
    weights = transformer.initial_weights(config, plain_loop.MODEL_SEED)
    tokens = [
      next(iter(dataset))['x']
      for dataset in engine_data.client_datasets(parsed)
    ]

    def step(arguments):
      weights, tokens = arguments
      with tf.GradientTape() as tape:
        tape.watch(weights)
        losses, _ = transformer.next_token_losses(config, weights, tokens)
        loss = tf.reduce_mean(losses)
      rate = plain_loop.CLIENT_LEARNING_RATE
      return [
        weight - rate * tf.convert_to_tensor(gradient)
        for weight, gradient in zip(
          weights, tape.gradient(loss, weights), strict=True
        )
      ]

    if is_batched:
      stacked = [tf.stack([weight] * len(tokens)) for weight in weights]
      self._calls = [(stacked, tf.stack(tokens))]
      self._step = tf.function(
        lambda calls: tf.vectorized_map(
          step, calls, fallback_to_while_loop=False
        )
      )
    else:
      self._calls = [(weights, client) for client in tokens]
      self._step = tf.function(step)

  def turn(self) -> dict:
    """Returns `seconds` of a step of all clients."""
    start = time.perf_counter()
    for _ in range(_REPEATED):
      for call in self._calls:
        result = self._step(call)
      result[0].numpy()
    return {'seconds': (time.perf_counter() - start) / _REPEATED}
