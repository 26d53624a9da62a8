"""Products with a K-FAC summary against whole matrices; its sizes."""

import math

import numpy as np
import small_models

from models.image_model_config import ImageModelConfig
from models.layers import layers_of, matrix_of
from tff_fedfish.methods.one_shot import curvature
from tff_fedfish.methods.one_shot.curvature_shapes import summary_specs


def _dense_product(layer, summary, matrix):
  """Returns F v of one layer by its whole Fisher matrix, float64."""
  if layer.kind == 'scale':
    whole = np.diag(summary[f'diagonal/{layer.name}'].ravel()).astype(float)
  else:
    of_inputs = summary[f'inputs/{layer.name}'].astype(float)
    whole = np.kron(of_inputs, summary[f'gradients/{layer.name}'])
  return (whole @ matrix.ravel()).reshape(matrix.shape)


def test_product_is_that_with_the_whole_matrices():
  shape = small_models.SHAPES['resnet18']
  random = np.random.RandomState(0)
  named = {
    name: random.normal(size=sizes)
    for name, sizes in shape.weight_shapes().items()
  }
  kinds = set()
  for layer in layers_of(shape):
    matrix = matrix_of(layer, named)
    if matrix.size > 4_000:
      # The whole matrix would be too large.
      continue
    kinds.add(layer.kind)
    summary = {}
    for key, sizes in summary_specs([layer]).items():
      values = random.normal(size=sizes).astype(np.float32)
      # Factors are symmetric.
      is_factor = not key.startswith('diagonal/')
      summary[key] = values + values.T if is_factor else values
    # In the type of v; with two clients.
    own = {
      key: np.stack([values, 2 * values]) for key, values in summary.items()
    }
    product = curvature.layer_product(layer, own, matrix)
    factor = 3 if layer.kind == 'scale' else 5
    expected = factor * _dense_product(layer, summary, matrix)
    np.testing.assert_allclose(product, expected, rtol=1e-9, atol=1e-9)
  assert kinds == {'scale', 'convolution', 'matrix'}


def test_sizes_by_hand():
  # A and G of each layer, (25^2 + 6^2) + (150^2 + 16^2) + (256^2 + 120^2) +
  # (120^2 + 84^2) + (84^2 + 10^2) = 131,965, in FedFisher's appendix.
  for name, image_shape, size in (
    ('lenet', (28, 28, 1), 131_965),
    ('fed_net_cnn', (32, 32, 3), 3_767_901),
  ):
    shape = ImageModelConfig(name=name, num_classes=10, image_shape=image_shape)
    specs = summary_specs(layers_of(shape))
    assert sum(map(math.prod, specs.values())) == size
