"""FedFisher's server solve.

Jhunjhunwala et al. (2024), FedFisher, equations 6 and 7: minimize

  sum_i p_i (w - w_i)^T F_i (w - w_i)

over w, starting at w_bar = sum_i p_i w_i. `mathematics/quadratic.py` has the
minimizers, `curvature.py` the product F_i v. Where the server has validation
rows the best of the weights that are visited is kept, the first of equals.
"""

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models.layers import (
  layer_groups,
  layers_of,
  matrix_of,
  weight_names,
  with_matrix,
)
from tff_fedfish import curvature, curvature_shapes
from tff_fedfish.errors import FailedError
from tff_fedfish.mathematics import quadratic
from tff_fedfish.one_shot.fisher_sums import fisher_sums
from tff_fedfish.one_shot.solving import SolveContext, SolveResult, Uploads
from tff_fedfish.printing import format_bytes

_TOLERANCE = 1e-5

Weights = tuple[np.ndarray, ...]


def solve(
  uploads: Uploads, start: Weights, context: SolveContext
) -> SolveResult:
  """Returns the minimizer of the clients' quadratics; see `methods.fed_fisher`.

  Args:
    uploads: With K-FAC or diagonal summaries.
    start: w_bar.
    context: The context.
  """
  settings = context.settings
  best = _Best(context)
  if settings.tries_average:
    best.visit(0, start)
  if settings.curvature == 'kfac' and settings.solver != 'adam':
    return _by_layers(uploads, start, context, best)
  if settings.curvature == 'diagonal':
    apply, r = _diagonal(uploads, start)
  else:
    apply, r = _kfac(uploads, context)
  first = tuple(map(tf.constant, start))

  def visit(step, weights):
    # The published steps 1, 101, ... are scored; the last only without a score.
    is_scored = (step - 1) % settings.solver_check_every == 0
    if is_scored or context.score is None:
      best.visit(step, weights)

  if settings.solver == 'adam':
    last = quadratic.adam_as_coded(
      apply,
      r,
      first,
      root='inside' if settings.curvature == 'kfac' else 'outside',
      num_steps=settings.num_solver_steps,
      learning_rate=settings.solver_learning_rate,
      check_every=settings.solver_check_every,
      visit=visit,
    )
  elif settings.solver == 'conjugate_gradient':
    last, _ = quadratic.conjugate_gradient(
      apply,
      r,
      first,
      max_steps=settings.num_solver_steps,
      tolerance=_TOLERANCE,
    )
    best.visit(1, last)
  else:
    mass = apply(tuple(map(tf.ones_like, first)))
    last = quadratic.closed_form(mass, r, first)
    best.visit(1, last)
  return best.result([_residuals(apply, r, first, last)])


class _Best:
  """The weights that score best of those visited; without a score the last."""

  def __init__(self, context: SolveContext):
    self._score = context.score
    self._best = None

  def visit(self, step: int, weights: Sequence[tf.Tensor | np.ndarray]) -> None:
    """Looks at the weights after a step."""
    score = None if self._score is None else self._score(weights)
    if self._best is None or score is None or score > self._best[0]:
      arrays = tuple(np.array(w, np.float32) for w in weights)
      self._best = score, step, arrays

  def result(self, residuals: Sequence[tuple[float, float]]) -> SolveResult:
    """Returns the best.

    Args:
      residuals: Norms |H w - r| of the last weights and of w_bar, of every
        part of the quadratic.
    """
    last, first = (
      np.linalg.norm(norms) for norms in zip(*residuals, strict=True)
    )
    _, step, weights = self._best
    residual = float(last / first) if first else 0.0
    return SolveResult(weights, best_step=step, residual=residual)


def _residuals(apply, r, first, last):
  return tuple(quadratic.residual_norm(apply, r, w) for w in (last, first))


def _diagonal(uploads, start):
  """Returns H and r of the clients' diagonals, summed one at a time."""
  mass, weighted = (
    tuple(map(tf.constant, sums)) for sums in fisher_sums(uploads, start)
  )

  def apply(v):
    return tuple(map(tf.multiply, mass, v))

  return apply, weighted


def _kfac(uploads, context):
  """Returns H and r of all clients' factors, which are held at once."""
  layers = layers_of(context.shape)
  product = functools.partial(curvature.fisher_product, layers)
  factors, r = [], None
  limit = context.settings.solve_memory_bytes
  if uploads.num_bytes > limit:
    raise FailedError(
      f'The uploads of {len(uploads)} clients take '
      f'{format_bytes(uploads.num_bytes)}, but '
      f'`--config.algorithm.solve_memory_bytes` is {limit} '
      f'({format_bytes(limit)}). Set `--config.algorithm.solver='
      'conjugate_gradient` in another run, or raise the limit.'
    )
  for share, upload in zip(uploads.shares, uploads, strict=True):
    summary = {name: tf.constant(t) for name, t in upload.summary.items()}
    factors.append((np.float32(share), summary))
    term = _scaled(share, product(summary, [*map(tf.constant, upload.weights)]))
    r = term if r is None else tuple(map(tf.add, r, term))

  def apply(v):
    terms = [_scaled(share, product(summary, v)) for share, summary in factors]
    return tuple(map(tf.add_n, zip(*terms, strict=True)))

  return apply, r


def _scaled(share, tensors):
  return tuple(np.float32(share) * tensor for tensor in tensors)


def _by_layers(uploads, start, context, best):
  """Solves by conjugate gradients, with the factors of one group at a time."""
  layers = layers_of(context.shape)
  names = weight_names(layers)
  named, residuals = dict(zip(names, start, strict=True)), []
  for group in layer_groups(layers):
    apply, r = _of_group(group, uploads, names)
    first = (tf.constant(matrix_of(group[0], named)),)
    last, _ = quadratic.conjugate_gradient(
      apply,
      r,
      first,
      max_steps=context.settings.num_solver_steps,
      tolerance=_TOLERANCE,
    )
    residuals.append(_residuals(apply, r, first, last))
    named = with_matrix(group[0], named, last[0].numpy())
  best.visit(1, tuple(named[name] for name in names))
  return best.result(residuals)


def _of_group(group, uploads, all_names):
  """Returns H and r of layers that have their entries in common."""
  layer, factors, r = group[0], [], 0.0
  names = [n for n in (layer.kernel, layer.bias) if n is not None]
  positions = [all_names.index(name) for name in names]
  for index, share in enumerate(uploads.shares):
    weights, summary = uploads.part(
      index, positions, [*curvature_shapes.summary_specs(group)]
    )
    matrix = matrix_of(layer, dict(zip(names, weights, strict=True)))
    summary = {name: tf.constant(t) for name, t in summary.items()}
    factors.append((np.float32(share), summary))
    term = curvature.group_product(group, summary, tf.constant(matrix))
    r += np.float32(share) * term

  def apply(v):
    terms = [
      share * curvature.group_product(group, summary, v[0])
      for share, summary in factors
    ]
    return (tf.add_n(terms),)

  return apply, (r,)
