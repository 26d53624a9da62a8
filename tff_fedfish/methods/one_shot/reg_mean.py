"""RegMean: dense layers fit the clients' outputs by least squares.

Jin, Ren, Preotiuc-Pietro and Cheng (2023), "Dataless knowledge fusion by
merging weights of language models". With X_i the inputs of a dense layer on
client i, the kernel that comes closest to every client's outputs on its own
inputs (a = 1):

  W* = pinv(sum_i p_i G~_i) (sum_i p_i G~_i W_i)
  G~_i = a G_i + (1 - a) diag(G_i),   G_i = mean of x^T x over the rows of X_i

  letter  meaning
  W_i     kernel, [inputs, outputs]
  G_i     Gram matrix, [inputs, inputs]
  p_i     the client's share in the examples
  a       shrinkage, in [0, 1]

Everything else, biases included, is the uniform mean over the clients.
"""

import dataclasses
import math

import numpy as np

from models.layers import layers_of
from models.model_shapes import num_parameters
from tff_fedfish.fields import number
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.uploads import (
  Best,
  SolveResult,
  summary_shapes,
)
from tff_fedfish.methods.settings import image_problems

# Between them the authors choose; the first wins a tie, as their default.
_SHRINKAGES = (0.9, 0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegMean(OneShot):
  """One-shot, images only: dense layers fit the clients' outputs.

  Their kernels minimize the squared distance to every client's outputs on its
  inputs; all else is averaged.
  """

  title = 'RegMean'
  source = (
    'Jin, Ren, Preotiuc-Pietro and Cheng (2023), "Dataless knowledge fusion by '
    'merging weights of language models"'
  )
  hue, hatch = '#999933', '--'
  summary = 'gram'

  shrinkage: float | None = number(None, at_least=0, at_most=1)
  """Factor of the Gram matrices' entries off the diagonal, in [0, 1]. None: the
  one of 0.1 and 0.9 that scores better on the validation rows."""

  def solve(self, uploads, start, context):
    """Returns RegMean's weights, in one pass over the uploads.

    Without a `shrinkage` it is 0.1 if that scores better than 0.9, else 0.9.
    """
    shrinkages = (self.shrinkage,)
    if self.shrinkage is None:
      shrinkages = _SHRINKAGES if context.score else _SHRINKAGES[:1]
    layers = [x for x in layers_of(context.shape) if x.kind == 'matrix']
    # Of each kernel sum p G, sum p G W and sum p diag(G) W, float64, from which
    # W* follows for any shrinkage.
    sums = {}
    mean = [np.zeros_like(w) for w in start]
    for share, upload in zip(uploads.shares, uploads, strict=True):
      for total, w in zip(mean, upload.weights, strict=True):
        total += w
      weights = uploads.by_name(upload.weights)
      for layer in layers:
        name, kernel = layer.kernel, weights[layer.kernel]
        gram = share * upload.summary[f'gram/{layer.name}'].astype(np.float64)
        terms = gram, gram @ kernel, np.diag(gram)[:, None] * kernel
        sums[name] = (
          [*map(np.add, sums[name], terms)] if name in sums else terms
        )
    mean = uploads.by_name([total / len(uploads) for total in mean])

    best = Best(context.score if len(shrinkages) > 1 else None)
    for shrinkage in shrinkages:
      kernels = {name: _kernel(*sums[name], shrinkage) for name in sums}
      best.visit(None, tuple((mean | kernels).values()))
    return SolveResult(best.weights)

  def solve_models(self, config, num_clients):
    """Returns models: of an upload, of sums in float64, and of the inverse."""
    shape = config.model_shape()
    sizes = [*map(math.prod, summary_shapes(shape, self.upload()).values())]
    return 9 + (2 * sum(sizes) + 12 * max(sizes)) / num_parameters(shape)

  def problems(self, config):
    problems = super().problems(config) + image_problems(config)
    is_given = self.shrinkage is not None or self.num_validation_rows
    if config.data.holds_images and not is_given:
      problems.append(
        '`config.algorithm.shrinkage` must be given, such as 0.9, with '
        'num_validation_rows 0, which leaves nothing to choose it by, found '
        'None'
      )
    return problems


def _kernel(gram, product, diagonal_product, shrinkage):
  """Returns W*, float32 [inputs, outputs].

  It is 0 in directions that no client's inputs have. With a = 1 those are where
  eigenvalues are below the rounding of float32 Gram matrices. With a < 1 only
  inputs that are always 0 count as such, as all else is well determined.
  """
  a = shrinkage
  gram = a * gram + (1 - a) * np.diag(np.diag(gram))
  product = a * product + (1 - a) * diagonal_product
  epsilon = np.finfo(np.float32 if a == 1 else np.float64).eps
  inverse = np.linalg.pinv(gram, rcond=epsilon * len(gram), hermitian=True)
  return (inverse @ product).astype(np.float32)
