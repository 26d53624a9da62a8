"""FedFisher's server solve.

Jhunjhunwala et al. (2024), FedFisher, equations 6 and 7: minimize

  sum_i p_i (w - w_i)^T F_i (w - w_i)

over w, starting at w_bar = sum_i p_i w_i. `mathematics/quadratic.py` has the
minimizers, `curvature.py` the products F_i v. Where the server has validation
rows the best of the weights that are visited is kept, the first of equals.
"""

import gc
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from models.layers import layers_of, matrix_of, weight_names, with_matrix
from models.model_shapes import num_parameters
from tff_fedfish.errors import FailedError
from tff_fedfish.methods.one_shot import curvature, curvature_shapes, quadratic
from tff_fedfish.methods.one_shot.fisher_sums import fisher_sums
from tff_fedfish.methods.one_shot.solving import (
  SolveContext,
  SolveResult,
  Uploads,
)
from tff_fedfish.printing import format_bytes

_TOLERANCE = 1e-5

Weights = tuple[np.ndarray, ...]


def solve(
  uploads: Uploads, start: Weights, context: SolveContext
) -> SolveResult:
  """Returns the minimizer of the clients' quadratics; see `methods.fed_fisher`.

  Uploads have K-FAC or diagonal summaries; `start` is w_bar.
  """
  settings = context.settings
  best = _Best(context)
  if settings.tries_average:
    best.visit(0, start)
  if settings.curvature == 'kfac':
    return _solve_by_layers(uploads, start, context, best)
  apply, r = _diagonal(uploads, start)
  first = tuple(map(tf.constant, start))
  last = _minimize(apply, r, first, settings, best.visit_step)
  if settings.solver != 'adam':
    best.visit(1, last)
  return best.result([_residuals(apply, r, first, last)])


def _solve_by_layers(uploads, start, context, best):
  """Solves in V of each layer; only Adam takes all at once."""
  settings, layers = context.settings, layers_of(context.shape)
  names = weight_names(layers)
  named = dict(zip(names, start, strict=True))
  is_adam, residuals = settings.solver == 'adam', []
  if is_adam:
    _require_memory(uploads, context)

  def visit(step, matrices):
    found = _with_layers(named, layers, matrices)
    best.visit_step(step, tuple(found[name] for name in names))

  for part in [layers] if is_adam else [(layer,) for layer in layers]:
    apply, r = _quadratic(part, uploads, names)
    first = tuple(tf.constant(matrix_of(layer, named)) for layer in part)
    last = _minimize(apply, r, first, settings, visit)
    residuals.append(_residuals(apply, r, first, last))
    named = _with_layers(named, part, last)
    # Graphs hold factors, in cycles.
    del apply, r
    gc.collect()
  if not is_adam:
    best.visit(1, tuple(named[name] for name in names))
  return best.result(residuals)


def _minimize(apply, r, first, settings, visit):
  if settings.solver == 'adam':
    return quadratic.adam_as_coded(
      apply,
      r,
      first,
      root='inside' if settings.curvature == 'kfac' else 'outside',
      num_steps=settings.num_solver_steps,
      learning_rate=settings.solver_learning_rate,
      check_every=settings.solver_check_every,
      visit=visit,
    )
  if settings.solver == 'conjugate_gradient':
    last, _ = quadratic.conjugate_gradient(
      apply,
      r,
      first,
      max_steps=settings.num_solver_steps,
      tolerance=_TOLERANCE,
    )
    return last
  return quadratic.closed_form(apply(tuple(map(tf.ones_like, first))), r, first)


class _Best:
  """The weights that score best of those visited; without a score the last."""

  def __init__(self, context: SolveContext):
    self._score = context.score
    self._settings = context.settings
    self._best = None

  def visit(self, step: int, weights: Sequence[tf.Tensor | np.ndarray]) -> None:
    """Looks at the weights after a step."""
    score = None if self._score is None else self._score(weights)
    if self._best is None or score is None or score > self._best[0]:
      arrays = tuple(np.array(w, np.float32) for w in weights)
      self._best = score, step, arrays

  def visit_step(self, step: int, weights: Sequence[tf.Tensor]) -> None:
    """Looks at the weights after a step of Adam, if they are to be scored."""
    # The published steps 1, 101, ...; the last only without a score.
    if (
      self._score is None or (step - 1) % self._settings.solver_check_every == 0
    ):
      self.visit(step, weights)

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


def _require_memory(uploads, context):
  limit = context.settings.solve_memory_bytes
  # Of factors, as `methods.fed_fisher` counts them before clients train.
  weights = 4 * num_parameters(context.shape)
  num_bytes = uploads.num_bytes - len(uploads) * weights
  if num_bytes > limit:
    raise FailedError(
      f'The factors of {len(uploads)} clients take '
      f'{format_bytes(num_bytes)}, but '
      f'`--config.algorithm.solve_memory_bytes` is {limit} '
      f'({format_bytes(limit)}). Set `--config.algorithm.solver='
      'conjugate_gradient` in another run, or raise the limit.'
    )


def _with_layers(named, layers, matrices):
  """Returns the weights with V of some layers replaced."""
  for layer, v in zip(layers, matrices, strict=True):
    named = with_matrix(layer, named, v.numpy())
  return named


def _quadratic(layers, uploads, names):
  """Returns H and r of layers, in V of each."""
  factors, shares = {}, np.float32(uploads.shares)
  r = tuple(_load(layer, uploads, shares, names, factors) for layer in layers)

  def apply(v):
    products = []
    for layer, matrix in zip(layers, v, strict=True):
      # One after the other: those of all clients take memory.
      with tf.control_dependencies(products[-1:]):
        products.append(curvature.layer_product(layer, factors, matrix))
    return tuple(products)

  return apply, r


def _load(layer, uploads, shares, names, factors):
  """Adds all clients' factors, of p_i F_i, to those; returns r."""
  specs, r = curvature_shapes.summary_specs([layer]), 0.0
  own_names = [n for n in (layer.kernel, layer.bias) if n is not None]
  positions = [names.index(name) for name in own_names]
  rows = {name: [] for name in specs}
  for i, share in enumerate(shares):
    weights, summary = uploads.part(i, positions, [*rows])
    for name, tensor in summary.items():
      # Of A (x) G the share is in G.
      is_inputs = name.startswith('inputs/')
      rows[name].append(tensor if is_inputs else share * tensor)
    matrix = matrix_of(layer, dict(zip(own_names, weights, strict=True)))
    own = {name: rows[name][i : i + 1] for name in specs}
    r += curvature.layer_product(layer, own, tf.constant(matrix))
  while rows:
    # Of one name at a time. Not `tf.constant`, which makes two copies.
    name, tensors = rows.popitem()
    factors[name] = tf.stack(tensors)
  return r
