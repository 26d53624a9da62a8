"""Bytes that a client's work takes, at the ends of its passes.

N is the number of weights, W = 4 N bytes; docs/planning.md says where each part
comes from. The vectors per layer, the copies of scores and logits, and the
allocator's share were found by measurement.
"""

import math
from collections.abc import Iterable, Mapping

from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.planning import flops, held_models
from tff_fedfish.planning.held_models import Parts
from tff_fedfish.training.config import TrainConfig

# Vectors of the model's width that a layer keeps for its gradient, per token.
# In float32: 3 of each norm, and the residual stream.
_KEPT_FLOAT32 = 7
# In the compute dtype: joined projections 3, attention 1, GELU 5 times 4.
_KEPT_IN_DTYPE = 24
# Copies of a block of attention scores that are alive together.
_SCORES_COPIES = 4
# Logits, their exponentials and their gradient, in float32.
_LOGITS_COPIES = 3
# Freed buffers below a size stay with glibc's allocator, and this share of them
# lies idle between others.
_IDLE_SHARE = 0.5
# glibc's own size, and that of large models, as in runtime/freed_memory.py,
# which imports TensorFlow; a test compares them.
_MAX_HEAP_BUFFER_BYTES = 32 * 2**20
LARGE_MODEL_BYTES = 256 * 2**20
LARGE_MODEL_HEAP_BUFFER_BYTES = 2**20


def moments_of_client(config: TrainConfig) -> dict[str, Parts]:
  """Returns what a client adds to what is resident, as part -> bytes.

  Args:
    config: The run's config.

  Returns:
    Moment -> parts, of the moments that may take most. A client's end is not
    among them: its terms take the place of what they are made of.
  """
  shape, method_cost = config.transformer_config(), config.method.cost(config)
  model_bytes = sum(tensor_bytes(shape).values())
  num_rows = held_models.rows_at_a_time(config)
  in_training = held_models.in_training(config, model_bytes)
  after = held_models.after_training(config, model_bytes)
  at_steps = _moments_of_step('local step', shape, num_rows, in_training)
  if method_cost.pass_after_training == 'none':
    if not method_cost.models_after_training:
      return at_steps
    return at_steps | {'after training': _with_idle(shape, num_rows, after)}
  is_of_rows = method_cost.pass_after_training == 'rows'
  in_pass = _moments_of_step(
    'pass after training', shape, 1 if is_of_rows else num_rows, after
  )
  if not is_of_rows and sum(in_training.values()) < sum(after.values()):
    # A local step holds less.
    return in_pass
  return at_steps | in_pass


def tensor_bytes(shape: ModelShape) -> dict[str, int]:
  """Returns the bytes of each weight tensor, by name."""
  return {
    name: 4 * math.prod(tensor_shape)
    for name, tensor_shape in weight_shapes(shape).items()
  }


def activation_bytes(shape: TransformerConfig, num_rows: int) -> int:
  """Returns what a forward pass keeps of all layers for the backward pass.

  Args:
    shape: The model's shape.
    num_rows: Sequences of a batch.
  """
  per_vector = 4 * _KEPT_FLOAT32 + _dtype_bytes(shape) * _KEPT_IN_DTYPE
  num_tokens = num_rows * shape.sequence_length
  return shape.num_layers * num_tokens * shape.width * per_vector


def scores_bytes(shape: TransformerConfig, num_rows: int) -> int:
  """Returns what the largest block of attention scores takes."""
  largest = max(
    rows * columns
    for rows, columns in flops.query_blocks(shape.sequence_length)
  )
  return _SCORES_COPIES * 4 * num_rows * shape.num_heads * largest


def logits_bytes(shape: TransformerConfig, num_rows: int) -> int:
  """Returns what the logits of a batch, or of a chunk of it, take."""
  num_bytes = 4 * num_rows * shape.sequence_length * shape.vocabulary_size
  if flops.forms_logits_in_chunks(shape):
    num_bytes = flops.MAX_LOGITS_BYTES
  return _LOGITS_COPIES * num_bytes


def _moments_of_step(
  name: str, shape: TransformerConfig, num_rows: int, held: Mapping[str, int]
) -> dict[str, Parts]:
  """Returns the ends of the forward and the backward pass of a batch."""
  held = {**held, 'layer copies': _layer_copies(shape)}
  moments = {
    f'{name}, forward': held
    | {
      'activations': activation_bytes(shape, num_rows),
      'attention scores': scores_bytes(shape, num_rows),
      'logits': logits_bytes(shape, num_rows),
    },
    f'{name}, backward': held | {'gradients': _gradients(shape)},
  }
  return {
    moment: _with_idle(shape, num_rows, parts)
    for moment, parts in moments.items()
  }


def _with_idle(shape, num_rows, parts):
  return parts | {'allocator': _idle_bytes(shape, num_rows, parts)}


def _layer_copies(shape):
  """Kernels in the compute dtype, and the layers' list that foldl makes."""
  in_dtype = _kernels(shape) * _dtype_bytes(shape) // 4
  # Written out, layers are slices of the stacked tensors: no copies.
  is_copied = not shape.unrolls_layers or _dtype_bytes(shape) != 4
  return in_dtype if is_copied else 0


def _gradients(shape):
  """Gradients of all layers, and the embedding's two parts."""
  sizes = tensor_bytes(shape)
  kernels = _kernels(shape)
  by_layer = (
    kernels * _dtype_bytes(shape) // 4
    + sum(sizes.values())
    - kernels
    + sizes['token_embedding']
  )
  # What is stacked and cast to float32 takes the place of what it is made of.
  stacked = sum(sizes.values()) + max(sizes.values()) // 2
  return max(by_layer, stacked)


def _kernels(shape):
  return sum(
    size
    for name, size in tensor_bytes(shape).items()
    if name.startswith('block/') and name.endswith('/kernel')
  )


def _idle_bytes(shape, num_rows, parts):
  """Returns what the allocator holds beside the parts."""
  num_tokens = num_rows * shape.sequence_length
  sizes = tensor_bytes(shape)
  heap_limit = _MAX_HEAP_BUFFER_BYTES
  if sum(sizes.values()) >= LARGE_MODEL_BYTES:
    heap_limit = LARGE_MODEL_HEAP_BUFFER_BYTES
  stacked = _share_on_heap(sizes.items(), 1, heap_limit)
  by_layer = _share_on_heap(sizes.items(), shape.num_layers, heap_limit)
  largest_buffer = {
    'activations': _dtype_bytes(shape) * num_tokens * 4 * shape.width,
    'attention scores': scores_bytes(shape, num_rows) // _SCORES_COPIES,
    'logits': logits_bytes(shape, num_rows) // _LOGITS_COPIES,
  }
  shares = {'layer copies': by_layer, 'gradients': by_layer} | {
    part: float(size < heap_limit) for part, size in largest_buffer.items()
  }
  return int(
    _IDLE_SHARE
    * sum(size * shares.get(part, stacked) for part, size in parts.items())
  )


def _share_on_heap(
  named_sizes: Iterable[tuple[str, int]], num_pieces: int, heap_limit: int
):
  """Returns the share of the weights in buffers below a size."""
  small = total = 0
  for name, size in named_sizes:
    total += size
    buffer = size // num_pieces if name.startswith('block/') else size
    small += size * (buffer < heap_limit)
  return small / total


def _dtype_bytes(shape):
  return 2 if shape.compute_dtype == 'bfloat16' else 4
