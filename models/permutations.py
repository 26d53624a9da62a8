"""Units of a model that may be permuted together; no TensorFlow.

A hidden unit has incoming weights, which compute it, and outgoing weights,
which read it. The same permutation of both leaves the function as it is. Units
here are channels of convolutions, units of dense layers and heads of
attention. Nothing that the residual stream adds up is permuted.
"""

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from models.image_model_config import (
  RESNET_NORM_GROUPS,
  ImageModelConfig,
  resnet_blocks,
)
from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig


class PermutedAxis(NamedTuple):
  """An axis of a weight along which the units of a group lie.

  The axis is a flattened [num_repeats, num_units, unit_size]. A channel of a
  map that was flattened has a row per pixel: num_repeats > 1. A head of
  attention has several columns: unit_size > 1.
  """

  name: str
  """Name of the weight."""
  axis: int
  """Axis of the whole weight, >= 0."""
  is_incoming: bool
  """Whether the weight computes the units; otherwise it reads them."""
  index: int | None = None
  """Layer, a position on the first axis of a stacked weight. None: the weight
  is not stacked."""
  num_repeats: int = 1
  """Blocks of all units along the axis, >= 1."""
  unit_size: int = 1
  """Neighboring entries per unit, >= 1."""


class PermutationGroup(NamedTuple):
  """Units that may change places if all their axes are permuted alike."""

  name: str
  num_units: int
  axes: tuple[PermutedAxis, ...]
  num_parts: int = 1
  """Equal runs of units that have to stay together, as the channels that a
  GroupNorm normalizes together: a permutation takes each run to a run."""


def permutation_groups(shape: ModelShape) -> tuple[PermutationGroup, ...]:
  """Returns the groups of a model, from input to output.

  Groups are independent: each may be permuted by its own permutation.

  Args:
    shape: The model's shape.

  Returns:
    Image models that are chains of layers: a group per hidden layer.
    `resnet18`: the channels between the two convolutions of each block.
    Transformers: heads, then MLP units, of each layer.
  """
  if isinstance(shape, TransformerConfig):
    return tuple(
      itertools.chain.from_iterable(
        _transformer_layer_groups(shape, index)
        for index in range(shape.num_layers)
      )
    )
  if not is_chain(shape):
    return tuple(map(_resnet_block_group, resnet_blocks()))
  shapes = weight_shapes(shape)
  kernels = [name for name in shapes if name.endswith('/kernel')]
  return tuple(
    _chain_group(shapes, *pair) for pair in itertools.pairwise(kernels)
  )


def is_chain(shape: ModelShape) -> bool:
  """Says whether each layer reads the layer before it, and nothing else."""
  return isinstance(shape, ImageModelConfig) and shape.name != 'resnet18'


def permute(
  weights_by_name: Mapping[str, np.ndarray],
  group: PermutationGroup,
  permutation: np.ndarray,
) -> dict[str, np.ndarray]:
  """Returns the weights with a group's units in another order.

  Args:
    weights_by_name: All weights of the model.
    group: One of its `permutation_groups`.
    permutation: Int [num_units]; unit k of the result is unit permutation[k].

  Raises:
    ValueError: If it is no permutation, or tears a part of the group apart.
  """
  permutation = np.asarray(permutation)
  if not np.array_equal(np.sort(permutation), np.arange(group.num_units)):
    raise ValueError(
      f'`permutation` must have each of the {group.num_units} units of '
      f'{group.name} once, found {permutation.tolist()}.'
    )
  parts = permutation.reshape(group.num_parts, -1)
  parts = parts // (group.num_units // group.num_parts)
  if np.any(parts != parts[:, :1]):
    raise ValueError(
      f'`permutation` must keep the {group.num_parts} parts of {group.name} '
      f'together, found {permutation.tolist()}.'
    )
  return take_units(weights_by_name, group, permutation)


