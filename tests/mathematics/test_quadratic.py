"""Minimisers of the clients' quadratics, by hand and against NumPy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.one_shot import quadratic

# p = (1/4, 3/4); w_1 = (1, 0, 2), w_2 = (3, -2, 4);
# F_1 = (2, 0, 0), F_2 = (1, 4, 0), diagonal.
#   H = (2/4 + 3/4, 3, 0), r = (2/4 + 9/4, -6, 0),
#   w_bar = (1/4 + 9/4, -6/4, 2/4 + 12/4)
_H = np.array([1.25, 3.0, 0.0])
_R = np.array([2.75, -6.0, 0.0])
_START = np.array([2.5, -1.5, 3.5])
_SOLUTION = [2.2, -2.0, 3.5]


def _split(vector, dtype=tf.float64):
  """Returns a vector as two tensors, of the first entry and of the others."""
  return tf.constant(vector[:1], dtype), tf.constant(vector[1:], dtype)


def _join(weights):
  return np.concatenate([w.numpy() for w in weights])


def _diagonal(vector, dtype=tf.float64):
  return functools.partial(_multiply, _split(vector, dtype))


def _multiply(first, second):
  return tuple(a * b for a, b in zip(first, second, strict=True))


def _adam_visits(dtype=tf.float64, **options):
  visits = []
  options = dict(num_steps=2000, check_every=100, root='outside') | options
  result = quadratic.adam_as_coded(
    _diagonal(_H, dtype),
    _split(_R, dtype),
    _split(_START, dtype),
    learning_rate=0.01,
    visit=lambda step, weights: visits.append((step, _join(weights))),
    **options,
  )
  np.testing.assert_array_equal(_join(result), visits[-1][1])
  return dict(visits)


def test_vector_v7_adam_as_coded():
  found = _adam_visits(check_every=1, num_steps=100)
  # First step: g = (0.375, 1.5), 0.01 * 0.375 / 0.385 = 0.0097402597.
  for step, expected in (
    (1, (2.4902597403, -1.5099337748, 3.5)),
    (2, (2.4770570925, -1.5233314553, 3.5)),
    (100, (2.2005783614, -1.9976511625, 3.5)),
  ):
    np.testing.assert_allclose(found[step], expected, atol=5e-11)
  # So do float32 weights.
  found = _adam_visits(tf.float32)
  np.testing.assert_allclose(found[1], (2.4902597, -1.5099338, 3.5), atol=3e-7)
  np.testing.assert_allclose(found[2000], _SOLUTION, atol=1e-6)


def test_adam_as_coded_is_adam_without_bias_correction():
  w, m, v = _START, 0.0, 0.0
  found = _adam_visits(check_every=1, num_steps=50)
  for step in range(1, 51):
    g = _H * w - _R
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    w = w - 0.01 * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(found[step], w, atol=1e-14)


def test_adam_as_coded_with_the_root_inside():
  w, m, v = _START, 0.0, 0.0
  found = _adam_visits(check_every=1, num_steps=50, root='inside')
  # First step: 0.01 * 0.375 / sqrt(0.140625 + 0.01) = 0.0096623506.
  np.testing.assert_allclose(found[1][0], 2.5 - 0.0096623506, atol=1e-10)
  for step in range(1, 51):
    g = _H * w - _R
    m, v = g + 0.9 * m, g**2 + 0.99 * v
    w = w - 0.01 * m / np.sqrt(v + 0.01)
    np.testing.assert_allclose(found[step], w, atol=1e-14)


@pytest.mark.parametrize(
  ('num_steps', 'check_every', 'visited'),
  [
    (1, 100, [1]),
    (2, 100, [1, 2]),
    (7, 3, [1, 4, 7]),
    (8, 3, [1, 4, 7, 8]),
    (3, 1, [1, 2, 3]),
  ],
)
def test_visits(num_steps, check_every, visited):
  found = _adam_visits(num_steps=num_steps, check_every=check_every)
  assert list(found) == visited
  # When they are visited does not change the weights.
  np.testing.assert_array_equal(
    found[num_steps],
    _adam_visits(num_steps=num_steps, check_every=1)[num_steps],
  )


def test_adam_takes_its_steps_in_a_graph():
  calls = []

  def apply(vectors):
    calls.append(tf.inside_function())
    return _diagonal(_H)(vectors)

  quadratic.adam_as_coded(
    apply,
    _split(_R),
    _split(_START),
    root='outside',
    num_steps=500,
    learning_rate=0.01,
    check_every=100,
    visit=lambda *_: None,
  )
  assert calls and all(calls) and len(calls) < 5


def test_conjugate_gradient_solves_v7():
  found, residual = quadratic.conjugate_gradient(
    _diagonal(_H), _split(_R), _split(_START), max_steps=2, tolerance=0.0
  )
  # Two distinct eigenvalues: two steps.
  np.testing.assert_allclose(_join(found), _SOLUTION, atol=1e-13)
  assert residual < 1e-13


def test_closed_form_solves_v7():
  found = quadratic.closed_form(
    *(_split(v, tf.float32) for v in (_H, _R, _START))
  )
  np.testing.assert_allclose(_join(found), _SOLUTION, rtol=1e-6)
  assert found[0].dtype == tf.float32


def test_limit_of_gradient_descent():
  # Steps of 1 / 3 = 1 / lambda_max: 2.5 - 0.375 / 3 = 2.375 and so on.
  w = _START
  expected = [(2.375, -2), (2.3020833333, -2), (2.2595486111, -2)]
  for first in expected:
    w = w - (_H * w - _R) / 3
    np.testing.assert_allclose(w, (*first, 3.5), atol=1e-10)
  for _ in range(200):
    w = w - (_H * w - _R) / 3
  for solution in (
    _join(quadratic.closed_form(_split(_H), _split(_R), _split(_START))),
    _join(_conjugate_gradient(_diagonal(_H), _R)),
    _adam_visits()[2000],
  ):
    np.testing.assert_allclose(solution, w, atol=1e-9)


def _conjugate_gradient(apply, r, start=_START):
  return quadratic.conjugate_gradient(
    apply, _split(r), _split(start), max_steps=20, tolerance=1e-12
  )[0]


def _kronecker(p, inputs, outputs, kernels, dtype=tf.float32):
  """Returns apply, r, w_bar as one-tensor tuples: sum p A W G."""
  terms = [
    tuple(tf.constant(part, dtype) for part in parts)
    for parts in zip(p, inputs, outputs, kernels, strict=True)
  ]

  def apply(vectors):
    return (tf.add_n([q * (a @ vectors[0] @ g) for q, a, g, _ in terms]),)

  r = tf.add_n([q * (a @ w @ g) for q, a, g, w in terms])
  start = tf.add_n([q * w for q, _, _, w in terms])
  return apply, (r,), (start,)


# One layer, two inputs and one output, p = (1/2, 1/2), W = (1, 5) and (0, 2).
_V7B_KERNELS = [[[1.0], [5.0]], [[0.0], [2.0]]]
_V7B_OUTPUTS = [[[1.0]], [[2.0]]]
_V7B_FIRST = [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
  ('second', 'expected'),
  [
    # H = (A_1 + 2 A_2) / 2 = (1.5, .5; .5, 1), r = (1.5, 2).
    ([[1.0, 0.5], [0.5, 1.0]], (0.4, 1.8)),
    # H = diag(2.5, 0), r = (0.5, 0): the second input stays at w_bar = 3.5.
    ([[2.0, 0.0], [0.0, 0.0]], (0.2, 3.5)),
  ],
)
@pytest.mark.parametrize('solver', ['adam', 'conjugate_gradient', 'descent'])
def test_vector_v7b(solver, second, expected):
  problem = _kronecker(
    (0.5, 0.5), [_V7B_FIRST, second], _V7B_OUTPUTS, _V7B_KERNELS
  )
  if solver == 'adam':
    found = quadratic.adam_as_coded(
      *problem,
      root='inside',
      num_steps=2000,
      learning_rate=0.01,
      check_every=2000,
      visit=lambda *_: None,
    )
  elif solver == 'conjugate_gradient':
    found, residual = quadratic.conjugate_gradient(
      *problem, max_steps=10, tolerance=1e-6
    )
    assert residual <= 1e-6
  else:
    apply, (r,), found = problem
    for _ in range(300):
      found = (found[0] - (apply(found)[0] - r) / 2.5,)
  np.testing.assert_allclose(found[0][:, 0], expected, atol=1e-3)


def _singular_problem(seed):
  """Returns a float32 problem without its exact solution, and that solution.

  Three clients whose A and G have low rank, in directions of no axis.
  """
  rng = np.random.default_rng(seed)
  num_inputs, num_outputs = 60, 20

  def factor(size, rank):
    basis = np.linalg.qr(rng.normal(size=[size, size]))[0][:, :rank]
    scales = 10.0 ** -(np.arange(rank) / rank)
    return lambda: _second_moment(
      rng.normal(size=[200, rank]) * scales @ basis.T
    )

  inputs, outputs = factor(num_inputs, 24), factor(num_outputs, 12)
  p = np.array([0.2, 0.3, 0.5], np.float32)
  shared = rng.normal(size=[num_inputs, num_outputs])
  parts = [[], [], []]
  for _ in p:
    local = shared + 0.3 * rng.normal(size=shared.shape)
    for part, value in zip(parts, (inputs(), outputs(), local), strict=True):
      part.append(value.astype(np.float32))
  # In float64, from the same float32 numbers.
  a, g, w = (np.asarray(part, np.float64) for part in parts)
  hessian = sum(map(np.kron, p[:, None, None] * a, g))
  start = np.einsum('k,kij->ij', p, w)
  difference = np.einsum('k,kab,kbc,kcd->ad', p, a, w - start, g).ravel()
  # Eigenvalues of range(H) and rounding are orders of magnitude apart.
  values, vectors = np.linalg.eigh(hessian)
  large = values > 1e-6 * values[-1]
  assert np.count_nonzero(large) == 24 * 12
  values, vectors = values[large], vectors[:, large]
  step = vectors @ ((vectors.T @ difference) / values)
  return _kronecker(p, *parts), start + step.reshape(start.shape)


def _second_moment(rows):
  return rows.T @ rows / len(rows)


@pytest.mark.parametrize('seed', range(3))
def test_conjugate_gradient_does_not_drift_on_a_singular_h(seed):
  problem, expected = _singular_problem(seed)
  start = problem[2][0].numpy()
  # Far more steps than it takes, and no tolerance that would end them.
  (found,), residual = quadratic.conjugate_gradient(
    *problem, max_steps=3000, tolerance=0.0
  )
  distance = np.linalg.norm(expected - start)
  assert np.linalg.norm(found - expected) < 0.02 * distance
  assert residual < 1e-4


def test_conjugate_gradient_ends_at_the_rounding_of_r():
  # The second entry of r is rounding, which 1e-9 would blow up to 30.
  found, _ = quadratic.conjugate_gradient(
    _diagonal([1.0, 1e-9], tf.float32),
    _split([1.0, 3e-8], tf.float32),
    _split([0.0, 0.0], tf.float32),
    max_steps=50,
    tolerance=0.0,
  )
  np.testing.assert_allclose(_join(found), (1.0, 0.0), atol=1e-6)


def test_conjugate_gradient_ends_where_h_hardly_sees_the_residual():
  # A step would be of length e.He / He.He = 1, and move the second entry by 1.
  found, residual = quadratic.conjugate_gradient(
    _diagonal([1.0, 0.0], tf.float32),
    _split([1e-4, 1.0], tf.float32),
    _split([0.0, 0.0], tf.float32),
    max_steps=50,
    tolerance=0.0,
  )
  np.testing.assert_array_equal(_join(found), (0.0, 0.0))
  assert residual == 1.0


def test_conjugate_gradient_stops_at_the_tolerance():
  problem, _ = _singular_problem(0)
  residuals = [
    quadratic.conjugate_gradient(*problem, max_steps=300, tolerance=t)[1]
    for t in (0.9, 0.1, 0.01)
  ]
  for residual, tolerance in zip(residuals, (0.9, 0.1, 0.01), strict=True):
    assert 0.1 * tolerance < residual <= 1.001 * tolerance


def test_residual_is_relative_to_that_of_the_start():
  # One step: H = (1.25, 3), residual e = (-0.375, -1.5), its product
  # H e = (-0.46875, -4.5); length e.He / He.He = 6.92578125 / 20.4697265625.
  _, residual = quadratic.conjugate_gradient(
    _diagonal(_H), _split(_R), _split(_START), max_steps=1, tolerance=0.0
  )
  length = 6.92578125 / 20.4697265625
  after = (0.375 - 0.46875 * length, 1.5 - 4.5 * length)
  expected = np.linalg.norm(after) / np.linalg.norm((0.375, 1.5))
  np.testing.assert_allclose(residual, expected, rtol=1e-12)
  _, residual = quadratic.conjugate_gradient(
    _diagonal(_H), _split(_R), _split(_START), max_steps=0, tolerance=0.0
  )
  assert residual == 1.0


def test_a_start_that_is_a_minimiser_stays():
  found, residual = quadratic.conjugate_gradient(
    _diagonal(_H),
    _split(_H * _START),
    _split(_START),
    max_steps=5,
    tolerance=0.0,
  )
  np.testing.assert_array_equal(_join(found), _START)
  assert residual == 0.0


@pytest.mark.parametrize('factor', [-1.0, float('nan')])
def test_stops_where_the_curvature_is_not_positive(factor):
  found, _ = quadratic.conjugate_gradient(
    _diagonal(factor * _H), _split(_R), _split(_START), max_steps=5, tolerance=0
  )
  np.testing.assert_array_equal(_join(found), _START)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'root': 'below'}, '`root` must be one of outside, inside, found'),
    ({'num_steps': 0}, '`num_steps` must be at least 1, found 0'),
    ({'check_every': 0}, '`check_every` must be at least 1, found 0'),
  ],
)
def test_arguments_of_adam_are_checked(changes, words):
  with pytest.raises(ValueError, match=words):
    _adam_visits(**changes)


@pytest.mark.parametrize('name', ['max_steps', 'tolerance'])
def test_arguments_of_conjugate_gradient_are_checked(name):
  with pytest.raises(
    ValueError, match=f'`{name}` must be at least 0, found -1'
  ):
    quadratic.conjugate_gradient(
      _diagonal(_H),
      _split(_R),
      _split(_START),
      **(dict(max_steps=1, tolerance=0) | {name: -1}),
    )
