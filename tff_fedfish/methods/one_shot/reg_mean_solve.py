"""RegMean: dense layers by least squares on all clients' inputs.

Jin et al. (2023); see `mathematics.gram_average`. Kernels of dense layers are
weighted by the Gram matrices of their inputs; everything else, biases included,
is the uniform mean over the clients.
"""

import numpy as np

from models.layers import layers_of, matrix_of, with_matrix
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot import gram_average
from tff_fedfish.methods.one_shot.solving import (
  SolveContext,
  SolveResult,
  Uploads,
)

# Between them the authors choose; the first wins a tie, as their default.
_SHRINKAGES = (0.9, 0.1)


def solve(
  uploads: Uploads, start: tuple[np.ndarray, ...], context: SolveContext
) -> SolveResult:
  """Returns RegMean's weights, in one pass over the uploads.

  Args:
    uploads: Of the clients. Their summaries hold 'gram/LAYER',
      float32 [inputs, inputs], for every layer of kind 'matrix'.
    start: Gives dtypes and shapes only.
    context: `settings.shrinkage` is a of the Gram matrices, in [0, 1]. None:
      the one of 0.1 and 0.9 that `score` likes better, 0.9 without a score.
  """
  shrinkages = (context.settings.shrinkage,)
  if shrinkages == (None,):
    shrinkages = _SHRINKAGES if context.score else _SHRINKAGES[:1]
  layers = [x for x in layers_of(context.shape) if x.kind == 'matrix']
  sums = [None] * len(layers)
  mean = [np.zeros_like(w) for w in start]
  for share, upload in zip(uploads.shares, uploads, strict=True):
    for total, w in zip(mean, upload.weights, strict=True):
      total += w
    weights = _by_name(upload.weights, context)
    for i, layer in enumerate(layers):
      sums[i] = gram_average.add_client(
        sums[i],
        upload.summary[f'gram/{layer.name}'],
        matrix_of(layer, weights)[: layer.fan_in],
        share,
      )
  mean = _by_name((total / len(uploads) for total in mean), context)

  def merged(shrinkage):
    weights = mean
    for layer, layer_sums in zip(layers, sums, strict=True):
      kernel = gram_average.solve(layer_sums, shrinkage).astype(np.float32)
      bias = matrix_of(layer, mean)[layer.fan_in :]
      matrix = np.concatenate([kernel, bias])
      weights = with_matrix(layer, weights, matrix)
    return tuple(weights[name] for name in weight_shapes(context.shape))

  candidates = [merged(shrinkage) for shrinkage in shrinkages]
  if len(candidates) == 1:
    return SolveResult(*candidates)
  return SolveResult(max(candidates, key=context.score))


def _by_name(weights, context):
  return dict(zip(weight_shapes(context.shape), weights, strict=True))
