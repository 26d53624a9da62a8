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
from typing import NamedTuple

import numpy as np

from models.layers import layers_of
from models.model_shapes import num_parameters
from tff_fedfish.fields import number
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.uploads import SolveResult, summary_shapes
from tff_fedfish.methods.settings import image_problems

# Between them the authors choose; the first wins a tie, as their default.
_SHRINKAGES = (0.9, 0.1)


class _Sums(NamedTuple):
  """Sums over clients from which W* follows for any shrinkage; float64."""

  gram: np.ndarray
  """sum p G, [inputs, inputs]."""
  product: np.ndarray
  """sum p G W, [inputs, outputs]."""
  diagonal_product: np.ndarray
  """sum p diag(G) W, [inputs, outputs]."""


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

    Without a `shrinkage` it is the one of 0.1 and 0.9 that `score` likes
    better, 0.9 without a score.
    """
    shrinkages = (self.shrinkage,)
    if self.shrinkage is None:
      shrinkages = _SHRINKAGES if context.score else _SHRINKAGES[:1]
    layers = [x for x in layers_of(context.shape) if x.kind == 'matrix']
    sums = {layer.kernel: None for layer in layers}
    mean = [np.zeros_like(w) for w in start]
    for share, upload in zip(uploads.shares, uploads, strict=True):
      for total, w in zip(mean, upload.weights, strict=True):
        total += w
      weights = uploads.by_name(upload.weights)
      for layer in layers:
        gram = upload.summary[f'gram/{layer.name}']
        sums[layer.kernel] = _with_client(
          sums[layer.kernel], gram, weights[layer.kernel], share
        )
    mean = uploads.by_name([total / len(uploads) for total in mean])

    def merged(shrinkage):
      kernels = {
        name: _kernel(of_layer, shrinkage) for name, of_layer in sums.items()
      }
      return tuple((mean | kernels).values())

    candidates = [merged(shrinkage) for shrinkage in shrinkages]
    if len(candidates) == 1:
      return SolveResult(*candidates)
    return SolveResult(max(candidates, key=context.score))

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


def _with_client(sums, gram, kernel, share):
  """Returns the sums with one client more; None: it is the first."""
  gram = share * gram.astype(np.float64)
  terms = gram, gram @ kernel, np.diag(gram)[:, None] * kernel
  return _Sums(*(map(np.add, sums, terms) if sums else terms))


def _kernel(sums, shrinkage):
  """Returns W*, float32 [inputs, outputs].

  It is 0 in directions that no client's inputs have. With a = 1 those are where
  eigenvalues are below the rounding of float32 Gram matrices. With a < 1 only
  inputs that are always 0 count as such, as all else is well determined.
  """
  a = shrinkage
  gram = a * sums.gram + (1 - a) * np.diag(np.diag(sums.gram))
  product = a * sums.product + (1 - a) * sums.diagonal_product
  epsilon = np.finfo(np.float32 if a == 1 else np.float64).eps
  inverse = np.linalg.pinv(gram, rcond=epsilon * len(gram), hermitian=True)
  return (inverse @ product).astype(np.float32)
