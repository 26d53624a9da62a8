"""Seconds of a local step, measured here, and of a round.

Steps are timed of models like the config's but with few layers, which fit
anywhere, and extrapolated to the whole depth.
"""

import dataclasses
import math
import time
from typing import Annotated

import numpy as np
import tensorflow as tf

from models.functional_model import build_language_model
from models.model_shapes import are_matrices, weight_shapes
from tff_fedfish import environment
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences
from tff_fedfish.optimizers import build_optimizer
from tff_fedfish.planning import client_steps, flops
from tff_fedfish.rounds import local_training
from tff_fedfish.runtime import large_models

# Not 1 and 2: noise in the difference counts num_layers times.
_NUM_LAYERS = (1, 4)
# A call of many steps minus one of one, so that what a call costs cancels out.
_NUM_STEPS = 4


@dataclasses.dataclass(frozen=True)
class RoundTime:
  """Seconds, extrapolated; labels are those of the printed table.

  A pass after training counts by its rows. Not counted: compiling, sums, server
  steps, evaluations, checkpoints, reading of data and, with worker processes,
  what crosses between them.
  """

  local_step_seconds: Annotated[float, 'one local step']
  round_seconds: Annotated[float, 'a round']
  """With workers, as they share the clients."""
  run_seconds: Annotated[float, '{num_rounds:,} rounds']
  measured_layers: tuple[int, ...]
  """Depths that were timed; the rest is extrapolated."""
  num_threads: int
  """Threads that TensorFlow used."""


def step_seconds(config: TrainConfig, *, num_repeats: int = 5) -> float:
  """Times a local step of a full batch; takes seconds to a few minutes.

  That is forward, backward and client optimizer, without a method's extra
  passes. From then on, as in a run of the model, large buffers go back to the
  system if the model is large; see `runtime.large_models`.

  Args:
    config: The run's config. Neither its corpus nor its weights are needed.
    num_repeats: Timings of each depth, taken in turns; the median counts. The
      fastest would be a processor at its best, which it does not keep up for a
      round.
  """
  shape, num_rows = config.transformer_config(), 1
  # Or else steps would be faster here than they are in a round.
  large_models.return_large_buffers(
    [tf.TensorSpec(s, tf.float32) for s in weight_shapes(shape).values()]
  )
  if not config.local_privacy.is_on:
    num_rows = config.client_work.max_batch_rows
  depths = _depths(shape)
  timers = [_step_timer(config, depth, num_rows) for depth in depths]
  turns = [[timer() for timer in timers] for _ in range(num_repeats)]
  seconds = np.median(turns, axis=0).tolist()
  shallow, deep = seconds[0], seconds[-1]
  per_layer = max(0.0, deep - shallow) / max(1, depths[-1] - depths[0])
  step = shallow + per_layer * (shape.num_layers - depths[0])
  # DP-SGD takes one row at a time.
  return step * config.client_work.max_batch_rows / num_rows


def round_time(config: TrainConfig, step: float) -> RoundTime:
  """Adds up a round from the seconds of one local step, `step_seconds`.

  Workers on one machine share its processor: a round is shorter only by what
  one process leaves idle, which is not known, so it is taken to be as long; but
  the last parts may leave workers without one. Workers on a cluster are taken
  to be machines like this one each.
  """
  steps, engine = client_steps.of_config(config), config.engine
  num_clients = config.cohort_size or 1
  # At the speed of one machine.
  if engine.kind == 'ray' and config.cohort_size is not None:
    num_parts = config.num_partial_sums
    num_turns = math.ceil(num_parts / engine.num_workers)
    num_clients = num_turns * num_clients / num_parts
    if engine.ray_address == 'local':
      num_clients *= engine.num_workers
  local_step = flops.local_step_factor(config) * step
  passes_after = steps.num_passes - config.client_work.num_local_epochs
  rows_after = passes_after * steps.num_sequences
  after_training = step * rows_after / config.client_work.max_batch_rows
  client_seconds = steps.num_local_steps * local_step + after_training
  return RoundTime(
    local_step_seconds=local_step,
    round_seconds=num_clients * client_seconds,
    run_seconds=config.training.num_rounds * num_clients * client_seconds,
    measured_layers=tuple(_depths(config.transformer_config())),
    num_threads=tf.config.threading.get_intra_op_parallelism_threads()
    or environment.num_cores(),
  )


def _depths(shape):
  """Returns the numbers of layers to time."""
  return sorted({min(depth, shape.num_layers) for depth in _NUM_LAYERS})


def _step_timer(config, num_layers, batch_size):
  """Returns a function that times a step within a call of several."""
  shape = config.transformer_config()
  # The same tensors at every depth.
  optimizer = build_optimizer(config.client_work, are_matrices(shape))
  shape = dataclasses.replace(
    shape,
    num_layers=num_layers,
    layer_loop='unrolled' if shape.unrolls_layers else 'foldl',
  )
  spec = build_language_model(shape, model_seed=1, xla=config.engine.xla)
  model = spec.functional_model
  # Drawn in a graph: eagerly, every op would keep its result.
  weights = tf.function(spec.draw_initial_weights)()[0]
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )

  @tf.function
  def train(weights, dataset):
    result = local_training.train(
      model, optimizer, hparams, weights, (), dataset, num_local_epochs=1
    )
    return result.trainable, result.metrics

  def batches(num_steps):
    num_rows, length = num_steps * batch_size, shape.sequence_length
    tokens = np.random.RandomState(0).randint(
      shape.vocabulary_size, size=[num_rows, length + 1], dtype=np.int32
    )
    rows = sequences.Sequences(tokens, np.full(num_rows, length, np.int32))
    return sequences.to_dataset(rows, batch_size)

  one, many = batches(1), batches(1 + _NUM_STEPS)
  train(weights, one)
  train(weights, many)

  def seconds_per_step():
    seconds = _seconds_of(train, weights, one)
    return max(0.0, _seconds_of(train, weights, many) - seconds) / _NUM_STEPS

  return seconds_per_step


def _seconds_of(function, *arguments):
  start = time.perf_counter()
  function(*arguments)
  # Calls on accelerators return before they are done.
  tf.test.experimental.sync_devices()
  return time.perf_counter() - start
