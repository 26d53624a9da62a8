"""Names and shapes of a client's K-FAC summary; no TensorFlow.

  name               of kinds                      shape
  inputs/TAP         matrix, convolution           A, [rows of V, rows of V]
                     embedding                     diagonal of A, [vocabulary]
                     head                          A, [width, width]
  gradients/LAYER    matrix, convolution,          G, [columns of V, the same]
                     embedding
                     head                          diagonal of G, [vocabulary]
  diagonal/LAYER     scale, positions              shape of V

V is `models.layers.matrix_of`. Query, key and value share a tap, so one A.
"""

from collections.abc import Sequence

from models.layers import Layer


def has_factors(layer: Layer) -> bool:
  """Says whether a layer has Kronecker factors, or an exact diagonal."""
  return layer.kind not in ('scale', 'positions')


def inputs_name(layer: Layer) -> str:
  """Returns the name of a layer's A."""
  return f'inputs/{layer.tap}'


def gradients_name(layer: Layer) -> str:
  """Returns the name of a layer's G."""
  return f'gradients/{layer.name}'


def diagonal_name(layer: Layer) -> str:
  """Returns the name of a layer's exact diagonal."""
  return f'diagonal/{layer.name}'


def summary_specs(layers: Sequence[Layer]) -> dict[str, tuple[int, ...]]:
  """Returns name and shape of every tensor of a summary, all float32.

  Args:
    layers: Of a model, or one of `models.layers.layer_groups` for the tensors
      that it needs.
  """
  specs = {}
  for layer in layers:
    rows, columns = layer.num_rows, layer.fan_out
    if not has_factors(layer):
      specs[diagonal_name(layer)] = (rows, columns)
      continue
    is_diagonal = layer.kind == 'embedding'
    specs[inputs_name(layer)] = (rows,) if is_diagonal else (rows, rows)
    is_diagonal = layer.kind == 'head'
    specs[gradients_name(layer)] = (columns,) * (1 if is_diagonal else 2)
  return specs
