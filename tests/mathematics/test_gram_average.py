"""RegMean's average of a dense layer."""

import numpy as np
import pytest

from tff_fedfish.methods.one_shot import gram_average

# Two rows a client: X_1 = (1, 0; 1, 1), X_2 = (0, 2; 1, -1).
_INPUTS = np.array([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [1.0, -1.0]]])
_KERNELS = np.array([[[1.0], [2.0]], [[3.0], [-1.0]]])
_HALVES = (0.5, 0.5)


def _gram(inputs):
  return inputs.T @ inputs / len(inputs)


def _average(shrinkage, inputs=_INPUTS, kernels=_KERNELS, shares=_HALVES):
  sums = None
  for rows, kernel, share in zip(inputs, kernels, shares, strict=True):
    sums = gram_average.add_client(sums, _gram(rows), kernel, share)
  return gram_average.solve(sums, shrinkage)


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
  np.testing.assert_allclose(_average(shrinkage)[:, 0], expected, atol=1e-10)


def test_joint_least_squares():
  rng = np.random.default_rng(4)
  num_rows = (7, 12, 5)
  inputs = [rng.normal(size=[n, 4]) for n in num_rows]
  kernels = rng.normal(size=[3, 4, 2])
  # Shares by examples: the mean over all rows.
  shares = np.array(num_rows) / sum(num_rows)
  outputs = np.concatenate(
    [x @ w for x, w in zip(inputs, kernels, strict=True)]
  )
  expected = np.linalg.lstsq(np.concatenate(inputs), outputs, rcond=None)[0]
  found = _average(1, inputs, kernels, shares)
  np.testing.assert_allclose(found, expected, atol=1e-12)
  assert not np.allclose(_average(1, inputs, kernels, [1 / 3] * 3), expected)


def test_equal_inputs_give_the_weighted_mean():
  inputs = np.stack([_INPUTS[0]] * 2)
  for shrinkage in (0.1, 0.9, 1):
    np.testing.assert_allclose(
      _average(shrinkage, inputs, shares=(0.25, 0.75))[:, 0],
      # (1 + 9) / 4, (2 - 3) / 4
      (2.5, -0.25),
      atol=1e-12,
    )


def test_one_client_returns_it():
  found = _average(0.9, _INPUTS[1:], _KERNELS[1:], (1.0,))
  np.testing.assert_allclose(found, _KERNELS[1], atol=1e-12)


@pytest.mark.parametrize('shrinkage', [0.9, 1])
def test_an_input_that_is_always_0(shrinkage):
  inputs = np.insert(_INPUTS, 1, 0.0, axis=2)
  kernels = np.insert(_KERNELS, 1, 7.0, axis=1)
  found = _average(shrinkage, inputs, kernels)[:, 0]
  expected = np.insert(_average(shrinkage)[:, 0], 1, 0.0)
  np.testing.assert_allclose(found, expected, atol=1e-12)


def test_fewer_rows_than_inputs_in_float32():
  rng = np.random.default_rng(7)
  inputs = rng.normal(size=[2, 9, 40]).astype(np.float32)
  kernels = rng.normal(size=[2, 40, 3]).astype(np.float32)
  found = _average(1, inputs, kernels)
  outputs = np.concatenate(
    [x @ w for x, w in zip(inputs, kernels, strict=True)]
  )
  expected = np.linalg.lstsq(inputs.reshape([18, 40]), outputs, rcond=None)[0]
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_rare_inputs_are_kept():
  # With shrinkage an input counts, however small beside others.
  scales = np.array([1e3, 1.0, 1e-2])
  inputs = np.random.default_rng(1).normal(size=[2, 50, 3]) * scales
  kernel = np.array([[1.0], [-2.0], [3.0]])
  found = _average(0.9, inputs, np.stack([kernel] * 2))
  np.testing.assert_allclose(found, kernel, rtol=1e-6)


@pytest.mark.parametrize('shrinkage', [-0.1, 1.5])
def test_shrinkage_is_checked(shrinkage):
  words = rf'`shrinkage` must be in \[0, 1\], found {shrinkage}'
  with pytest.raises(ValueError, match=words):
    _average(shrinkage)


def test_gram_matrices_are_checked():
  words = r'`gram` must be of shape \(2, 2\), found \(3, 3\)'
  with pytest.raises(ValueError, match=words):
    gram_average.add_client(None, np.eye(3), np.ones([2, 1]), 1.0)
