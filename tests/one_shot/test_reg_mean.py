"""RegMean over whole models."""

import types

import numpy as np
import pytest
from uploaded_models import ListedUploads

from models.image_model_config import ImageModelConfig
from models.layers import layers_of, matrix_of
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot import gram_average
from tff_fedfish.methods.one_shot import reg_mean_solve as reg_mean
from tff_fedfish.methods.one_shot.solving import SolveContext, Upload

_LINEAR = ImageModelConfig(name='linear', num_classes=3, image_shape=(2, 2, 1))
# Convolutions with biases, then dense layers of 64 x 128 and 128 x 5.
_CNN = ImageModelConfig(name='emnist_cnn', num_classes=5, image_shape=(6, 7, 1))


def _solve(uploads, shape, shrinkage=0.9, score=None):
  settings = types.SimpleNamespace(shrinkage=shrinkage)
  context = SolveContext(settings, shape, score, 0)
  return reg_mean.solve(uploads, uploads.start, context).weights


def _matrices(shape):
  return [layer for layer in layers_of(shape) if layer.kind == 'matrix']


def _uploads(shape, num_examples=(10, 30, 5), seed=0):
  rng = np.random.default_rng(seed)

  def weights():
    return tuple(
      rng.normal(size=s).astype(np.float32)
      for s in weight_shapes(shape).values()
    )

  def summary():
    rows = [
      (x, rng.normal(size=[40, x.fan_in]) + 0.5) for x in _matrices(shape)
    ]
    return {
      f'gram/{x.name}': (r.T @ r / 40).astype(np.float32) for x, r in rows
    }

  return ListedUploads(
    map(
      Upload,
      num_examples,
      [weights() for _ in num_examples],
      [summary() for _ in num_examples],
    )
  )


def _named(shape, weights):
  return dict(zip(weight_shapes(shape), weights, strict=True))


@pytest.mark.parametrize('shape', [_LINEAR, _CNN])
def test_dense_kernels_are_gram_averages_and_all_else_uniform_means(shape):
  uploads = _uploads(shape)
  found = _named(shape, _solve(uploads, shape, shrinkage=0.3))
  assert uploads.num_read == 3
  clients = [_named(shape, u.weights) for u in uploads]
  expected = {
    name: np.mean([client[name] for client in clients], axis=0)
    for name in weight_shapes(shape)
  }
  for layer in _matrices(shape):
    sums = None
    for upload, client, share in zip(
      list.__iter__(uploads), clients, uploads.shares, strict=True
    ):
      sums = gram_average.add_client(
        sums,
        upload.summary[f'gram/{layer.name}'],
        matrix_of(layer, client)[: layer.fan_in],
        share,
      )
    expected[layer.kernel] = gram_average.solve(sums, 0.3)
  for name, tensor in expected.items():
    assert found[name].dtype == np.float32
    np.testing.assert_allclose(found[name], tensor, atol=1e-5, err_msg=name)


def test_joint_least_squares_of_a_linear_model():
  rng = np.random.default_rng(2)
  num_rows = (9, 6)
  inputs = [rng.normal(size=[n, 4]) for n in num_rows]
  kernels = [rng.normal(size=[4, 3]) for _ in num_rows]
  biases = np.array([[1.0, 2.0, -1.0], [3.0, -4.0, 0.0]], np.float32)
  uploads = ListedUploads(
    map(
      Upload,
      num_rows,
      [(w.astype(np.float32), b) for w, b in zip(kernels, biases, strict=True)],
      [{'gram/head': (x.T @ x / len(x)).astype(np.float32)} for x in inputs],
    )
  )
  kernel, bias = _solve(uploads, _LINEAR, shrinkage=1)
  outputs = [x @ w for x, w in zip(inputs, kernels, strict=True)]
  expected = np.linalg.lstsq(
    np.concatenate(inputs), np.concatenate(outputs), rcond=None
  )[0]
  np.testing.assert_allclose(kernel, expected, atol=1e-5)
  # Uniform, though the first client has more rows.
  np.testing.assert_allclose(bias, (2.0, -1.0, -0.5))


def test_one_client_returns_it():
  uploads = _uploads(_CNN, num_examples=(4,))
  for found, w in zip(_solve(uploads, _CNN), uploads[0].weights, strict=True):
    np.testing.assert_allclose(found, w, atol=1e-4)


@pytest.mark.parametrize('better', [0.1, 0.9])
def test_shrinkage_by_validation(better):
  uploads = _uploads(_LINEAR)
  expected = {a: _solve(uploads, _LINEAR, shrinkage=a) for a in (0.1, 0.9)}
  scored = []

  def score(weights):
    scored.append(weights)
    return float(np.array_equal(weights[0], expected[better][0]))

  found = _solve(uploads, _LINEAR, shrinkage=None, score=score)
  np.testing.assert_array_equal(found[0], expected[better][0])
  assert len(scored) == 2 and uploads.num_read == 3 * 3
  assert not np.allclose(expected[0.1][0], expected[0.9][0])


def test_a_tie_goes_to_the_authors_default():
  uploads = _uploads(_LINEAR)
  found = _solve(uploads, _LINEAR, shrinkage=None, score=lambda weights: 0.5)
  expected = _solve(uploads, _LINEAR, shrinkage=0.9)
  np.testing.assert_array_equal(found[0], expected[0])


def test_without_a_score_it_is_the_authors_default():
  uploads = _uploads(_LINEAR)
  found = _solve(uploads, _LINEAR, shrinkage=None)
  expected = _solve(uploads, _LINEAR, shrinkage=0.9)
  np.testing.assert_array_equal(found[0], expected[0])


def test_a_missing_gram_matrix_is_named():
  uploads = _uploads(_LINEAR)
  del uploads[1].summary['gram/head']
  with pytest.raises(KeyError, match='gram/head'):
    _solve(uploads, _LINEAR)
