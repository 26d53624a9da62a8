"""The layers of a classifier of images, and its weights as their matrices.

A layer maps inputs a to preactivations z = V^T [a; 1] at every position, with
V = [kernel; bias]; the inputs of a convolution are patches. Models hand inputs
and preactivations of every layer to a tap. There is no TensorFlow here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.image_model_config import ImageModelConfig, resnet_blocks

# A NumPy array or a tensor of TensorFlow; what comes out is of the same kind.
Array = Any

Tap = Callable[[str, Array, Array], Array]
"""(name of a layer, inputs, preactivations) -> preactivations.

Rows are first and features last in both, with the positions of a row between
them. Convolution: input and output map. Norm: before the scale."""


class Window(NamedTuple):
  """How a convolution moves over its input."""

  height: int
  width: int
  stride: int
  padding: str


class Layer(NamedTuple):
  """One layer; every trainable entry belongs to exactly one."""

  name: str
  """Unique in a model, such as 'hidden_1'."""
  kind: str
  """'matrix', 'convolution' or 'scale' (a norm: its scale and its bias)."""
  kernel: str
  """Name of the weight; of a norm, its scale."""
  bias: str | None
  """Name of the weight; None: there is no bias."""
  fan_in: int
  """Rows of the kernel as a matrix, without the bias; of a convolution height x
  width x channels in, of a norm 1."""
  fan_out: int
  """Columns of the matrix."""
  window: Window | None = None
  """How a convolution moves; None: the layer is none."""

  @property
  def num_rows(self) -> int:
    """Rows of the matrix, the bias included."""
    return self.fan_in + (self.bias is not None)


def layers_of(shape: ImageModelConfig) -> tuple[Layer, ...]:
  """Returns the layers of a model, by the order of its weights."""
  padding, strides = 'VALID', {}
  if shape.name == 'resnet18':
    padding = 'SAME'
    for block in resnet_blocks():
      for part in ('conv_1', 'shortcut'):
        strides[f'{block.name}/{part}'] = block.stride
  shapes, layers = shape.weight_shapes(), []
  for kernel, sizes in shapes.items():
    name, _, role = kernel.rpartition('/')
    if role == 'bias':
      continue
    kind, window = 'matrix' if role == 'kernel' else role, None
    if len(sizes) == 4:
      kind = 'convolution'
      window = Window(*sizes[:2], strides.get(name, 1), padding)
    bias = f'{name}/bias' if f'{name}/bias' in shapes else None
    fans = math.prod(sizes[:-1]), sizes[-1]
    layers.append(Layer(name, kind, kernel, bias, *fans, window))
  return tuple(layers)


def weight_names(layers: Sequence[Layer]) -> tuple[str, ...]:
  """Returns the names of all weights of the layers, in the model's order."""
  names = (name for layer in layers for name in (layer.kernel, layer.bias))
  return tuple(name for name in names if name is not None)


def matrix_of(layer: Layer, weights_by_name: Mapping[str, Array]) -> Array:
  """Returns V = [kernel; bias], [fan_in + has_bias, fan_out].

  Rows of a convolution are in the order (height, width, channels in).
  """
  kernel = weights_by_name[layer.kernel]
  library = _library(kernel)
  matrix = library.reshape(kernel, (layer.fan_in, layer.fan_out))
  if layer.bias is None:
    return matrix
  bias = weights_by_name[layer.bias]
  return library.concatenate([matrix, bias[None]], axis=0)


def with_matrix(
  layer: Layer, weights_by_name: Mapping[str, Array], matrix: Array
) -> dict[str, Array]:
  """Returns the weights with V of a layer replaced; see `matrix_of`."""
  parts = {layer.kernel: matrix[: layer.fan_in]}
  if layer.bias is not None:
    parts[layer.bias] = matrix[-1]
  replaced = dict(weights_by_name)
  for name, values in parts.items():
    weight = weights_by_name[name]
    library = _library(weight)
    values = library.asarray(values, dtype=weight.dtype)
    replaced[name] = library.reshape(values, weight.shape)
  return replaced


def _library(array):
  """Returns NumPy, or for a tensor TensorFlow's functions of the same names."""
  if isinstance(array, np.ndarray):
    return np
  # Late: layers are counted without it.
  from tensorflow.experimental import numpy as tensorflow_numpy

  return tensorflow_numpy
