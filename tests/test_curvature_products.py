"""Products with a K-FAC summary against whole matrices; its sizes."""

import math

import numpy as np
import pytest
import small_models

from models.image_model_config import ImageModelConfig
from models.layers import layer_groups, layers_of, matrix_of
from models.model_shapes import num_parameters, weight_shapes
from models.transformer_config import PRESETS, TransformerConfig
from tff_fedfish import curvature
from tff_fedfish.curvature_shapes import summary_specs


def _dense_product(layer, summary, matrix):
  """Returns F v of one layer by its whole Fisher matrix, float64."""
  if layer.kind in ('scale', 'positions'):
    whole = np.diag(summary[f'diagonal/{layer.name}'].ravel()).astype(float)
  else:
    factors = summary[f'inputs/{layer.tap}'], summary[f'gradients/{layer.name}']
    whole = np.kron(
      *((np.diag(f) if f.ndim == 1 else f).astype(float) for f in factors)
    )
  return (whole @ matrix.ravel()).reshape(matrix.shape)


@pytest.mark.parametrize('name', ['learned', 'emnist_cnn'])
def test_product_is_that_with_the_whole_matrices(name):
  spec = small_models.build(small_models.SHAPES[name])
  layers = spec.layers
  random = np.random.RandomState(0)
  summary = {}
  for key, sizes in summary_specs(layers).items():
    values = random.normal(size=sizes).astype(np.float32)
    # Factors are symmetric.
    is_factor = not key.startswith('diagonal/') and len(sizes) == 2
    summary[key] = values + values.T if is_factor else values
  vector, _ = small_models.random_weights(spec, seed=4)
  names = weight_shapes(small_models.SHAPES[name])
  named = {n: v.numpy() for n, v in zip(names, vector, strict=True)}

  num_compared = 0
  for group in layer_groups(layers):
    first, *others = group
    matrix = matrix_of(first, named)
    if matrix.size > 4_000:
      # The whole matrix would be too large.
      continue
    num_compared += 1
    expected = _dense_product(first, summary, matrix)
    for layer in others:
      expected += _dense_product(layer, summary, matrix.T).T
    # From the group's own tensors, in the type of v; with two clients.
    own = {
      key: np.stack([summary[key], 2 * summary[key]])
      for key in summary_specs(group)
    }
    product = curvature.group_product(group, own, matrix.astype(float))
    factor = 3 if first.kind in ('scale', 'positions') else 5
    np.testing.assert_allclose(product, factor * expected, rtol=1e-9, atol=1e-9)
  assert num_compared >= 2


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
  shape = TransformerConfig(**PRESETS['350m'], sequence_length=1_024)
  specs = summary_specs(layers_of(shape))
  ratio = sum(map(math.prod, specs.values())) / num_parameters(shape)
  assert round(ratio, 2) == 3.01
