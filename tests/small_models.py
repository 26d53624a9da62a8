"""A small model of every kind, with a batch for it."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from models.functional_model import (
  ModelSpec,
  build_image_model,
  build_language_model,
)
from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape
from models.transformer_config import TransformerConfig

_TEXT = TransformerConfig(
  num_layers=2, width=6, num_heads=2, vocabulary_size=11, sequence_length=5
)

SHAPES: dict[str, ModelShape] = {
  name: ImageModelConfig(name=name, num_classes=3, image_shape=image_shape)
  for name, image_shape in (
    ('linear', (5, 4, 2)),
    ('lenet', (16, 17, 1)),
    ('fed_net_cnn', (16, 16, 3)),
    ('emnist_cnn', (8, 7, 1)),
    # 8 x 6, then 4 x 3: strides of both parities.
    ('resnet18', (8, 6, 3)),
  )
} | {
  'learned': _TEXT,
  'rotary': dataclasses.replace(
    _TEXT, position_embedding='rotary', num_heads=3, layer_loop='foldl'
  ),
}

IMAGES = tuple(name for name in SHAPES if name not in ('learned', 'rotary'))


def build(shape: ModelShape) -> ModelSpec:
  """Builds the model."""
  if isinstance(shape, ImageModelConfig):
    return build_image_model(shape, model_seed=1)
  return build_language_model(shape, model_seed=1)


def random_weights(spec: ModelSpec, seed: int = 0):
  """Returns weights none of whose tensors is all 0 or 1."""
  random = np.random.RandomState(seed)
  trainable, _ = spec.draw_initial_weights()
  noisy = [w + random.normal(scale=0.1, size=w.shape) for w in trainable]
  return tuple(tf.cast(w, tf.float32) for w in noisy), ()


def rows(shape: ModelShape, num_rows: int, seed: int = 0):
  """Returns a batch; rows of text have 5, 3, 0, 1, 2, 4, 5, ... targets."""
  random = np.random.RandomState(seed)
  if isinstance(shape, TransformerConfig):
    size = num_rows, shape.sequence_length + 1
    return collections.OrderedDict(
      x=random.randint(shape.vocabulary_size, size=size).astype(np.int32),
      y=np.resize([5, 3, 0, 1, 2, 4], num_rows).astype(np.int32),
    )
  images = random.randint(256, size=(num_rows, *shape.image_shape))
  return collections.OrderedDict(
    x=collections.OrderedDict(
      image=images.astype(np.uint8),
      noise_seed=random.randint(99, size=(num_rows, 2)).astype(np.int32),
    ),
    y=random.randint(shape.num_classes, size=num_rows).astype(np.int32),
  )


def run(function: Callable, batch, batch_size: int, **options):
  """Calls a function with a dataset of the rows, traced as a round is."""
  dataset = tf.data.Dataset.from_tensor_slices(batch).batch(batch_size)
  return tf.function(lambda dataset: function(dataset, **options))(dataset)
