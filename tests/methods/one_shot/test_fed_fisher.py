"""FedFisher's solve: vectors by hand, singular quadratics, steps it keeps."""

import numpy as np
import pytest
import tensorflow as tf
from uploaded_models import ListedUploads, random_weights, solve

from models.image_model_config import ImageModelConfig
from models.layers import layers_of, matrix_of
from tff_fedfish.methods.one_shot import quadratic
from tff_fedfish.methods.one_shot.fed_fisher import FedFisher
from tff_fedfish.methods.one_shot.uploads import kfac_shapes

# The head of `linear` is one layer, pixels x classes, and a bias.
_LINEAR = ImageModelConfig(name='linear', num_classes=3, image_shape=(2, 1, 1))
_LENET = ImageModelConfig(
  name='lenet', num_classes=4, image_shape=(16, 17, 1), widths=(3, 4, 6, 5)
)


def _kfac(shape, random):
  """Returns factors that are symmetric and positive definite."""
  for sizes in kfac_shapes(layers_of(shape)).values():
    root = random.normal(size=(sizes[0], 2 * sizes[0])) / sizes[0] ** 0.5
    yield (root @ root.T).astype(np.float32)


def _uploads(shape, num_clients=3):
  random = np.random.RandomState(5)
  return ListedUploads(
    shape,
    'kfac',
    [10.0, 30.0, 5.0][:num_clients],
    [random_weights(shape, i).values() for i in range(num_clients)],
    [list(_kfac(shape, random)) for _ in range(num_clients)],
  )


def _solve(uploads, shape, score=None, **settings):
  return solve(uploads, shape, FedFisher, score=score, **settings)


def _vector_v7():
  """One pixel and one class, so (kernel, bias), and a shape of two of them."""
  # p = (1/4, 3/4); w_1 = (1, 0, 2), w_2 = (3, -2, 4);
  # F_1 = (2, 0, 0), F_2 = (1, 4, 0), diagonal.
  #   H = (2/4 + 3/4, 3, 0), r = (2/4 + 9/4, -6, 0),
  #   w_bar = (1/4 + 9/4, -6/4, 2/4 + 12/4)
  shape = ImageModelConfig(name='linear', num_classes=1, image_shape=(2, 1, 1))

  def tensors(a, b, c):
    return np.float32([[a], [b]]), np.float32([c])

  return shape, ListedUploads(
    shape,
    'diagonal',
    [10, 30],
    [tensors(1, 0, 2), tensors(3, -2, 4)],
    [tensors(2, 0, 0), tensors(1, 4, 0)],
  )


@pytest.mark.parametrize(
  ('solver', 'num_steps', 'expected'),
  [
    # First step: g = (0.375, 1.5), 0.01 * 0.375 / 0.385 = 0.0097402597.
    ('adam', 1, (2.4902597403, -1.5099337748)),
    ('adam', 2, (2.4770570925, -1.5233314553)),
    ('adam', 100, (2.2005783614, -1.9976511625)),
    ('adam', 2000, (2.2, -2)),
    ('conjugate_gradient', 2000, (2.2, -2)),
    ('closed_form', 1, (2.2, -2)),
  ],
)
def test_vector_v7(solver, num_steps, expected):
  shape, uploads = _vector_v7()
  settings = dict(solver=solver, num_solver_steps=num_steps)
  kernel, bias = _solve(
    uploads, shape, curvature='diagonal', **settings
  ).weights
  np.testing.assert_allclose(kernel[:, 0], expected, atol=2e-6)
  # It has no Fisher, and stays at the average.
  assert bias[0] == 3.5


@pytest.mark.parametrize(
  ('solver', 'second', 'expected'),
  [
    # H = (A_1 + 2 A_2) / 2 = (1.5, .5; .5, 1), r = (1.5, 2).
    ('adam', [[1.0, 0.5], [0.5, 1.0]], (0.4, 1.8)),
    ('conjugate_gradient', [[1.0, 0.5], [0.5, 1.0]], (0.4, 1.8)),
    # H = diag(2.5, 0), r = (0.5, 0): the second input stays at w_bar = 3.5.
    ('conjugate_gradient', [[2.0, 0.0], [0.0, 0.0]], (0.2, 3.5)),
  ],
)
def test_vector_v7b_of_kronecker_factors(solver, second, expected):
  # One layer, two inputs and one output, p = (1/2, 1/2), W = (1, 5) and (0, 2).
  # The bias is an input of its own that no client's Fisher sees.
  shape = ImageModelConfig(name='linear', num_classes=1, image_shape=(2, 1, 1))
  factors = []
  for a in ([[1.0, 0.0], [0.0, 0.0]], second):
    padded = np.zeros([3, 3], np.float32)
    padded[:2, :2] = a
    factors.append(padded)
  uploads = ListedUploads(
    shape,
    'kfac',
    [3, 3],
    [([[1.0], [5.0]], [4.0]), ([[0.0], [2.0]], [6.0])],
    [
      (factors[0], np.float32([[1]])),
      (factors[1], np.float32([[2]])),
    ],
  )
  kernel, bias = _solve(uploads, shape, solver=solver).weights
  np.testing.assert_allclose(kernel[:, 0], expected, atol=1e-3)
  np.testing.assert_allclose(bias, [5.0], atol=1e-6)


