"""FedFisher: the server minimizes the clients' quadratic approximations.

Jhunjhunwala, Wang and Joshi (2024), equations 6 and 7 and lemma 1. Client i
uploads w_i, its weights after local training, and its Fisher there; the server

  minimizes  sum_i p_i (w - w_i)^T F_i (w - w_i),   which is where  H w = r

  letter  meaning
  w       weights
  p_i     client i's share in the examples
  F_i     its Fisher, by layers or a diagonal, see `curvature.py`
  H       sum_i p_i F_i, symmetric, positive semidefinite
  r       sum_i p_i F_i w_i
  w_bar   sum_i p_i w_i, with which the solve starts

H may be singular. Of all minimizers the one closest to w_bar has the smallest
sum_i p_i |w - w_i|^2; gradient descent, and every method whose iterates stay in
w_bar + range(H), leads from w_bar to it. `quadratic.py` has the methods.
"""

import dataclasses
import gc
import math
from typing import Literal

import numpy as np

from models.layers import layers_of, matrix_of, with_matrix
from models.model_shapes import num_parameters
from tff_fedfish.fields import number
from tff_fedfish.late import module, tf
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.uploads import (
  Best,
  SolveResult,
  kfac_shapes,
  summary_models,
)

_quadratic = module('tff_fedfish.methods.one_shot.quadratic')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFisher(OneShot):
  """One-shot: the server minimizes the sum of the clients' quadratics.

  Clients upload weights and their Fisher, as Kronecker factors or a diagonal.
  """

  title = 'FedFisher'
  source = (
    'Jhunjhunwala, Wang and Joshi (2024), "FedFisher: Leveraging Fisher '
    'information for one-shot federated learning"'
  )
  hue, hatch = '#882255', '**'

  curvature: Literal['kfac', 'diagonal'] = 'kfac'
  """Approximation of a client's Fisher: Kronecker factors of each layer, of
  images only, or the diagonal."""
  solver: Literal['adam', 'conjugate_gradient', 'closed_form'] = 'adam'
  """Minimizer. 'adam': early-stopped steps, as published; with 'kfac' the
  factors of all clients are in memory. 'conjugate_gradient': the exact minimum
  closest to the average, layer by layer. 'closed_form': the same for a
  diagonal."""
  num_solver_steps: int = number(2000, at_least=1)
  """Steps of 'adam', or at most so many of 'conjugate_gradient' per layer, >=
  1."""
  solver_learning_rate: float = number(0.01, above=0)
  """Learning rate of 'adam', > 0."""
  solver_check_every: int = number(100, at_least=1)
  """Steps of 'adam' between two scores on the validation rows, >= 1. The best
  are kept."""
  tries_average: bool = True
  """Whether the average of the models is kept where it scores best. The
  published code does not try it."""

  @property
  def summary(self):
    return self.curvature

  def solve(self, uploads, start, context):
    """Returns the minimizer of the clients' quadratics.

    Where the server has validation rows the best of the weights that are
    visited is kept, the first of equals; else the last.
    """
    best = Best(context.score)

    def visit(step, weights):
      # The published steps 1, 101, ...; the last only without a score.
      is_scored = (step - 1) % self.solver_check_every == 0
      if context.score is None or is_scored:
        best.visit(step, weights)

    if self.tries_average:
      best.visit(0, start)
    if self.curvature == 'diagonal':
      problem = _quadratic.of_diagonals(uploads, start)
      last, residuals = self._minimize(problem, start, visit)
      residuals = [residuals]
    else:
      layers = layers_of(context.shape)
      last, residuals = self._solve_by_layers(layers, uploads, start, visit)
    if self.solver != 'adam':
      best.visit(1, last)
    # |H w - r| of the last weights and of w_bar, over all parts.
    after, before = (
      np.linalg.norm(norms) for norms in zip(*residuals, strict=True)
    )
    residual = float(after / before) if before else 0.0
    return SolveResult(best.weights, best_step=best.step, residual=residual)

  def _solve_by_layers(self, layers, uploads, start, visit):
    """Solves in V of each layer; only Adam takes all at once."""
    named = uploads.by_name(start)
    positions = {name: i for i, name in enumerate(named)}

    def replaced(part, matrices):
      weights = named
      for layer, v in zip(part, matrices, strict=True):
        weights = with_matrix(layer, weights, v.numpy())
      return weights

    def visit_matrices(step, matrices):
      visit(step, tuple(replaced(layers, matrices).values()))

    residuals = []
    for part in [layers] if self.solver == 'adam' else zip(layers):
      problem = _quadratic.of_layers(part, uploads, positions)
      first = [matrix_of(layer, named) for layer in part]
      last, norms = self._minimize(problem, first, visit_matrices)
      residuals.append(norms)
      named = replaced(part, last)
      # Graphs hold factors, in cycles.
      del problem
      gc.collect()
    return tuple(named.values()), residuals

  def _minimize(self, problem, start, visit):
    """Returns the minimizer, and |H w - r| of it and of the start."""
    start = tuple(map(tf.constant, start))
    if self.solver == 'adam':
      last = _quadratic.adam_as_coded(
        problem,
        start,
        is_root_inside=self.curvature == 'kfac',
        num_steps=self.num_solver_steps,
        learning_rate=self.solver_learning_rate,
        check_every=self.solver_check_every,
        visit=visit,
      )
    elif self.solver == 'conjugate_gradient':
      last = _quadratic.conjugate_gradient(
        problem, start, self.num_solver_steps
      )
    else:
      last = _quadratic.closed_form(problem, start)
    return last, tuple(map(problem.residual_norm, (last, start)))

  def solve_models(self, config, num_clients):
    """Returns the models that a solve holds; factors count by their entries."""
    shape = config.model_shape()
    if self.curvature == 'diagonal':
      # Both sums, the average, the best, and the state of a step before and
      # after it: three models of 'adam', four of 'conjugate_gradient'.
      return {'closed_form': 10, 'adam': 11}.get(self.solver, 14)
    factors, beside = [], []
    for layer in layers_of(shape):
      sizes = [*map(math.prod, kfac_shapes([layer]).values())]
      factors.append(sum(sizes))
      # The largest factor is there twice when it is read; A V and A V G later.
      beside.append(max(*sizes, 2 * layer.num_rows * layer.fan_out))
    if self.solver == 'adam':
      held = summary_models(shape, self.upload())
      held += max(beside) / num_parameters(shape)
      return 9 + num_clients * held
    held = max(map(sum, zip(factors, beside, strict=True)))
    return 6 + num_clients * held / num_parameters(shape)

  def problems(self, config):
    problems = super().problems(config)
    if self.curvature != 'diagonal':
      wanted = "`config.algorithm.curvature` must be 'diagonal' with"
      if not config.data.holds_images:
        problems.append(f"{wanted} a corpus of text, found 'kfac'")
      elif self.solver == 'closed_form':
        problems.append(f"{wanted} solver 'closed_form', found 'kfac'")
    return problems
