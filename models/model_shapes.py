"""Weights of a model of text or images, counted without TensorFlow."""

import math

from models import transformer_config
from models.image_model_config import ImageModelConfig
from models.transformer_config import LOGITS_TENSORS, TransformerConfig

ModelShape = TransformerConfig | ImageModelConfig


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight, in the order of `weights`."""
  if isinstance(shape, ImageModelConfig):
    return shape.weight_shapes()
  return transformer_config.weight_shapes(shape)


def num_parameters(shape: ModelShape) -> int:
  """Returns the number of trainable scalars."""
  return sum(math.prod(sizes) for sizes in weight_shapes(shape).values())


def are_stacked(shape: ModelShape) -> tuple[bool, ...]:
  """Returns whether each weight holds all layers of a transformer on axis 0."""
  return tuple(name.startswith('block/') for name in weight_shapes(shape))


def are_matrices(shape: ModelShape) -> tuple[bool, ...]:
  """Returns whether each weight is a matrix, or a kernel of higher rank.

  The axis of stacked layers does not count: biases and norms are none.
  """
  return tuple(
    len(sizes) - is_stacked >= 2
    for sizes, is_stacked in zip(
      weight_shapes(shape).values(), are_stacked(shape), strict=True
    )
  )


def input_axes(shape: ModelShape) -> tuple[int | None, ...]:
  """Returns the axis of each weight's input units; None: it is no matrix.

  Kernels are [..., inputs, outputs]. A token embedding makes the logits, from
  its columns: it is [outputs, inputs].
  """
  return tuple(
    None if not is_matrix else len(sizes) - (1 if name in LOGITS_TENSORS else 2)
    for (name, sizes), is_matrix in zip(
      weight_shapes(shape).items(), are_matrices(shape), strict=True
    )
  )
