"""Bytes that the work of one client adds to what a process holds.

An image model's activations are counted as if nothing were freed before the
end of the forward pass.
"""

import math

from models import transformer_config
from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.planning.disk import FEATURE_BYTES

Parts = dict[str, int]
"""Part -> bytes."""

_DTYPE_BYTES = {'float32': 4, 'bfloat16': 2}
# Vectors of the model's width that a layer keeps for a token's gradient.
_KEPT_FLOAT32, _KEPT_IN_DTYPE = 7, 24
# Copies of attention scores, logits and convolved images alive together.
_SCORES_COPIES, _LOGITS_COPIES, _CONVOLUTION_COPIES = 4, 3, 4
# Rows of a batch of features, as in run/features.py.
_FEATURE_BATCH_ROWS = 256
# A Gram matrix, its eigenvectors, and what LAPACK works on.
_GRAM_COPIES = 4


def stages(config: TrainConfig) -> list[Parts]:
  """Returns what a client adds, in the stages of its work that may take most.

  A client's end is not among them: its terms take the place of what they are
  made of.
  """
  work, cost = config.client_work, config.method.cost(config)
  shape = config.model_shape()
  weights = sum(tensor_bytes(shape).values())
  is_private = config.local_privacy.is_on
  num_rows = min(work.max_batch_rows, work.micro_batch_size or math.inf)
  if is_private:
    num_rows = 1
  has_pass_after = cost.passes_after_training > 0
  num_kept_models = sum(config.kept_models.values())
  in_both = {
    'client weights': weights,
    'sums over micro-batches': bool(work.micro_batch_size) * weights,
    # The client's, and those of the next one, which is being loaded.
    'kept tensors': int(2 * num_kept_models * weights),
  }
  of_method = {'models of the method': cost.models_held * weights}
  in_training = in_both | {
    # Their sum, a clipped one, and what noise makes of the sum.
    'clipped gradients': 3 * is_private * weights,
    'client optimizer state': work.step_cost().num_state_tensors * weights,
  }
  if not has_pass_after:
    in_training |= of_method
  # Another forward pass that is differentiated keeps activations, too.
  num_kept_rows = num_rows * (1 + (cost.passes_in_training > 0))
  found = _gradient_stages(shape, num_kept_rows, in_training)
  if has_pass_after:
    found += _gradient_stages(shape, num_rows, in_both | of_method)
  return found + _feature_stages(config)


def tensor_bytes(shape: ModelShape) -> dict[str, int]:
  """Returns the bytes of each weight tensor, by name."""
  return {
    name: 4 * math.prod(tensor_shape)
    for name, tensor_shape in weight_shapes(shape).items()
  }


def _gradient_stages(shape, num_rows, held):
  """Returns the parts at the end of a forward and of a backward pass."""
  sizes = tensor_bytes(shape)
  total = sum(sizes.values())
  if isinstance(shape, ImageModelConfig):
    kept = 4 * _CONVOLUTION_COPIES * num_rows * shape.num_convolved()
    return [held | {'gradients': total, 'activations': kept}]
  dtype_bytes = _DTYPE_BYTES[shape.compute_dtype]
  length, num_ids = shape.sequence_length, shape.vocabulary_size
  blocks = transformer_config.query_blocks(length)
  num_scores = max((end - start) * end for start, end in blocks)
  logits = 4 * num_rows * length * num_ids
  if transformer_config.logits_chunk_length(length, num_ids) is not None:
    logits = transformer_config.MAX_LOGITS_BYTES
  kernels = sum(
    size
    for tensor, size in sizes.items()
    if tensor.startswith('block/') and tensor.endswith('/kernel')
  )
  kernels_in_dtype = kernels * dtype_bytes // 4
  # Kernels in the compute dtype, and the layers' list that foldl makes. Written
  # out, layers are slices of the stacked tensors: no copies.
  is_copied = not shape.unrolls_layers or dtype_bytes != 4
  per_vector = 4 * _KEPT_FLOAT32 + dtype_bytes * _KEPT_IN_DTYPE
  num_vectors = shape.num_layers * num_rows * length
  # Of all layers, and the embedding's two parts.
  by_layer = kernels_in_dtype + total - kernels + sizes['token_embedding']
  # What is stacked and cast to float32 takes the place of what it is made of.
  stacked = total + max(sizes.values()) // 2
  held = held | {'layer copies': is_copied * kernels_in_dtype}
  forward = {
    'activations': num_vectors * shape.width * per_vector,
    'attention scores': _SCORES_COPIES
    * (4 * num_rows * shape.num_heads * num_scores),
    'logits': _LOGITS_COPIES * logits,
  }
  backward = {'gradients': max(by_layer, stacked)}
  return [held | parts for parts in (forward, backward)]


def _feature_stages(config):
  """Returns what features of rows add: computed, trained on, decomposed.

  Where nothing bounds the rows of a client, all are taken to have as many.
  """
  if config.method.features is None:
    return []
  num_features, max_gram_rows = config.method.features.sizes(config)
  num_rows = config.client_work.max_sequences_per_client
  if num_rows is None:
    num_images = IMAGE_CORPORA[config.data.corpus].num_images or 0
    num_rows = math.ceil(num_images / (config.partition.num_clients or 1))
  # Float32, twice: by column and by row, or as read and normalized.
  batch = {'batch of features': 2 * 4 * _FEATURE_BATCH_ROWS * num_features}
  regression = 4 * (num_features + 1) * config.model_shape().num_classes
  # Float64.
  basis_row = 8 * num_rows * (num_rows <= max_gram_rows)
  return [
    batch | {'features of a client': FEATURE_BYTES * num_rows * num_features},
    batch
    # Weights before and after, h, its two kept tensors, and the step.
    | {'regression weights': 6 * regression}
    | {'batch of the basis': _FEATURE_BATCH_ROWS * basis_row},
    {'Gram matrix': _GRAM_COPIES * num_rows * basis_row},
  ]
