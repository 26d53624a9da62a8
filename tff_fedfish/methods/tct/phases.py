"""TCT's phases: the model of each, and the state that it begins with."""

import typing
from typing import Any

import numpy as np
import tensorflow_federated as tff

from models import linearized
from models.functional_model import ModelSpec
from tff_fedfish.methods.tct import (
  feature_inputs,
  gram_regression,
  tangent_features,
)

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

_ModelWeights = tff.learning.models.ModelWeights


def feature_classifier(config: 'TrainConfig', model: ModelSpec) -> ModelSpec:
  """Returns the model of the phase that trains on features."""
  shape, mask = config.model_shape(), feature_inputs.mask_of(config)
  return linearized.build_feature_classifier(
    model,
    tangent_features.build_features(model, shape, mask),
    num_features=len(mask),
    num_classes=shape.num_classes,
  )


def begin_features(
  config: 'TrainConfig',
  process: tff.learning.templates.LearningProcess,
  state: Any,
) -> Any:
  """Returns the state before the features: the network's weights."""
  return process.set_model_weights(
    process.initialize(), state.global_model_weights
  )


def begin_convex(
  config: 'TrainConfig',
  process: tff.learning.templates.LearningProcess,
  state: Any,
) -> Any:
  """Returns the state before the regression, from that after the features.

  V and b are zero. Fixed are the network with a drawn head, and mean and
  standard deviation of its features, which the sums give.
  """
  found = state.client_work['method']
  count, sums, squares = (
    np.asarray(found[name]) for name in ('num_rows', 'sums', 'square_sums')
  )
  statistics = gram_regression.normalization(count, sums, squares)
  network = tangent_features.with_drawn_head(
    config.model_shape(),
    state.global_model_weights.trainable,
    config.seeds.model_seed,
  )
  fixed = (*network, *(part.astype(np.float32) for part in statistics))
  state = process.initialize()
  trainable = process.get_model_weights(state).trainable
  zeros = tuple(np.zeros(w.shape, np.float32) for w in trainable)
  return process.set_model_weights(state, _ModelWeights(zeros, fixed))
