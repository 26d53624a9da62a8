"""TCT's round of features: clients compute them, and their sums are taken.

Clients are fed with batches <x=<features=float16 [batch, p]>, y=int32 [batch]>
of what they computed of their rows; y are the classes.
"""

import collections
import dataclasses
import math

import numpy as np

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.late import module, tf
from tff_fedfish.methods.parts import Column, Features, Traffic
from tff_fedfish.methods.tct.settings import (
  TctSettings,
  feature_sizes,
  num_candidates,
)
from tff_fedfish.rounds.client import LocalResult, MethodState
from tff_fedfish.rounds.fold import fold

_features = module('tff_fedfish.methods.tct.features')
_gradients = module('tff_fedfish.rounds.gradients')
_linearized = module('tff_fedfish.methods.tct.linearized')
_regression = module('tff_fedfish.methods.tct.regression')

# Entries of the largest kernel's gradients that are in memory at a time.
_MAX_ENTRIES = 2**25


def _features_of(config, model, weights):
  """Returns a function from a batch of images to z, float32 [rows, p]."""
  compute = _features.build_features(model, _features.mask_of(config))
  network = _features.network_of(config, weights)
  network = tuple(map(tf.convert_to_tensor, network))
  # The gradient of every kernel is there once for each row.
  largest = max(math.prod(size) for size in weight_shapes(model.shape).values())
  num_rows_at_once = max(1, _MAX_ENTRIES // largest)

  def features_of_batch(batch):
    parts = []
    for start in range(0, len(batch['y']), num_rows_at_once):
      part = slice(start, start + num_rows_at_once)
      rows = tf.nest.map_structure(
        lambda t, p=part: tf.constant(t[p]), batch['x']
      )
      parts.append(compute(network, rows).numpy())
    return np.concatenate(parts)

  return features_of_batch


class FeatureSums(TctSettings):
  """The round in which features are summed up; no weight changes.

  Afterwards the method's state holds `num_rows`, `sums` and `square_sums`,
  float64 [p]: n, sum z and sum z^2 over the rows of all clients. Metric
  `num_dead`: features that are constant up to rounding.
  """

  features = Features(feature_sizes, 'written', _features_of)

  def begin_phase(self, config, process, state):
    """Returns the state before the features: the network's weights."""
    return process.set_model_weights(
      process.initialize(), state.global_model_weights
    )

  def build(self, model, **training):
    size = min(self.num_features, num_candidates(model.shape))
    reader = _linearized.reading(model, size)
    method = dataclasses.replace(self, num_features=size)
    return super(FeatureSums, method).build(reader, **training)

  def local_work(self, start, dataset):
    def add(sums, batch):
      x, _ = _gradients.split_batch(batch)
      z = tf.cast(x['features'], tf.float64)
      count = tf.cast(_gradients.num_rows(batch), tf.float64)
      added = count, tf.reduce_sum(z, 0), tf.reduce_sum(tf.square(z), 0)
      return tuple(map(tf.add, sums, added))

    sums = fold(dataset, self._zero_sums(), add)
    return LocalResult(
      trainable=start.trainable,
      metrics=start.model.initialize_metrics_state(),
      num_examples=tf.cast(sums[0], tf.int64),
      gradient_sums=sums,
      mean_loss=tf.constant(0.0),
      dataset=dataset,
      optimizer_state=(),
      num_steps=tf.constant(0),
    )

  def state(self, num_clients):
    def next_state(unused_state, sums, unused_counts):
      count, *totals = sums
      mean, square = (tf.math.divide_no_nan(t, count) for t in totals)
      variance = square - tf.square(mean)
      is_dead = variance <= _regression.VARIANCE_ROUNDING * tf.square(mean)
      return fields(*sums, tf.reduce_sum(tf.cast(is_dead, tf.int32)))

    def fields(*values):
      names = 'num_rows', 'sums', 'square_sums', 'num_dead'
      return collections.OrderedDict(zip(names, values, strict=True))

    return MethodState(
      initial=lambda specs: fields(*self._zero_sums(), tf.constant(0)),
      terms=lambda client: client.local.gradient_sums,
      next=next_state,
      reported_after=('num_dead',),
    )

  def _zero_sums(self):
    zeros = tf.zeros([self.num_features], tf.float64)
    return tf.constant(0.0, tf.float64), zeros, zeros

  def traffic(self, config):
    """Counts n, sum z and sum z^2; and weights, mean and std."""
    size, _ = feature_sizes(config)
    num_weights = num_parameters(config.model_shape())
    return Traffic((2 * size + 1) / num_weights, 1 + 2 * size / num_weights)

  def columns(self, config):
    return (Column('tct/dead_coordinates', ('client_work', 'num_dead')),)
