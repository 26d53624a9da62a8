"""Memory of image models, counted by hand."""

import planned_configs
import pytest

from models.image_model_config import ImageModelConfig
from tff_fedfish.planning import memory, plan

_WEIGHTS = 4 * 1_199_882


def _config(**settings):
  return planned_configs.shipped('mnist_by_writer', **settings)


def test_outputs_of_the_cnn():
  # 26 * 26 * 32 + 24 * 24 * 64 = 21,632 + 36,864 values.
  shape = _config().model_shape()
  assert shape.num_convolved() == 58_496


def test_outputs_of_the_resnet():
  # 4 x 6 pixels, halved, rounded up, at stages 2 to 4: 24, 6, 2, 1.
  # stem 24 * 64 = 1,536; stage 1: 4 * 24 * 64 = 6,144; then 5 outputs each:
  # 5 * 6 * 128 = 3,840, 5 * 2 * 256 = 2,560, 5 * 1 * 512 = 2,560.
  shape = ImageModelConfig(
    name='resnet18', num_classes=2, image_shape=(4, 6, 3)
  )
  num_values = 1_536 + 6_144 + 3_840 + 2_560 + 2_560
  assert shape.num_convolved() == num_values


@pytest.mark.parametrize(
  ('settings', 'num_models'),
  [
    # Weights and gradients of a client, the state, and a sum.
    (dict(algorithm__name='fed_avg', server__optimizer='sgd'), 2 + 1 + 1),
    # Adam's state, of FedFish a sum more, and its squares after training.
    (dict(), 3 + 3 + 2),
    (dict(algorithm__fisher_estimator='example_sq'), 3 + 3 + 2),
    (dict(algorithm__fisher_estimator='last_epoch'), 3 + 3 + 2),
  ],
)
def test_one_process_by_hand(settings, num_models):
  (process,) = memory.of_config(_config(**settings))
  # Four layers with kernels, all images, and four copies of 10 images' outputs.
  fixed = memory.PROCESS_BYTES + 4 * memory.UNROLLED_LAYER_BYTES
  fixed += 70_000 * 28 * 28 + 10 * 16 * 58_496
  assert process.peak_bytes == fixed + num_models * _WEIGHTS
  assert process.largest_parts['images'] == 70_000 * 28 * 28


def test_what_a_round_sends():
  # FedFish: two models up and one down for each of 32 clients.
  found = plan.traffic(_config())
  assert found.round_uplink_bytes == 32 * 2 * _WEIGHTS
  assert found.round_downlink_bytes == 32 * _WEIGHTS