def take_units(
  weights_by_name: Mapping[str, np.ndarray],
  group: PermutationGroup,
  sources: np.ndarray,
) -> dict[str, np.ndarray]:
  """Returns the weights with other units in a group, of any number.

  Args:
    weights_by_name: All weights of the model.
    group: One of its `permutation_groups`. Stacked weights keep their number
      of units.
    sources: Int [number of units of the result]; its unit k is the given unit
      sources[k]. -1: a unit whose incoming and outgoing weights are 0.

  Raises:
    ValueError: If a weight has not as many units as the group.
  """
  weights_by_name = dict(weights_by_name)
  for axis in group.axes:
    units = np.moveaxis(_units_first(weights_by_name, group, axis), 0, -1)
    is_there = sources >= 0
    taken = np.where(is_there, units[..., sources], units.dtype.type(0))
    # [..., num_repeats, unit_size, units] -> as it was.
    taken = np.moveaxis(taken, -1, -2)
    *others, num_repeats, num_units, unit_size = taken.shape
    taken = taken.reshape(*others, num_repeats * num_units * unit_size)
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
  """Returns what computes each unit: [num_units, its incoming weights].

  Biases, and the scales of norms, are among them. Two models' vectors of a
  group compare entry by entry if their earlier groups are in the same order.

  Args:
    weights_by_name: All weights of the model.
    group: One of its `permutation_groups`.

  Raises:
    ValueError: If a weight has not as many units as the group.
  """
  return np.concatenate(
    [
      _units_first(weights_by_name, group, axis).reshape(group.num_units, -1)
      for axis in group.axes
      if axis.is_incoming
    ],
    axis=1,
  )


def _units_first(weights_by_name, group, axis):
  """Returns [num_units, other axes ..., num_repeats, unit_size]."""
  weight, place = weights_by_name[axis.name], axis.axis
  if axis.index is not None:
    weight, place = weight[axis.index], place - 1
  weight = np.moveaxis(weight, place, -1)
  sizes = axis.num_repeats, group.num_units, axis.unit_size
  if weight.shape[-1] != math.prod(sizes):
    raise ValueError(
      f'{axis.name} must have {" * ".join(map(str, sizes))} entries on axis '
      f'{axis.axis} for the units of {group.name}, found '
      f'{weight.shape[-1]}.'
    )
  return np.moveaxis(weight.reshape(*weight.shape[:-1], *sizes), -2, 0)


def _chain_group(shapes, kernel, next_kernel):
  """Returns the units between two kernels, whose rows are next to last."""
  name = kernel.removesuffix('/kernel')
  *_, num_units = shapes[kernel]
  axes = [PermutedAxis(kernel, len(shapes[kernel]) - 1, is_incoming=True)]
  if f'{name}/bias' in shapes:
    axes.append(PermutedAxis(f'{name}/bias', 0, is_incoming=True))
  rows = len(shapes[next_kernel]) - 2
  # A dense layer has a row per pixel and channel, channels fastest.
  num_repeats = shapes[next_kernel][rows] // num_units
  axes.append(
    PermutedAxis(next_kernel, rows, is_incoming=False, num_repeats=num_repeats)
  )
  return PermutationGroup(name, num_units, tuple(axes))


def _resnet_block_group(block):
  name = f'{block.name}/conv_1'
  return PermutationGroup(
    name,
    block.channels,
    (
      PermutedAxis(f'{name}/kernel', 3, is_incoming=True),
      PermutedAxis(f'{name}/norm/scale', 0, is_incoming=True),
      PermutedAxis(f'{name}/norm/bias', 0, is_incoming=True),
      PermutedAxis(f'{block.name}/conv_2/kernel', 2, is_incoming=False),
    ),
    num_parts=RESNET_NORM_GROUPS,
  )


def _transformer_layer_groups(config, index):
  def axis(name, place, is_incoming, **blocks):
    return PermutedAxis(
      f'block/{name}', place, is_incoming, index=index, **blocks
    )

  # The columns of `attention_input` are q, k and v, each of all heads.
  head = dict(unit_size=config.head_width)
  yield PermutationGroup(
    f'block/{index}/heads',
    config.num_heads,
    (
      axis('attention_input/kernel', 2, True, num_repeats=3, **head),
      axis('attention_input/bias', 1, True, num_repeats=3, **head),
      axis('attention_output/kernel', 1, False, **head),
    ),
  )
  yield PermutationGroup(
    f'block/{index}/mlp_units',
    weight_shapes(config)['block/mlp_expand/bias'][1],
    (
      axis('mlp_expand/kernel', 2, True),
      axis('mlp_expand/bias', 1, True),
      axis('mlp_contract/kernel', 1, False),
    ),
  )
