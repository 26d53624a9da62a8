"""Units of a model that may be permuted together; no TensorFlow.

A hidden unit has incoming weights, which compute it, and outgoing weights,
which read it. The same permutation of both leaves the function as it is. Units
are channels of convolutions, units of dense layers and heads of attention. The
residual stream is not permuted.
"""

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from models.image_model_config import (
  CHAINS,
  RESNET_NORM_GROUPS,
  ImageModelConfig,
  resnet_blocks,
)
from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig


class PermutedAxis(NamedTuple):
  """An axis of a weight, a flattened [num_repeats, num_units, unit_size].

  A channel of a map that was flattened has a row per pixel: num_repeats > 1. A
  head of attention has several columns: unit_size > 1.
  """

  name: str
  axis: int  # Of the whole weight, >= 0.
  is_incoming: bool
  index: int | None = None  # Layer on axis 0; None: the weight is not stacked.
  num_repeats: int = 1
  unit_size: int = 1


class PermutationGroup(NamedTuple):
  """Units that may change places if all their axes are permuted alike.

  A permutation has to take each of `num_parts` equal runs of units to such a
  run: channels that a GroupNorm normalizes together stay together.
  """

  name: str
  num_units: int
  axes: tuple[PermutedAxis, ...]
  num_parts: int = 1


def permutation_groups(shape: ModelShape) -> tuple[PermutationGroup, ...]:
  """Returns the groups of a model, from input to output.

  Chains of layers: each hidden layer. `resnet18`: the channels between the two
  convolutions of each block. Transformers: heads and MLP units of each layer.
  """
  if isinstance(shape, TransformerConfig):
    layers = range(shape.num_layers)
    pairs = (_transformer_groups(shape, index) for index in layers)
    return tuple(itertools.chain.from_iterable(pairs))
  if not is_chain(shape):
    return tuple(map(_resnet_group, resnet_blocks()))
  shapes = weight_shapes(shape)
  kernels = [name for name in shapes if name.endswith('/kernel')]
  return tuple(
    _chain_group(shapes, *pair) for pair in itertools.pairwise(kernels)
  )


def is_chain(shape: ModelShape) -> bool:
  """Says whether each layer reads only the layer before it."""
  return isinstance(shape, ImageModelConfig) and shape.name in CHAINS


def take_units(
  weights_by_name: Mapping[str, np.ndarray],
  group: PermutationGroup,
  sources: np.ndarray,
) -> dict[str, np.ndarray]:
  """Returns the weights with other units in a group, of any number.

  `sources` has, per unit of the result, the given unit that it is, an int; a
  permutation leaves the function as it is. -1: its incoming and outgoing
  weights are 0. Stacked weights keep their number of units.
  """
  weights_by_name = dict(weights_by_name)
  for axis in group.axes:
    units = np.moveaxis(_units_first(weights_by_name, group, axis), 0, -2)
    taken = units[..., sources, :]
    taken[..., sources < 0, :] = 0
    # [..., num_repeats, units, unit_size] -> [..., entries of the axis]
    taken = taken.reshape(*taken.shape[:-3], math.prod(taken.shape[-3:]))
    if axis.index is None:
      weights_by_name[axis.name] = np.moveaxis(taken, -1, axis.axis)
    else:
      stacked = weights_by_name[axis.name].copy()
      stacked[axis.index] = np.moveaxis(taken, -1, axis.axis - 1)
      weights_by_name[axis.name] = stacked
  return weights_by_name


def incoming_vectors(
  weights_by_name: Mapping[str, np.ndarray], group: PermutationGroup
) -> np.ndarray:
  """Returns the weights that compute each unit, [num_units, dimensions].

  Biases, and the scales of norms, are among them. Vectors of two models compare
  if the groups before are in the same order. See `take_units`.
  """
  vectors = [
    _units_first(weights_by_name, group, axis).reshape(group.num_units, -1)
    for axis in group.axes
    if axis.is_incoming
  ]
  return np.concatenate(vectors, axis=1)


def _units_first(weights_by_name, group, axis):
  """Returns [num_units, other axes ..., num_repeats, unit_size]."""
  weight, place = weights_by_name[axis.name], axis.axis
  if axis.index is not None:
    weight, place = weight[axis.index], place - 1
  weight = np.moveaxis(weight, place, -1)
  sizes = axis.num_repeats, group.num_units, axis.unit_size
  return np.moveaxis(weight.reshape(*weight.shape[:-1], *sizes), -2, 0)


def _chain_group(shapes, kernel, next_kernel):
  name = kernel.removesuffix('/kernel')
  *_, num_units = shapes[kernel]
  axes = [PermutedAxis(kernel, len(shapes[kernel]) - 1, is_incoming=True)]
  if f'{name}/bias' in shapes:
    axes.append(PermutedAxis(f'{name}/bias', 0, is_incoming=True))
  # Dense kernels are [in, out], and convolutions' [height, width, in, out]. A
  # map is flattened to pixels times channels, channels fastest.
  rows = len(shapes[next_kernel]) - 2
  num_pixels = shapes[next_kernel][rows] // num_units
  axes.append(PermutedAxis(next_kernel, rows, False, num_repeats=num_pixels))
  return PermutationGroup(name, num_units, tuple(axes))


def _resnet_group(block):
  name = f'{block.name}/conv_1'
  axes = (
    PermutedAxis(f'{name}/kernel', 3, is_incoming=True),
    PermutedAxis(f'{name}/norm/scale', 0, is_incoming=True),
    PermutedAxis(f'{name}/norm/bias', 0, is_incoming=True),
    PermutedAxis(f'{block.name}/conv_2/kernel', 2, is_incoming=False),
  )
  return PermutationGroup(name, block.channels, axes, RESNET_NORM_GROUPS)


def _transformer_groups(config, index):
  # The columns of `attention_input` are q, k and v, each of all heads.
  size = config.head_width
  head_axes = (
    PermutedAxis('block/attention_input/kernel', 2, True, index, 3, size),
    PermutedAxis('block/attention_input/bias', 1, True, index, 3, size),
    PermutedAxis('block/attention_output/kernel', 1, False, index, 1, size),
  )
  unit_axes = (
    PermutedAxis('block/mlp_expand/kernel', 2, True, index),
    PermutedAxis('block/mlp_expand/bias', 1, True, index),
    PermutedAxis('block/mlp_contract/kernel', 1, False, index),
  )
  num_units = weight_shapes(config)['block/mlp_expand/bias'][1]
  return (
    PermutationGroup(f'block/{index}/heads', config.num_heads, head_axes),
    PermutationGroup(f'block/{index}/mlp_units', num_units, unit_axes),
  )
