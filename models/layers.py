"""The layers of a model, and its weights as their matrices; no TensorFlow.

A layer maps inputs a to preactivations z = V^T [a; 1] at every position, with
V = [kernel; bias]; the inputs of a convolution are patches. Models hand inputs
and preactivations of every layer to a tap.
"""

import collections
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models import transformer_config
from models.image_model_config import ImageModelConfig, resnet_blocks
from models.model_shapes import ModelShape
from models.transformer_config import TransformerConfig

# A NumPy array or a tensor of TensorFlow; what comes out is of the same kind.
Array = Any

Tap = Callable[[str, Array, Array], Array]
"""(name, inputs, preactivations) -> preactivations, at the output of a layer.

Rows are first and features last in both, with the positions of a row between
them. A convolution gives its two feature maps, an embedding the token ids, a
norm what it normalized before the scale, the position table the numbers of the
positions and the stream that it was added to."""

_ATTENTION_INPUT = 'block/attention_input/kernel'
_ATTENTION_PARTS = ('query', 'key', 'value')


class Window(NamedTuple):
  """How a convolution moves over its input."""

  height: int
  width: int
  stride: int
  padding: str


class Layer(NamedTuple):
  """One layer; every trainable entry belongs to exactly one.

  Only a tied embedding belongs to two, 'embedding' and 'head'.

  Attributes:
    name: Unique in a model, such as 'hidden_1' or
      'block/2/attention_input/query'.
    kind: 'matrix', 'convolution', 'scale' (a norm: its scale and its bias),
      'embedding', 'positions' or 'head' (logits of a tied embedding).
    tap: Name by which the model hands over inputs and preactivations. Query,
      key and value share one, whose preactivations are joined.
    kernel: Name of the weight; of a norm, its scale.
    bias: Name of the weight; None: there is no bias.
    index: Position on the first axis of a stacked weight of a transformer;
      None: the weight is not stacked.
    columns: First and past the last column of kernel, bias and preactivations;
      None: all.
    fan_in: Rows of the kernel as a matrix, without the bias; of a convolution
      height x width x channels in, of a norm 1.
    fan_out: Columns of the matrix.
    window: Of a convolution; None: it is none.
  """

  name: str
  kind: str
  tap: str
  kernel: str
  bias: str | None
  index: int | None
  columns: tuple[int, int] | None
  fan_in: int
  fan_out: int
  window: Window | None = None

  @property
  def num_rows(self) -> int:
    """Rows of the matrix, the bias included."""
    return self.fan_in + (self.bias is not None)


def layers_of(shape: ModelShape) -> tuple[Layer, ...]:
  """Returns the layers of a model, by the order of its weights.

  A tied head, which has no weight of its own, is last.
  """
  if isinstance(shape, ImageModelConfig):
    return tuple(_image_layers(shape))
  return tuple(_transformer_layers(shape))


def weight_names(layers: Sequence[Layer]) -> tuple[str, ...]:
  """Returns the names of all weights of the layers, in the model's order."""
  names = (name for layer in layers for name in (layer.kernel, layer.bias))
  return tuple(dict.fromkeys(name for name in names if name is not None))


def layer_groups(layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], ...]:
  """Returns the layers in groups that have their entries in common.

  A tied embedding and its head are one group, every other layer is its own. A
  quadratic form that is a sum over layers separates by groups.
  """
  groups = collections.defaultdict(list)
  for layer in layers:
    groups[layer.kernel, layer.index, layer.columns].append(layer)
  return tuple(map(tuple, groups.values()))


def tapped(
  tap: Tap | None, name: str, inputs: Array, preactivations: Array
) -> Array:
  """Returns what the tap makes of a layer's preactivations.

  Args:
    tap: The tap; None: the preactivations are returned.
    name: `Layer.tap`.
    inputs: See `Tap`.
    preactivations: See `Tap`.
  """
  return preactivations if tap is None else tap(name, inputs, preactivations)


def matrix_of(layer: Layer, weights_by_name: Mapping[str, Array]) -> Array:
  """Returns V = [kernel; bias], [fan_in + has_bias, fan_out].

  Rows of a convolution are in the order (height, width, channels in). The
  matrix of a tied head is the embedding transposed, [width, vocabulary].

  Args:
    layer: The layer.
    weights_by_name: Weights of the model, at least the layer's.
  """
  kernel = _part(layer, weights_by_name[layer.kernel])
  library = _library(kernel)
  if layer.kind == 'head':
    return library.transpose(kernel)
  matrix = library.reshape(kernel, (layer.fan_in, layer.fan_out))
  if layer.bias is None:
    return matrix
  bias = _part(layer, weights_by_name[layer.bias])
  return library.concatenate([matrix, bias[None]], axis=0)


