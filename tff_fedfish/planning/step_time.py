"""Seconds of a local step, measured here, and of a round.

Steps are timed of models like the config's but with few layers, which fit
anywhere, and extrapolated to the whole depth.
"""

import dataclasses
import math
import time

import numpy as np
import tensorflow as tf

from models.functional_model import build_language_model
from models.model_shapes import are_matrices, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences
from tff_fedfish.optimizers import build_optimizer
from tff_fedfish.planning import flops
from tff_fedfish.planning.client_steps import client_steps
from tff_fedfish.rounds import local_training
from tff_fedfish.runtime import large_models

# Not 1 and 2: noise in the difference counts num_layers times.
_NUM_LAYERS = (1, 4)
# A call of many steps minus one of one, so that what a call costs cancels out.
_NUM_STEPS = 4


@dataclasses.dataclass(frozen=True)
class RoundTime:
  """Seconds of a local step and of a round, extrapolated.

  Not counted: compiling, sums, server steps, evaluations, checkpoints, reading
  of data and, with worker processes, what crosses between them.
  """

  local_step_seconds: float
  round_seconds: float


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
  shape = config.transformer_config()
  # Or else steps would be faster here than they are in a round.
  large_models.return_large_buffers(
    [tf.TensorSpec(s, tf.float32) for s in weight_shapes(shape).values()]
  )
  # DP-SGD takes one row at a time.
  max_rows = config.client_work.max_batch_rows
  num_rows = 1 if config.local_privacy.is_on else max_rows
  depths = sorted({min(depth, shape.num_layers) for depth in _NUM_LAYERS})
  timers = [_step_timer(config, depth, num_rows) for depth in depths]
  turns = [[timer() for timer in timers] for _ in range(num_repeats)]
  seconds = np.median(turns, axis=0).tolist()
  shallow, deep = seconds[0], seconds[-1]
  per_layer = max(0.0, deep - shallow) / max(1, depths[-1] - depths[0])
  step = shallow + per_layer * (shape.num_layers - depths[0])
  return step * max_rows / num_rows


def round_time(config: TrainConfig, step: float) -> RoundTime:
  """Adds up a round from the seconds of one local step, `step_seconds`.

  Workers on one machine share its processor: a round is taken to be as long as
  in one process. Workers on a cluster are taken to be machines like this one.
  """
  steps, engine = client_steps(config), config.engine
  num_clients = config.cohort_size or 1
  if engine.kind == 'ray' and engine.ray_address != 'local':
    # Workers take parts of the cohort, in turns.
    num_parts = config.num_partial_sums
    num_turns = math.ceil(num_parts / engine.num_workers)
    num_clients = num_turns * num_clients / num_parts
  local_step = flops.local_step_factor(config) * step
  passes_after = steps.num_passes - config.client_work.num_local_epochs
  # By rows: the last batch may be smaller.
  steps_after = (
    passes_after * steps.num_sequences / config.client_work.max_batch_rows
  )
  of_client = steps.num_local_steps * local_step + steps_after * step
  return RoundTime(local_step, num_clients * of_client)


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
