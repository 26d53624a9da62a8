"""Seconds of local steps and of work over all weights, measured here.

Steps are timed of models like the config's but with few layers, which fit
anywhere, and extrapolated to the whole depth. docs/planning.md says how.
"""

import dataclasses
import math
import statistics
import time
from typing import Annotated, NamedTuple

import numpy as np
import tensorflow as tf

from models.functional_model import build_language_model
from models.model_shapes import are_matrices, num_parameters, weight_shapes
from tff_fedfish import environment, local_training
from tff_fedfish.algorithms.slots.bounds import zero_if_non_finite
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences
from tff_fedfish.optimizers.build import build_optimizer
from tff_fedfish.planning import client_steps, flops
from tff_fedfish.runtime import freed_memory

# Not 1 and 2: noise in the difference counts num_layers times.
_NUM_LAYERS = (1, 4)
# A call of many steps minus one of one, so that what a call costs cancels out.
_NUM_STEPS = 4
# Weights over which sums and the server's step are timed: far beyond caches.
_NUM_SAMPLE_WEIGHTS = 2**24


class MeasuredSeconds(NamedTuple):
  """Seconds of one step and of one pass over all weights on this machine.

  A step is of a full batch: forward, backward, client optimizer. After training
  it is a gradient and its square; 0 without such a pass. Sums are those of one
  client: its delta, its terms, and adding them up.
  """

  local_step: float
  step_after_training: float
  squared_gradient: float
  client_sums: float
  server: float
  measured_layers: tuple[int, ...]
  """Depths that were timed; the rest is extrapolated."""
  num_threads: int
  """Threads that TensorFlow used."""


@dataclasses.dataclass(frozen=True)
class RoundTime:
  """Seconds, extrapolated; labels are those of the printed table.

  Without compiling, evaluations, checkpoints, reading data and, with worker
  processes, what crosses between them.
  """

  local_step_seconds: Annotated[float, 'one local step']
  local_seconds: Annotated[float, 'local steps, a round']
  after_training_seconds: Annotated[float, 'pass after training, a round']
  """Also the squares of local steps' gradients."""
  client_sums_seconds: Annotated[float, 'deltas and sums, a round']
  server_seconds: Annotated[float, 'server, a round']
  round_seconds: Annotated[float, 'a round']
  """With workers, the clients' part as they share it."""
  run_seconds: Annotated[float, '{num_rounds:,} rounds']
  measured_layers: tuple[int, ...]
  num_threads: int
  """As in `MeasuredSeconds`."""


def measure(config: TrainConfig, *, num_repeats: int = 5) -> MeasuredSeconds:
  """Times steps and weight-wide work; takes from seconds to a few minutes.

  From then on, as in a run of the model, large buffers go back to the system if
  the model is large; see `freed_memory`.

  Args:
    config: The run's config. Neither its corpus nor its weights are needed.
    num_repeats: Timings of each thing, taken in turns; the median counts. The
      fastest would be a processor at its best, which it does not keep up for a
      round.
  """
  shape, steps = config.transformer_config(), client_steps.of_config(config)
  # Or else steps would be faster here than they are in a round.
  freed_memory.return_large_buffers(
    [tf.TensorSpec(s, tf.float32) for s in weight_shapes(shape).values()]
  )
  depths = sorted({min(depth, shape.num_layers) for depth in _NUM_LAYERS})
  num_rows = config.client_work.max_batch_rows
  sizes = num_rows, steps.batch_size_after_training
  is_private = config.local_privacy.is_on
  if is_private:
    # One row at a time, and no pass after training.
    sizes = 1, 1
  timers = {
    (depth, size): _step_timer(config, depth, size)
    for depth in depths
    for size in set(sizes)
  }
  turns = [[timer() for timer in timers.values()] for _ in range(num_repeats)]
  seconds = dict(zip(timers, np.median(turns, axis=0).tolist(), strict=True))
  full_depth = {}
  for size in sizes:
    shallow, deep = seconds[depths[0], size], seconds[depths[-1], size]
    per_layer = max(0.0, deep - shallow) / max(1, depths[-1] - depths[0])
    full_depth[size] = shallow + per_layer * (shape.num_layers - depths[0])
  square, client_optimizer, client_sums, server = (
    num_parameters(shape) * per_weight
    for per_weight in _seconds_per_weight(config, num_repeats)
  )
  step_after = 0.0
  if steps.num_steps_after_training:
    step_after = full_depth[sizes[1]] + square - client_optimizer
  local_step = full_depth[sizes[0]]
  if is_private:
    # A clipped gradient and its sum take about as long as a square and its.
    of_row = max(0.0, local_step - client_optimizer) + square
    local_step = num_rows * of_row + client_optimizer
  return MeasuredSeconds(
    local_step=local_step,
    step_after_training=max(0.0, step_after),
    squared_gradient=square,
    client_sums=client_sums,
    server=server,
    measured_layers=tuple(depths),
    num_threads=tf.config.threading.get_intra_op_parallelism_threads()
    or environment.num_cores(),
  )