def with_matrix(
  layer: Layer, weights_by_name: Mapping[str, Array], matrix: Array
) -> dict[str, Array]:
  """Returns the weights with V of a layer replaced; see `matrix_of`."""
  return with_matrices(weights_by_name, [(layer, matrix)])


def with_matrices(
  weights_by_name: Mapping[str, Array],
  matrices: Sequence[tuple[Layer, Array]],
) -> dict[str, Array]:
  """Returns the weights with V of several layers replaced.

  Args:
    weights_by_name: Weights, at least those of the layers.
    matrices: Layers without common entries, and the V of each. Stacked weights
      are put together once, however many of their layers are replaced.
  """
  # Name of a weight -> index -> (columns, new values).
  parts = collections.defaultdict(lambda: collections.defaultdict(list))
  for layer, matrix in matrices:
    if layer.kind == 'head':
      matrix = _library(matrix).transpose(matrix)
    rows = matrix if layer.bias is None else matrix[:-1]
    parts[layer.kernel][layer.index].append((layer.columns, rows))
    if layer.bias is not None:
      parts[layer.bias][layer.index].append((layer.columns, matrix[-1]))
  replaced = {}
  for name, by_index in parts.items():
    weight = weights_by_name[name]
    if None in by_index:
      replaced[name] = _with_columns(weight, by_index[None])
    else:
      replaced[name] = _library(weight).stack(
        [_with_columns(weight[i], by_index[i]) for i in range(weight.shape[0])]
      )
  return {**weights_by_name, **replaced}


def _with_columns(array, parts):
  """Returns the array with some of its columns replaced."""
  library = _library(array)
  pieces, done = [], 0
  for columns, values in sorted(parts, key=lambda part: part[0] or ()):
    start, end = columns or (0, array.shape[-1])
    values = library.asarray(values, dtype=array.dtype)
    values = library.reshape(values, (*array.shape[:-1], end - start))
    pieces += [array[..., done:start], values]
    done = end
  pieces = [p for p in (*pieces, array[..., done:]) if p.shape[-1]]
  return library.concatenate(pieces, axis=-1)


def _part(layer, weight):
  if layer.index is not None:
    weight = weight[layer.index]
  if layer.columns is not None:
    start, end = layer.columns
    weight = weight[..., start:end]
  return weight


def _library(array):
  """Returns NumPy, or for a tensor TensorFlow's functions of the same names."""
  if isinstance(array, np.ndarray):
    return np
  # Late: layers are counted without it.
  from tensorflow.experimental import numpy as tensorflow_numpy

  return tensorflow_numpy


def _image_layers(config: ImageModelConfig) -> Iterator[Layer]:
  shapes = config.weight_shapes()
  padding, strides = 'VALID', {}
  if config.name == 'resnet18':
    padding = 'SAME'
    for block in resnet_blocks():
      for part in ('conv_1', 'shortcut'):
        strides[f'{block.name}/{part}'] = block.stride
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
    yield Layer(name, kind, name, kernel, bias, None, None, *fans, window)


def _transformer_layers(config: TransformerConfig) -> Iterator[Layer]:
  shapes = transformer_config.weight_shapes(config)
  width = config.width

  def layer(kind, name, kernel, bias=None, index=None):
    *fan_in, fan_out = shapes[kernel][index is not None :]
    fans = math.prod(fan_in), fan_out
    return Layer(name, kind, name, kernel, bias, index, None, *fans)

  yield layer('embedding', 'token_embedding', 'token_embedding')
  if 'position_embedding' in shapes:
    yield layer('positions', 'position_embedding', 'position_embedding')
  of_blocks = [
    name.rpartition('/')
    for name in shapes
    if name.startswith('block/') and not name.endswith('/bias')
  ]
  for index in range(config.num_layers):
    for base, _, role in of_blocks:
      kind = 'matrix' if role == 'kernel' else 'scale'
      name = base.replace('block/', f'block/{index}/')
      whole = layer(kind, name, f'{base}/{role}', f'{base}/bias', index)
      if whole.kernel != _ATTENTION_INPUT:
        yield whole
        continue
      for part_num, part in enumerate(_ATTENTION_PARTS):
        yield whole._replace(
          name=f'{name}/{part}',
          columns=(part_num * width, (part_num + 1) * width),
          fan_out=width,
        )
  yield layer('scale', 'final_norm', 'final_norm/scale', 'final_norm/bias')
  head = ('head', 'head', 'head', 'token_embedding', None, None, None)
  yield Layer(*head, fan_in=width, fan_out=config.vocabulary_size)
