"""Which weights are matrices."""

from models.image_model_config import ImageModelConfig
from models.model_shapes import are_matrices, weight_shapes
from models.transformer_config import TransformerConfig


def _matrices(shape):
  flags = are_matrices(shape)
  return [
    n for n, flag in zip(weight_shapes(shape), flags, strict=True) if flag
  ]


def test_stacked_biases_and_norms_are_none():
  shape = TransformerConfig(
    num_layers=3, width=4, num_heads=2, vocabulary_size=7, sequence_length=5
  )
  assert _matrices(shape) == [
    'token_embedding',
    'position_embedding',
    'block/attention_input/kernel',
    'block/attention_output/kernel',
    'block/mlp_expand/kernel',
    'block/mlp_contract/kernel',
  ]


def test_kernels_of_convolutions_are():
  shape = ImageModelConfig(
    name='resnet18', num_classes=10, image_shape=(32, 32, 3)
  )
  found = _matrices(shape)
  assert len(found) == 21
  assert all(name.endswith('/kernel') for name in found)
