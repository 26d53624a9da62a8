"""Clients that are fed with features: the model that reads them.

Clients are fed with batches <x=<features, ...>, y> of the features that they
computed of their rows: `features` float16 [batch, p], `y` int32 [batch], the
classes.
"""

import collections
import dataclasses
import typing
from typing import Any

import numpy as np
import tensorflow as tf

from models.functional_model import ModelSpec, with_predictions
from tff_fedfish.methods.tct import tangent_features
from tff_fedfish.rounds.local_training import LocalResult

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig


def reading(
  model: ModelSpec, num_features: int, *, with_basis: bool = False
) -> ModelSpec:
  """Returns a model with batches of features as its input."""
  functional_model = model.functional_model
  x = collections.OrderedDict(
    features=tf.TensorSpec([None, num_features], tf.float16)
  )
  if with_basis:
    x['vectors'] = tf.TensorSpec([None, None], tf.float64)
    x['power_sums'] = tf.TensorSpec([2, None], tf.float64)
  return dataclasses.replace(
    model,
    functional_model=with_predictions(
      functional_model,
      functional_model.initial_weights,
      # Of the rows themselves: clients here compute without it.
      functional_model.predict_on_batch,
      collections.OrderedDict(x=x, y=tf.TensorSpec([None], tf.int32)),
    ),
  )


def local_result(
  trainable: Any,
  metrics: Any,
  count: tf.Tensor,
  dataset: tf.data.Dataset,
  *,
  observation: Any = None,
  num_steps: int = 0,
) -> LocalResult:
  """Returns what local work that takes no batch steps gives."""
  return LocalResult(
    trainable=trainable,
    metrics=metrics,
    num_examples=count,
    observation=observation,
    mean_loss=tf.constant(0.0),
    dataset=dataset,
    optimizer_state=(),
    num_steps=tf.constant(num_steps, tf.int64),
  )


def mask_of(config: 'TrainConfig') -> np.ndarray:
  """Returns the mask of a config's features, see `tangent_features`."""
  return tangent_features.feature_mask(
    config.model_shape(),
    num_features=config.algorithm.num_features,
    model_seed=config.seeds.model_seed,
  )
