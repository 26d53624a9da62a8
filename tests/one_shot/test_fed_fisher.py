"""FedFisher's solve: what it reduces to, and the steps it keeps."""

import numpy as np
import pytest
from uploaded_models import ListedUploads, random_weights

from models.image_model_config import ImageModelConfig
from models.layers import layers_of, matrix_of
from models.model_shapes import weight_shapes
from tff_fedfish.errors import FailedError
from tff_fedfish.methods.one_shot import (
  fed_fisher_solve as fed_fisher,
)
from tff_fedfish.methods.one_shot import (
  fisher_merge_solve as fisher_merge,
)
from tff_fedfish.methods.one_shot.curvature_shapes import summary_specs
from tff_fedfish.methods.one_shot.fed_fisher import FedFisherConfig
from tff_fedfish.methods.one_shot.fisher_merge import FisherMergeConfig
from tff_fedfish.methods.one_shot.solving import SolveContext, Upload

_LINEAR = ImageModelConfig(name='linear', num_classes=3, image_shape=(2, 1, 1))
_LENET = ImageModelConfig(name='lenet', num_classes=4, image_shape=(16, 17, 1))
_SHAPES = {'linear': _LINEAR, 'lenet': _LENET}


def _kfac(shape, random):
  """Returns factors that are symmetric and positive definite."""
  summary = {}
  for name, sizes in summary_specs(layers_of(shape)).items():
    if name.startswith('diagonal/'):
      summary[name] = random.uniform(0.5, 2, sizes).astype(np.float32)
    else:
      root = random.normal(size=(sizes[0], 2 * sizes[0])) / sizes[0] ** 0.5
      summary[name] = (root @ root.T).astype(np.float32)
  return summary


def _diagonal(shape, random):
  return {
    f'diagonal/{i}': random.uniform(0.5, 2, size).astype(np.float32)
    for i, size in enumerate(weight_shapes(shape).values())
  }


def _uploads(shape, summarize, num_clients=3):
  random = np.random.RandomState(5)
  weights = [10.0, 30.0, 5.0][:num_clients]
  return ListedUploads(
    Upload(
      weight,
      tuple(random_weights(shape, seed).values()),
      summarize(shape, random),
    )
    for seed, weight in enumerate(weights)
  )


def _solve(uploads, shape, score=None, **settings):
  settings = FedFisherConfig(name='fed_fisher', **settings)
  context = SolveContext(settings, shape, score, 0)
  return fed_fisher.solve(uploads, uploads.start, context)


@pytest.mark.parametrize('shape', _SHAPES)
@pytest.mark.parametrize('solver', ['adam', 'conjugate_gradient'])
def test_one_client_is_returned(solver, shape):
  shape = _SHAPES[shape]
  uploads = _uploads(shape, _kfac, num_clients=1)
  # From somewhere else, as its own start is the solution.
  start = tuple(w + 0.05 for w in uploads[0].weights)
  context = SolveContext(
    FedFisherConfig(name='fed_fisher', solver=solver), shape, None, 0
  )
  result = fed_fisher.solve(uploads, start, context)
  for found, wanted in zip(result.weights, uploads[0].weights, strict=True):
    np.testing.assert_allclose(found, wanted, atol=2e-3)
  assert result.residual < 1e-2


@pytest.mark.parametrize('shape', _SHAPES)
def test_steps_and_conjugate_gradients_meet(shape):
  shape = _SHAPES[shape]
  uploads = _uploads(shape, _kfac)
  adam = _solve(uploads, shape, solver='adam')
  exact = _solve(uploads, shape, solver='conjugate_gradient')
  for found, wanted in zip(adam.weights, exact.weights, strict=True):
    np.testing.assert_allclose(found, wanted, atol=5e-3)
  assert exact.residual < 1e-4


