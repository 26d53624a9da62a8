"""Tensors of the summaries that clients upload, and their size in models.

Nothing here computes a summary (`client_summaries.py` does), so sizes are known
before TensorFlow is imported.
"""

import math
from typing import Literal, NamedTuple

from models.layers import layers_of
from models.model_shapes import ModelShape, num_parameters, weight_shapes
from tff_fedfish.methods.one_shot import (
  curvature_shapes,
  low_rank,
  quantization,
)


class Upload(NamedTuple):
  """Upload of a client of a one-shot method, beside its weights."""

  summary: Literal['none', 'class_counts', 'diagonal', 'gram', 'kfac'] = 'none'
  """Rows per class; the Fisher diagonal; Gram matrices of the layers' inputs;
  or the K-FAC factors of the Fisher."""
  compression: Literal['none', 'paper'] = 'none'
  """'paper': quantized, and matrices of low rank, as in FedFisher."""


_FLOAT_BITS = 32
# Of symmetric matrices, not of the entries of weights.
_FACTOR_PREFIXES = ('gram/', 'inputs/', 'gradients/')


def summary_shapes(
  shape: ModelShape, upload: Upload
) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a summary, by name.

  Names are `class_counts`; `diagonal/0`, `diagonal/1` and so on in the model's
  order; `gram/LAYER` of dense layers; or those of `curvature_shapes.py`.
  """
  if upload.summary == 'class_counts':
    return {'class_counts': (shape.num_classes,)}
  if upload.summary == 'diagonal':
    sizes = weight_shapes(shape).values()
    return {f'diagonal/{i}': size for i, size in enumerate(sizes)}
  if upload.summary == 'gram':
    return {
      f'gram/{layer.name}': (layer.fan_in, layer.fan_in)
      for layer in layers_of(shape)
      if layer.kind == 'matrix'
    }
  if upload.summary == 'kfac':
    return curvature_shapes.summary_specs(layers_of(shape))
  return {}


def is_factor(name: str) -> bool:
  """Says whether a tensor of a summary is a symmetric matrix."""
  return name.startswith(_FACTOR_PREFIXES)


def factor_rank(shape: ModelShape, upload: Upload) -> int | None:
  """Returns the rank of all compressed factors; None: there are none.

  See `mathematics.low_rank`.
  """
  sizes = _factor_sizes(summary_shapes(shape, upload).items())
  return low_rank.kfac_rank(sizes, num_parameters(shape)) if sizes else None


def summary_models(shape: ModelShape, upload: Upload) -> float:
  """Returns the entries of a summary per weight of the model."""
  sizes = summary_shapes(shape, upload).values()
  return sum(map(math.prod, sizes)) / num_parameters(shape)


def uploaded_models(shape: ModelShape, upload: Upload) -> float:
  """Returns the size of weights and summary, in models of float32."""
  if upload.summary == 'class_counts':
    # A few scalars are not counted.
    upload = upload._replace(summary='none')
  if upload.compression == 'none':
    return 1 + summary_models(shape, upload)
  shapes = summary_shapes(shape, upload)
  if upload.summary == 'diagonal':
    return low_rank.diagonal_models([*map(math.prod, shapes.values())])
  d = num_parameters(shape)
  if not shapes:
    return (quantization.MODEL_BITS + 1) / _FLOAT_BITS
  return low_rank.compressed_models(
    _factor_sizes(shapes.items()),
    d,
    diagonal_sizes=[
      math.prod(sizes) for name, sizes in shapes.items() if not is_factor(name)
    ],
  )


def _factor_sizes(shapes):
  return [sizes[:1] for name, sizes in shapes if is_factor(name)]
