"""FisherMerge by hand, and what it reduces to."""

import numpy as np
import pytest
import small_image_runs
from one_shot_runs import SETTINGS, weights
from uploaded_models import ListedUploads, random_weights, solve

from models.image_model_config import ImageModelConfig
from tff_fedfish.methods.one_shot.fisher_merge import FisherMerge

_SHAPE = ImageModelConfig(name='linear', num_classes=1, image_shape=(3, 1, 1))


def _two_clients():
  # V7 with a second tensor: p = (1/4, 3/4).
  #   client  weights         fisher
  #     1     (1, 0, 2), (4)  (2, 0, 0), (1)
  #     2     (3, -2, 4), (8) (1, 4, 0), (3)
  def tensors(kernel, bias):
    return np.float32(kernel)[:, None], np.float32([bias])

  return ListedUploads(
    _SHAPE,
    'diagonal',
    (10, 30),
    [tensors([1, 0, 2], 4), tensors([3, -2, 4], 8)],
    [tensors([2, 0, 0], 1), tensors([1, 4, 0], 3)],
  )


@pytest.mark.parametrize(
  ('floor', 'expected'),
  [
    # (2/4 + 9/4) / (2/4 + 3/4); -6 / 3; no mass: 2/4 + 12/4.
    # (4/4 + 72/4) / (1/4 + 9/4) = 19 / 2.5
    (1e-6, (2.2, -2, 3.5, 7.6)),
    (0.0, (2.2, -2, 3.5, 7.6)),
    # Masses 1.25, 3, 0 and 2.5: one that equals the floor counts.
    (1.25, (2.2, -2, 3.5, 7.6)),
    # The first keeps w_bar = 1/4 + 9/4, too.
    (1.3, (2.5, -2, 3.5, 7.6)),
  ],
)
def test_by_hand(floor, expected):
  uploads = _two_clients()
  kernel, bias = solve(uploads, _SHAPE, FisherMerge, fisher_floor=floor).weights
  assert kernel.dtype == bias.dtype == np.float32
  np.testing.assert_allclose([*kernel[:, 0], *bias], expected, rtol=1e-6)
  assert uploads.num_read == 2


def test_equal_fishers_give_the_average_and_one_client_itself():
  shape = ImageModelConfig(name='lenet', num_classes=4, image_shape=(16, 17, 1))
  models = [random_weights(shape, i).values() for i in range(3)]
  fisher = [np.float32(np.abs(w) + 0.1) for w in models[0]]
  uploads = ListedUploads(shape, 'diagonal', (7, 2, 5), models, [fisher] * 3)
  found = solve(uploads, shape, FisherMerge).weights
  for one, mean in zip(found, uploads.mean(), strict=True):
    np.testing.assert_allclose(one, mean, atol=1e-6)
  alone = ListedUploads(shape, 'diagonal', (3,), models[1:2], [fisher])
  found = solve(alone, shape, FisherMerge).weights
  for one, wanted in zip(found, models[1], strict=True):
    np.testing.assert_allclose(one, wanted, rtol=1e-6)


def test_without_mass_it_is_the_average_before_compression():
  before = (np.float32([[1], [2], [3]]), np.float32([4]))
  settings = dict(fisher_floor=1e30, uncompressed_mean=before)
  found = solve(_two_clients(), _SHAPE, FisherMerge, **settings).weights
  for one, wanted in zip(found, before, strict=True):
    np.testing.assert_array_equal(one, wanted)


@pytest.mark.slow
def test_the_average_of_compressed_runs_is_not_quantized(
  small_images, tmp_path
):
  # With such a floor every coordinate takes the average: that of FedAvg.
  merged, averaged = tmp_path / 'merged', tmp_path / 'averaged'
  for run, settings in (
    (
      merged,
      dict(
        algorithm__name='fisher_merge',
        algorithm__compression='paper',
        algorithm__fisher_floor=1e30,
      ),
    ),
    (averaged, dict(algorithm__name='fed_avg')),
  ):
    settings = SETTINGS | {'model__preset': 'linear'} | settings
    assert small_image_runs.train(small_images, run, **settings) == 0
  for found, wanted in zip(weights(merged), weights(averaged), strict=True):
    np.testing.assert_array_equal(found, wanted)