def test_the_gradient_vanishes_at_the_solution():
  # sum_i p_i A_i (V - V_i) G_i = 0 for the one layer [kernel; bias].
  uploads = _uploads(_LINEAR, _kfac)
  (layer,) = layers_of(_LINEAR)
  result = _solve(uploads, _LINEAR, solver='conjugate_gradient')

  def matrix(weights):
    names = weight_shapes(_LINEAR)
    return matrix_of(layer, dict(zip(names, weights, strict=True)))

  gradient = sum(
    share
    * upload.summary['inputs/head']
    @ (matrix(result.weights) - matrix(upload.weights))
    @ upload.summary['gradients/head']
    for share, upload in zip(uploads.shares, uploads, strict=True)
  )
  np.testing.assert_allclose(gradient, 0, atol=1e-5)


def test_equal_diagonals_give_the_average():
  uploads = _uploads(_LENET, _diagonal)
  for upload in list.__iter__(uploads):
    upload.summary.update(uploads[0].summary)
  for solver in ('adam', 'conjugate_gradient', 'closed_form'):
    result = _solve(uploads, _LENET, curvature='diagonal', solver=solver)
    for found, wanted in zip(result.weights, uploads.start, strict=True):
      np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_closed_form_is_fisher_merge_without_a_floor():
  uploads = _uploads(_LENET, _diagonal)
  # Nobody's data determine a coordinate, and one client's do not another.
  for upload in list.__iter__(uploads):
    upload.summary['diagonal/0'].flat[0] = 0
  uploads[1].summary['diagonal/0'].flat[1] = 0
  settings = FisherMergeConfig(name='fisher_merge', fisher_floor=0.0)
  merged = fisher_merge.solve(
    uploads, uploads.start, SolveContext(settings, _LENET, None, 0)
  )
  found = _solve(uploads, _LENET, curvature='diagonal', solver='closed_form')
  for a, b in zip(found.weights, merged.weights, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  assert found.weights[0].flat[0] == uploads.start[0].flat[0]
  steps = _solve(uploads, _LENET, curvature='diagonal')
  for a, b in zip(steps.weights, merged.weights, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-3)


def test_the_best_of_equal_scores_is_the_first_visited():
  uploads, seen = _uploads(_LINEAR, _kfac), []

  def score(weights):
    seen.append([np.array(w) for w in weights])
    # The average, then 1, 4 and 7 updates; 8 is not 1 + 3 k.
    return [0.2, 0.1, 0.5, 0.5][len(seen) - 1]

  steps = dict(num_solver_steps=8, solver_check_every=3)
  result = _solve(uploads, _LINEAR, score, **steps)
  assert len(seen) == 4
  assert result.best_step == 4
  for found, wanted in zip(result.weights, seen[2], strict=True):
    np.testing.assert_array_equal(found, wanted)
  seen.clear()
  result = _solve(uploads, _LINEAR, score, tries_average=False, **steps)
  # 0.2, 0.1, 0.5 after 1, 4, 7 updates.
  assert (len(seen), result.best_step) == (3, 7)


def test_factors_beyond_the_limit():
  # Of 1000 bytes 3 * 4 * 9 are weights.
  wanted = (
    r'The factors of 3 clients take 892 B, but '
    r'`--config.algorithm.solve_memory_bytes` is 891 \(.*\). Set '
    '`--config.algorithm.solver=conjugate_gradient` in another run'
  )
  with pytest.raises(FailedError, match=wanted):
    _solve(_uploads(_LINEAR, _kfac), _LINEAR, solve_memory_bytes=891)


def test_without_a_score_the_last_step_is_kept():
  uploads = _uploads(_LINEAR, _kfac)
  result = _solve(uploads, _LINEAR, num_solver_steps=7, solver_check_every=3)
  assert result.best_step == 7


def test_solving_again_gives_the_same_bits():
  uploads = _uploads(_LENET, _kfac)
  first, second = (
    _solve(uploads, _LENET, num_solver_steps=30).weights for _ in range(2)
  )
  for a, b in zip(first, second, strict=True):
    np.testing.assert_array_equal(a, b)
