"""TCT's round of features: their sums, and the computations of clients.

Yu et al. (2022), "TCT", algorithm 1. `feature_inputs.py` says what clients are
fed with.
"""

import collections
import math
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from models.model_shapes import weight_shapes
from tff_fedfish.methods.tct import (
  feature_inputs,
  gram_regression,
  tangent_features,
)
from tff_fedfish.rounds.client_work import MethodState
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.gradients import num_rows, split_batch

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

_MAX_ENTRIES = 2**25


def build_feature_sums(
  model: ModelSpec,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_features: int,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  num_local_epochs: int = 1,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the round that sums up features.

  Args:
    model: The network, whose weights stay as they are.
    client_optimizer: Gives only the type of the state.
    server_optimizer: Not used: there is no pseudo-gradient.
    num_features: p.
    client_weighting: Not used: a row counts as one.
    num_local_epochs: Not used, as the next two.
    num_local_steps: See there.
    micro_batch_size: See there.

  Returns:
    The learning process. After a round the method's state holds `num_rows`,
    `sums` and `square_sums`, float64 [p]: n, sum z and sum z^2 over the rows of
    all clients. Metric `num_dead`: features that are constant up to rounding.
  """
  del num_local_steps, micro_batch_size
  reader = feature_inputs.reading(model, num_features)

  def sum_up(start, dataset):
    count, sums, squares = _zero_sums(num_features)
    for batch in iter(dataset):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      x, _ = split_batch(batch)
      z = tf.cast(x['features'], tf.float64)
      count += tf.cast(num_rows(batch), tf.float64)
      sums += tf.reduce_sum(z, axis=0)
      squares += tf.reduce_sum(tf.square(z), axis=0)
    return feature_inputs.local_result(
      start.trainable,
      reader.functional_model.initialize_metrics_state(),
      tf.cast(count, tf.int64),
      dataset,
      observation=(count, sums, squares),
    )

  def next_state(unused_state, sums, unused_counts):
    count, first, second = sums
    mean = tf.math.divide_no_nan(first, count)
    variance = tf.math.divide_no_nan(second, count) - tf.square(mean)
    is_dead = variance <= gram_regression.VARIANCE_ROUNDING * tf.square(mean)
    return collections.OrderedDict(
      num_rows=count,
      sums=first,
      square_sums=second,
      num_dead=tf.reduce_sum(tf.cast(is_dead, tf.int32)),
    )

  def initial_state(unused_specs):
    count, sums, squares = _zero_sums(num_features)
    return collections.OrderedDict(
      num_rows=count, sums=sums, square_sums=squares, num_dead=tf.constant(0)
    )

  return compose(
    reader,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    method_state=MethodState(
      initial=initial_state,
      summands=lambda client: client.local.observation,
      next=next_state,
      reported_after=('num_dead',),
    ),
    local_work=sum_up,
  )


def features_of(
  config: 'TrainConfig',
  model: ModelSpec,
  weights: tff.learning.models.ModelWeights,
) -> Callable[[Any], np.ndarray]:
  """Returns a function from a batch of images to their features.

  See `Method.feature_work`.
  """
  shape = config.model_shape()
  compute = tangent_features.build_features(
    model, shape, feature_inputs.mask_of(config)
  )
  network = tuple(
    tf.convert_to_tensor(w)
    for w in tangent_features.with_drawn_head(
      shape, weights.trainable, config.seeds.model_seed
    )
  )
  # The gradient of every kernel is there once for each row.
  largest = max(math.prod(size) for size in weight_shapes(shape).values())
  num_rows_at_once = max(1, _MAX_ENTRIES // largest)

  def features(batch):
    found, size = [], len(batch['y'])
    for start in range(0, size, num_rows_at_once):
      part = slice(start, start + num_rows_at_once)
      rows = tf.nest.map_structure(lambda t, p=part: tf.constant(t[p]), batch)
      found.append(compute(network, rows).numpy())
    return np.concatenate(found)

  return features


def basis_of(
  config: 'TrainConfig',
  model: ModelSpec,
  weights: tff.learning.models.ModelWeights,
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
  """Returns a function from a client's features to its basis.

  See `Method.feature_work`: `vectors`, U, and `power_sums`, S_1 and S_2.
  """
  del model
  mean, std = (np.asarray(w) for w in tuple(weights.non_trainable)[-2:])
  settings = config.algorithm

  def compute(features):
    basis = gram_regression.gram_basis(features, mean, std)
    scale = gram_regression.scale_of(settings.loss_scale, len(features))
    sums = gram_regression.power_sums(
      settings.convex_learning_rate * scale * basis.values,
      settings.num_convex_steps,
    )
    return {'vectors': basis.vectors, 'power_sums': np.stack(sums)}

  return compute


def _zero_sums(num_features):
  zeros = tf.zeros([num_features], tf.float64)
  return tf.constant(0.0, tf.float64), zeros, zeros