def round_time(config: TrainConfig, measured: MeasuredSeconds) -> RoundTime:
  """Adds up a round from the seconds of its parts.

  Workers on one machine share its processor: a round is shorter only by what
  one process leaves idle, which is not known, so it is taken to be as long; but
  the last parts may leave workers without one. Workers on a cluster are taken
  to be machines like this one each.
  """
  steps, engine = client_steps.of_config(config), config.engine
  cohort_size = config.cohort_size or 1
  # A step is timed without the method's extra passes.
  local_step = flops.local_step_factor(config) * measured.local_step
  local = steps.num_local_steps * local_step
  after_training = (
    steps.num_steps_after_training * measured.step_after_training
    + steps.num_observed_steps * measured.squared_gradient
  )
  # At the speed of one machine.
  clients_in_a_row = cohort_size
  if engine.kind == 'ray' and config.cohort_size is not None:
    num_parts = config.num_partial_sums
    num_turns = math.ceil(num_parts / engine.num_workers)
    clients_in_a_row = num_turns * cohort_size / num_parts
    if engine.ray_address == 'local':
      clients_in_a_row *= engine.num_workers
  client_seconds = local + after_training + measured.client_sums
  round_seconds = clients_in_a_row * client_seconds + measured.server
  return RoundTime(
    local_step_seconds=local_step,
    local_seconds=cohort_size * local,
    after_training_seconds=cohort_size * after_training,
    client_sums_seconds=cohort_size * measured.client_sums,
    server_seconds=measured.server,
    round_seconds=round_seconds,
    run_seconds=config.training.num_rounds * round_seconds,
    measured_layers=measured.measured_layers,
    num_threads=measured.num_threads,
  )


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


def _seconds_per_weight(config, num_repeats):
  """Returns seconds per weight: square, client step, client sums, server."""
  num_tensors = 8
  weights = [
    tf.random.stateless_normal([_NUM_SAMPLE_WEIGHTS // num_tensors], [1, i])
    for i in range(num_tensors)
  ]
  # Nearly all weights are in matrices.
  are_all_matrices = [True] * num_tensors
  client_optimizer = build_optimizer(config.client_work, are_all_matrices)
  server_optimizer = build_optimizer(config.server, are_all_matrices)
  specs = [tf.TensorSpec(w.shape, w.dtype) for w in weights]
  client_state = client_optimizer.initialize(specs)
  server_state = server_optimizer.initialize(specs)
  method_cost = config.method.cost(config)
  num_sums = method_cost.models_summed

  @tf.function
  def square(sums, gradients):
    return [s + tf.square(g) for s, g in zip(sums, gradients, strict=True)]

  @tf.function
  def client_sums(weights, trained, client_weight, sums):
    # As many operations as the method declares: a chain of products, the last
    # of which are summed. The factor is no constant, so that none is folded.
    terms = [tf.nest.map_structure(tf.subtract, weights, trained)] * num_sums
    for _ in range(method_cost.flops_per_weight - num_sums):
      terms.append([client_weight * t for t in terms[-1]])
    terms, _ = zero_if_non_finite(terms[len(terms) - num_sums :])
    return tf.nest.map_structure(tf.add, sums, terms)

  @tf.function
  def server(state, weights, sums, mass):
    mean = tf.nest.map_structure(tf.math.divide_no_nan, sums, mass)
    return server_optimizer.next(state, weights, mean)

  seconds = []
  for function, *arguments in (
    (square, weights, weights),
    (tf.function(client_optimizer.next), client_state, weights, weights),
    (client_sums, weights, weights, tf.constant(2.0), [weights] * num_sums),
    (server, server_state, weights, weights, weights),
  ):
    # Compiles.
    function(*arguments)
    turns = [_seconds_of(function, *arguments) for _ in range(num_repeats)]
    seconds.append(statistics.median(turns) / _NUM_SAMPLE_WEIGHTS)
  return seconds


def _seconds_of(function, *arguments):
  start = time.perf_counter()
  function(*arguments)
  # Calls on accelerators return before they are done.
  tf.test.experimental.sync_devices()
  return time.perf_counter() - start
