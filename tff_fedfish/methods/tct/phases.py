"""TCT's phases: the model of each, its first state, and the work on features.

See `methods.parts.Phase` and `methods.method.Method` for what a run asks of
these functions. `config` is the run's, a `config.schema.TrainConfig`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from models import linearized
from models.functional_model import ModelSpec
from models.model_shapes import weight_shapes
from tff_fedfish.methods.tct import features, regression

_ModelWeights = tff.learning.models.ModelWeights

# Entries of the largest kernel's gradients that are in memory at a time.
_MAX_ENTRIES = 2**25


def begin_features(
  config: Any, process: tff.learning.templates.LearningProcess, state: Any
) -> Any:
  """Returns the state before the features: the network's weights."""
  return process.set_model_weights(
    process.initialize(), state.global_model_weights
  )


def features_of(
  config: Any, model: ModelSpec, weights: _ModelWeights
) -> Callable[[Any], np.ndarray]:
  """Returns a function from a batch of images to z, float32 [rows, p]."""
  shape = config.model_shape()
  compute = features.build_features(model, shape, _mask_of(config))
  network = tuple(map(tf.convert_to_tensor, _network(config, weights)))
  # The gradient of every kernel is there once for each row.
  largest = max(math.prod(size) for size in weight_shapes(shape).values())
  num_rows_at_once = max(1, _MAX_ENTRIES // largest)

  def features_of_batch(batch):
    parts = []
    for start in range(0, len(batch['y']), num_rows_at_once):
      part = slice(start, start + num_rows_at_once)
      rows = tf.nest.map_structure(lambda t, p=part: tf.constant(t[p]), batch)
      parts.append(compute(network, rows).numpy())
    return np.concatenate(parts)

  return features_of_batch


def begin_convex(
  config: Any, process: tff.learning.templates.LearningProcess, state: Any
) -> Any:
  """Returns the state before the regression, from that after the features.

  V is zero. Fixed are the network with a drawn head, and mean and standard
  deviation of its features, which the sums give.
  """
  method = state.client_work['method']
  statistics = regression.normalization(
    *(np.asarray(method[name]) for name in ('num_rows', 'sums', 'square_sums'))
  )
  network = _network(config, state.global_model_weights)
  fixed = (*network, *(part.astype(np.float32) for part in statistics))
  state = process.initialize()
  trainable = process.get_model_weights(state).trainable
  zeros = tuple(np.zeros(w.shape, np.float32) for w in trainable)
  return process.set_model_weights(state, _ModelWeights(zeros, fixed))


def feature_classifier(config: Any, model: ModelSpec) -> ModelSpec:
  """Returns the model of the convex phase, which is given images."""
  shape, mask = config.model_shape(), _mask_of(config)
  return linearized.build_feature_classifier(
    model,
    features.build_features(model, shape, mask),
    num_features=len(mask),
    num_classes=shape.num_classes,
  )


def basis_of(
  config: Any, model: ModelSpec, weights: _ModelWeights
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
  """Returns a function from a client's features to its basis.

  That is `vectors`, U, and `power_sums`, S_1 and S_2, float64 [n, n] and [2,
  n].
  """
  del model
  mean, std = (np.asarray(w) for w in tuple(weights.non_trainable)[-2:])
  num_steps = config.algorithm.num_convex_steps
  step_size = config.algorithm.convex_learning_rate

  def compute(rows):
    values, vectors = regression.gram_basis(rows, mean, std)
    sums = regression.power_sums(
      step_size * (1 / len(rows)) * values, num_steps
    )
    return {'vectors': vectors, 'power_sums': np.stack(sums)}

  return compute


def _mask_of(config):
  return features.feature_mask(
    config.model_shape(),
    num_features=config.algorithm.num_features,
    model_seed=config.seeds.model_seed,
  )


def _network(config, weights):
  """Returns the network's weights with the head drawn."""
  return features.with_drawn_head(
    config.model_shape(), weights.trainable, config.seeds.model_seed
  )