def test_the_published_steps_of_factors_have_the_root_inside():
  uploads = _uploads(_LINEAR)
  result = _solve(uploads, _LINEAR, num_solver_steps=30)
  # Without a score it is the last step.
  assert result.best_step == 30

  def v_of(weights):
    return np.concatenate([weights[0], weights[1][None]]).astype(np.float64)

  w, m, v = v_of(uploads.mean()), 0.0, 0.0
  for _ in range(30):
    g = sum(
      p
      * u.summary['inputs/head']
      @ (w - v_of(u.weights))
      @ u.summary['gradients/head']
      for p, u in zip(uploads.shares, uploads, strict=True)
    )
    m, v = g + 0.9 * m, g**2 + 0.99 * v
    w = w - 0.01 * m / np.sqrt(v + 0.01)
  np.testing.assert_allclose(v_of(result.weights), w, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('solver', ['adam', 'conjugate_gradient'])
def test_one_client_is_returned_and_solvers_meet(solver):
  uploads = _uploads(_LENET, num_clients=1)
  result = _solve(uploads, _LENET, solver=solver)
  for found, wanted in zip(result.weights, uploads[0].weights, strict=True):
    np.testing.assert_allclose(found, wanted, atol=2e-3)
  uploads = _uploads(_LENET)
  result = _solve(uploads, _LENET, solver=solver)
  # sum_i p_i A_i (V - V_i) G_i = 0 in every layer.
  for layer in layers_of(_LENET):
    solution = matrix_of(layer, uploads.by_name(result.weights))
    gradient = sum(
      p
      * u.summary[f'inputs/{layer.name}']
      @ (solution - matrix_of(layer, uploads.by_name(u.weights)))
      @ u.summary[f'gradients/{layer.name}']
      for p, u in zip(uploads.shares, uploads, strict=True)
    )
    np.testing.assert_allclose(gradient, 0, atol=2e-2)
  assert result.residual < 1e-2


def test_a_singular_problem_is_solved_closest_to_the_average(monkeypatch):
  # Far more steps than it takes, and no tolerance that would end them: rounding
  # must not carry the weights off.
  monkeypatch.setattr(quadratic, '_TOLERANCE', 0.0)
  random = np.random.default_rng(0)

  def factors(size, rank):
    """Returns those of three clients, of low rank, in directions of no axis."""
    basis = np.linalg.qr(random.normal(size=[size, size]))[0][:, :rank]
    rows = random.normal(size=[3, 200, rank]) * 10 ** -(np.arange(rank) / rank)
    rows = rows @ basis.T
    return (rows.swapaxes(1, 2) @ rows / 200).astype(np.float32)

  p = np.float32([0.2, 0.3, 0.5])
  a, g = factors(30, 12), factors(12, 8)
  w = random.normal(size=[30, 12]) + 0.3 * random.normal(size=[3, 30, 12])
  w = w.astype(np.float32)
  terms = [*zip(p, a, g, w, strict=True)]
  problem = quadratic.Quadratic(
    lambda v: (tf.add_n([q * (a @ v[0] @ g) for q, a, g, _ in terms]),),
    (tf.add_n([tf.constant(q * (a @ w @ g)) for q, a, g, w in terms]),),
  )
  start = np.einsum('k,kij->ij', p, w)
  (found,) = quadratic.conjugate_gradient(problem, (tf.constant(start),), 3000)
  # In float64. Eigenvalues of range(H) and rounding are orders of magnitude
  # apart.
  a, g, w = (np.float64(part) for part in (a, g, w))
  r = np.einsum('k,kab,kbc,kcd->ad', p, a, w - start, g).ravel()
  hessian = sum(map(np.kron, p[:, None, None] * a, g))
  step = np.linalg.pinv(hessian, rcond=1e-6, hermitian=True) @ r
  difference = found.numpy() - start - step.reshape(start.shape)
  assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(step)


@pytest.mark.parametrize(
  ('mass', 'r', 'expected'),
  [
    # The second entry of r is rounding, which 1e-9 would blow up to 30.
    ((1.0, 1e-9), (1.0, 3e-8), (1, 0)),
    # A step would be of length e.He / He.He = 1, and move the second by 1.
    ((1.0, 0.0), (1e-4, 1.0), (0, 0)),
    ((-1.0, -2.0), (1.0, 1.0), (0, 0)),
    ((np.nan, 1.0), (1.0, 1.0), (0, 0)),
  ],
)
def test_conjugate_gradients_stop(mass, r, expected):
  problem = quadratic.Quadratic(
    lambda v: (np.float32(mass) * v[0],), (tf.constant(r),)
  )
  (found,) = quadratic.conjugate_gradient(problem, (tf.zeros([2]),), 50)
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_best_of_equal_scores_is_the_first_visited():
  uploads, seen = _uploads(_LINEAR), []

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
