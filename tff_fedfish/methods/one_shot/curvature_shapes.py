"""Names and shapes of a client's K-FAC summary; no TensorFlow.

  name               of kinds              shape
  inputs/LAYER       matrix, convolution   A, [rows of V, rows of V]
  gradients/LAYER    matrix, convolution   G, [columns of V, the same]
  diagonal/LAYER     scale                 shape of V

V is `models.layers.matrix_of`.
"""

from collections.abc import Sequence

from models.layers import Layer


def has_factors(layer: Layer) -> bool:
  """Says whether a layer has Kronecker factors, or an exact diagonal."""
  return layer.kind != 'scale'


def inputs_name(layer: Layer) -> str:
  """Returns the name of a layer's A."""
  return f'inputs/{layer.name}'


def gradients_name(layer: Layer) -> str:
  """Returns the name of a layer's G."""
  return f'gradients/{layer.name}'


def diagonal_name(layer: Layer) -> str:
  """Returns the name of a layer's exact diagonal."""
  return f'diagonal/{layer.name}'


def summary_specs(layers: Sequence[Layer]) -> dict[str, tuple[int, ...]]:
  """Returns name and shape of every tensor of a summary, all float32.

  Args:
    layers: Of a model, or those whose tensors are needed.
  """
  specs = {}
  for layer in layers:
    rows, columns = layer.num_rows, layer.fan_out
    if has_factors(layer):
      specs[inputs_name(layer)] = (rows, rows)
      specs[gradients_name(layer)] = (columns, columns)
    else:
      specs[diagonal_name(layer)] = (rows, columns)
  return specs
