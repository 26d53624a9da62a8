"""RegMean by hand, against least squares, and over whole models."""

import numpy as np
import pytest
from uploaded_models import ListedUploads, random_weights, solve

from models.image_model_config import ImageModelConfig
from models.layers import layers_of
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot.reg_mean import RegMean

# Convolutions with biases, then dense layers of 64 x 128 and 128 x 5.
_CNN = ImageModelConfig(name='emnist_cnn', num_classes=5, image_shape=(6, 7, 1))


def _linear(num_inputs, num_outputs):
  return ImageModelConfig(
    name='linear', num_classes=num_outputs, image_shape=(num_inputs, 1, 1)
  )


def _linear_uploads(inputs, kernels, num_examples, biases=None):
  shape = _linear(*np.shape(kernels[0]))
  biases = (
    np.zeros([len(kernels), shape.num_classes]) if biases is None else biases
  )
  grams = [np.float32(np.transpose(x) @ x / len(x)) for x in inputs]
  return shape, ListedUploads(
    shape,
    'gram',
    num_examples,
    [*zip(kernels, biases, strict=True)],
    [[gram] for gram in grams],
  )


def _kernel(problem, shrinkage):
  shape, uploads = problem
  return solve(uploads, shape, RegMean, shrinkage=shrinkage).weights[0]


# Two rows a client: X_1 = (1, 0; 1, 1), X_2 = (0, 2; 1, -1).
_INPUTS = np.array([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [1.0, -1.0]]])
_KERNELS = np.array([[[1.0], [2.0]], [[3.0], [-1.0]]])


@pytest.mark.parametrize(
  ('shrinkage', 'expected'),
  [
    # G_1 = (1, .5; .5, .5), G_2 = (.5, -.5; -.5, 2.5). Sum (1.5, 0; 0, 3),
    # right side (2, 1.5) + (2, -4) = (4, -2.5): (8/3, -5/6).
    (1, (2.6666666667, -0.8333333333)),
    # Off-diagonals by 0.9: (1.9, 1.45) + (1.95, -3.85) = (3.85, -2.4).
    (0.9, (2.5666666667, -0.8)),
    (0.1, (1.7666666667, -0.5333333333)),
    # The diagonals only: (1 + 1.5, 1 - 2.5) over (1.5, 3).
    (0, (2.5 / 1.5, -0.5)),
  ],
)
def test_vector_v10(shrinkage, expected):
  found = _kernel(_linear_uploads(_INPUTS, _KERNELS, (1, 1)), shrinkage)
  np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_joint_least_squares_and_uniform_biases():
  # Fewer rows than inputs, in float32; shares by examples.
  random = np.random.default_rng(7)
  num_rows = (9, 5)
  inputs = [random.normal(size=[n, 40]) for n in num_rows]
  kernels = random.normal(size=[2, 40, 3]).astype(np.float32)
  biases = np.array([[1.0, 2.0, -1.0], [3.0, -4.0, 0.0]])
  shape, uploads = _linear_uploads(inputs, kernels, num_rows, biases)
  kernel, bias = solve(uploads, shape, RegMean, shrinkage=1).weights
  outputs = [x @ w for x, w in zip(inputs, kernels, strict=True)]
  expected = np.linalg.lstsq(
    np.concatenate(inputs), np.concatenate(outputs), rcond=None
  )[0]
  np.testing.assert_allclose(kernel, expected, atol=1e-4)
  # Though the first client has more rows.
  np.testing.assert_allclose(bias, (2.0, -1.0, -0.5))


@pytest.mark.parametrize('shrinkage', [0.9, 1])
def test_an_input_that_is_always_0(shrinkage):
  without = _kernel(_linear_uploads(_INPUTS, _KERNELS, (1, 1)), shrinkage)
  inputs = np.insert(_INPUTS, 1, 0.0, axis=2)
  kernels = np.insert(_KERNELS, 1, 7.0, axis=1)
  found = _kernel(_linear_uploads(inputs, kernels, (1, 1)), shrinkage)
  np.testing.assert_allclose(found[:, 0], [without[0, 0], 0, without[1, 0]])


def test_rare_inputs_are_kept():
  # With shrinkage an input counts, however small beside others.
  scales = np.array([1e3, 1.0, 1e-2])
  inputs = np.random.default_rng(1).normal(size=[2, 50, 3]) * scales
  kernel = np.array([[1.0], [-2.0], [3.0]])
  found = _kernel(_linear_uploads(inputs, [kernel] * 2, (1, 1)), 0.9)
  np.testing.assert_allclose(found, kernel, rtol=1e-5)


def test_only_dense_kernels_are_weighted_by_gram_matrices():
  random = np.random.default_rng(0)
  models = [random_weights(_CNN, i) for i in range(3)]
  dense = [x for x in layers_of(_CNN) if x.kind == 'matrix']
  grams = []
  for _ in models:
    rows = [random.normal(size=[40, x.fan_in]) + 0.5 for x in dense]
    grams.append([np.float32(r.T @ r / 40) for r in rows])
  uploads = ListedUploads(
    _CNN, 'gram', (10, 30, 5), [m.values() for m in models], grams
  )
  found = uploads.by_name(solve(uploads, _CNN, RegMean, shrinkage=0.3).weights)
  assert uploads.num_read == 3
  expected = {
    name: np.mean([m[name] for m in models], axis=0)
    for name in weight_shapes(_CNN)
  }
  for i, layer in enumerate(dense):
    shrunk = [
      p * (0.3 * g[i] + 0.7 * np.diag(np.diag(g[i])))
      for p, g in zip(uploads.shares, grams, strict=True)
    ]
    products = (
      g @ m[layer.kernel] for g, m in zip(shrunk, models, strict=True)
    )
    expected[layer.kernel] = np.linalg.solve(sum(shrunk), sum(products))
  for name, tensor in expected.items():
    assert found[name].dtype == np.float32
    np.testing.assert_allclose(found[name], tensor, atol=1e-4, err_msg=name)


def test_shrinkage_is_chosen_by_the_score():
  problem = _linear_uploads(_INPUTS, _KERNELS, (1, 1))
  shape, uploads = problem
  for better in (0.1, 0.9):
    wanted = _kernel(problem, better)
    found = solve(
      uploads,
      shape,
      RegMean,
      score=lambda w, best=wanted: float(np.array_equal(w[0], best)),
    )
    np.testing.assert_array_equal(found.weights[0], wanted)
  # A tie, or no score: the authors' default.
  for score in (lambda weights: 0.5, None):
    found = solve(uploads, shape, RegMean, score=score)
    np.testing.assert_array_equal(found.weights[0], _kernel(problem, 0.9))
