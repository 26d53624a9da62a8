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
from tff_fedfish.methods.one_shot import OneShotConfig, one_shot_method
from tff_fedfish.methods.one_shot.uploads import (
  SolveContext,
  SolveResult,
  Uploads,
  Weights,
  kfac_shapes,
  summary_models,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFisherConfig(OneShotConfig):
  """Settings of FedFisher."""

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


def solve(
  uploads: Uploads, start: Weights, context: SolveContext
) -> SolveResult:
  """Returns the minimizer of the clients' quadratics.

  Where the server has validation rows the best of the weights that are visited
  is kept, the first of equals; else the last.
  """
  from tff_fedfish.methods.one_shot import quadratic

  settings, best = context.settings, _Best(context)
  if settings.tries_average:
    best.visit(0, start)
  if settings.curvature == 'diagonal':
    problem = quadratic.of_diagonals(uploads, start)
    last, residuals = _minimize(problem, start, settings, best.visit_step)
    residuals = [residuals]
  else:
    last, residuals = _solve_by_layers(uploads, start, context, best)
  if settings.solver != 'adam':
    best.visit(1, last)
  # |H w - r| of the last weights and of w_bar, over all parts.
  after, before = (
    np.linalg.norm(norms) for norms in zip(*residuals, strict=True)
  )
  residual = float(after / before) if before else 0.0
  return SolveResult(best.weights, best_step=best.step, residual=residual)


def _solve_by_layers(uploads, start, context, best):
  """Solves in V of each layer; only Adam takes all at once."""
  from tff_fedfish.methods.one_shot import quadratic

  settings, layers = context.settings, layers_of(context.shape)
  named = uploads.by_name(start)
  positions = {name: i for i, name in enumerate(named)}

  def replaced(part, matrices):
    weights = named
    for layer, v in zip(part, matrices, strict=True):
      weights = with_matrix(layer, weights, v.numpy())
    return weights

  def visit(step, matrices):
    best.visit_step(step, tuple(replaced(layers, matrices).values()))

  residuals = []
  for part in [layers] if settings.solver == 'adam' else zip(layers):
    problem = quadratic.of_layers(part, uploads, positions)
    first = [matrix_of(layer, named) for layer in part]
    last, norms = _minimize(problem, first, settings, visit)
    residuals.append(norms)
    named = replaced(part, last)
    # Graphs hold factors, in cycles.
    del problem
    gc.collect()
  return tuple(named.values()), residuals


def _minimize(problem, start, settings, visit):
  """Returns the minimizer, and |H w - r| of it and of the start."""
  import tensorflow as tf

  from tff_fedfish.methods.one_shot import quadratic

  start = tuple(map(tf.constant, start))
  if settings.solver == 'adam':
    last = quadratic.adam_as_coded(
      problem,
      start,
      is_root_inside=settings.curvature == 'kfac',
      num_steps=settings.num_solver_steps,
      learning_rate=settings.solver_learning_rate,
      check_every=settings.solver_check_every,
      visit=visit,
    )
  elif settings.solver == 'conjugate_gradient':
    last = quadratic.conjugate_gradient(
      problem, start, settings.num_solver_steps
    )
  else:
    last = quadratic.closed_form(problem, start)
  return last, tuple(map(problem.residual_norm, (last, start)))


class _Best:
  """The weights that score best of those visited; without a score the last."""

  def __init__(self, context):
    self._score, self._best_score = context.score, -1.0
    self._check_every = context.settings.solver_check_every
    self.step, self.weights = None, None

  def visit(self, step, weights):
    """Looks at the weights after a step."""
    if self._score is not None:
      score = self._score(weights)
      if not score > self._best_score:
        return
      self._best_score = score
    self.step = step
    self.weights = tuple(np.array(w, np.float32) for w in weights)

  def visit_step(self, step, weights):
    """Looks at the weights after a step of Adam, if they are to be scored."""
    # The published steps 1, 101, ...; the last only without a score.
    if self._score is None or (step - 1) % self._check_every == 0:
      self.visit(step, weights)


def _solve_models(config, num_clients):
  """Returns the models that a solve holds; factors count by their entries."""
  kind, shape = METHOD.upload(config), config.model_shape()
  if kind.summary == 'diagonal':
    # Both sums, the average, the best, and the state of a step before and after
    # it: three models of 'adam', four of 'conjugate_gradient'.
    return {'closed_form': 10, 'adam': 11}.get(config.algorithm.solver, 14)
  factors, beside = [], []
  for layer in layers_of(shape):
    sizes = [*map(math.prod, kfac_shapes([layer]).values())]
    factors.append(sum(sizes))
    # The largest factor is there twice when it is read; A V and A V G later.
    beside.append(max(*sizes, 2 * layer.num_rows * layer.fan_out))
  if config.algorithm.solver == 'adam':
    held = summary_models(shape, kind) + max(beside) / num_parameters(shape)
    return 9 + num_clients * held
  held = max(map(sum, zip(factors, beside, strict=True)))
  return 6 + num_clients * held / num_parameters(shape)


def _problems(config):
  algorithm = config.algorithm
  if algorithm.curvature == 'diagonal':
    return []
  wanted = "`config.algorithm.curvature` must be 'diagonal' with"
  if not config.data.holds_images:
    return [f"{wanted} a corpus of text, found 'kfac'"]
  if algorithm.solver == 'closed_form':
    return [f"{wanted} solver 'closed_form', found 'kfac'"]
  return []


METHOD = one_shot_method(
  name='fed_fisher',
  title='FedFisher',
  summary=(
    'One-shot: clients upload weights and their Fisher, as Kronecker factors '
    'or a diagonal; the server minimizes the sum of the quadratics.'
  ),
  source=(
    'Jhunjhunwala, Wang and Joshi (2024), "FedFisher: Leveraging Fisher '
    'information for one-shot federated learning"'
  ),
  settings=FedFisherConfig,
  summary_of=lambda config: config.algorithm.curvature,
  problems=_problems,
  solve_models=_solve_models,
  hue='#882255',
  hatch='**',
)
