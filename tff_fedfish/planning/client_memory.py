"""Bytes of a client's work, at the moments that may take most.

A model is W = 4 N bytes for N weights. The method declares how many models its
clients hold (`methods/method.py`). docs/planning.md says where each part comes
from. The vectors per layer, the copies of scores and logits, and the
allocator's share were measured with transformers; an image model's activations
are counted in its code, as if nothing were freed before the end.
"""

import math

from models.image_model_config import ImageModelConfig, resnet_blocks
from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.optimizers import cost
from tff_fedfish.planning import flops

Parts = dict[str, int]
"""Part -> bytes."""

# Vectors of the model's width that a layer keeps for its gradient, per token.
# In float32: 3 of each norm, and the residual stream.
_KEPT_FLOAT32 = 7
# In the compute dtype: joined projections 3, attention 1, GELU 5 times 4.
_KEPT_IN_DTYPE = 24
# Copies of a block of attention scores that are alive together.
_SCORES_COPIES = 4
# Logits, their exponentials and their gradient, in float32.
_LOGITS_COPIES = 3
# A convolution's output, with bias or normalized, after ReLU, and its gradient.
_CONVOLUTION_COPIES = 4
# Freed buffers below a size stay with glibc's allocator, and this share of them
# lies idle between others.
_IDLE_SHARE = 0.5
# glibc's own size, and that of large models, as in runtime/freed_memory.py,
# which imports TensorFlow; a test compares them.
_MAX_HEAP_BUFFER_BYTES = 32 * 2**20
LARGE_MODEL_BYTES = 256 * 2**20
LARGE_MODEL_HEAP_BUFFER_BYTES = 2**20


def moments_of_client(config: TrainConfig) -> dict[str, Parts]:
  """Returns the memory that a client adds to what is resident.

  Returns:
    Moment -> parts, of the moments that may take most. A client's end is not
    among them: its terms take the place of what they are made of.
  """
  work, method_cost = config.client_work, config.method.cost(config)
  shape = config.model_shape()
  model_bytes = sum(tensor_bytes(shape).values())
  num_moments = cost.of_settings(work).num_state_tensors
  num_rows = min(work.max_batch_rows, work.micro_batch_size or math.inf)
  pass_after = method_cost.pass_after_training

  def held(num_models, has_batches):
    sums_slices = has_batches and work.micro_batch_size is not None
    return {
      'client weights': model_bytes,
      'models of the method': num_models * model_bytes,
      'sums over micro-batches': sums_slices * model_bytes,
    }

  in_training = held(method_cost.models_in_training, True) | {
    'client optimizer state': num_moments * model_bytes
  }
  after = held(method_cost.models_after_training, pass_after == 'batches')
  moments = _moments_of_gradient('local step', shape, num_rows, in_training)
  if pass_after == 'none':
    if method_cost.models_after_training:
      moments['after training'] = _with_idle(shape, num_rows, after)
    return moments
  holds_more_after = sum(in_training.values()) < sum(after.values())
  if pass_after == 'batches' and holds_more_after:
    # Its gradients take as much, so a local step cannot take most.
    moments = {}
  if pass_after == 'rows' and not config.data.holds_images:
    # Image models take less, too, but are counted to be on the safe side.
    num_rows = 1
  return moments | _moments_of_gradient(
    'pass after training', shape, num_rows, after
  )


def tensor_bytes(shape: ModelShape) -> dict[str, int]:
  """Returns the bytes of each weight tensor, by name."""
  return {
    name: 4 * math.prod(tensor_shape)
    for name, tensor_shape in weight_shapes(shape).items()
  }


def image_activation_bytes(shape: ImageModelConfig) -> int:
  """Returns what an image's forward and backward pass keep at most."""
  height, width, _ = shape.image_shape
  if shape.name == 'resnet18':
    blocks = list(resnet_blocks())
    num_values = height * width * blocks[0].channels_in
    for block in blocks:
      height = math.ceil(height / block.stride)
      width = math.ceil(width / block.stride)
      num_values += (2 + block.projects) * height * width * block.channels
  else:
    # Two valid convolutions of 3 x 3.
    weights = shape.weight_shapes()
    num_values = sum(
      (height - 2 * i) * (width - 2 * i) * weights[f'conv_{i}/bias'][0]
      for i in (1, 2)
    )
  return 4 * _CONVOLUTION_COPIES * num_values


def scores_bytes(shape: TransformerConfig, num_rows: int) -> int:
  """Returns what the largest block of attention scores of a batch takes."""
  blocks = flops.query_blocks(shape.sequence_length)
  largest = max(rows * columns for rows, columns in blocks)
  return _SCORES_COPIES * 4 * num_rows * shape.num_heads * largest


def logits_bytes(shape: TransformerConfig, num_rows: int) -> int:
  """Returns what the logits of a batch, or of a chunk of it, take."""
  num_bytes = 4 * num_rows * shape.sequence_length * shape.vocabulary_size
  if flops.forms_logits_in_chunks(shape):
    num_bytes = flops.MAX_LOGITS_BYTES
  return _LOGITS_COPIES * num_bytes


def _moments_of_gradient(
  name: str, shape: ModelShape, num_rows: int, held: Parts
) -> dict[str, Parts]:
  """Returns the moments in which the gradient of a batch may take most.

  Args:
    name: The moment's name, or the beginning of it.
    shape: The model's shape.
    num_rows: Sequences or images that pass through the model at a time.
    held: What is there beside.
  """
  sizes = tensor_bytes(shape)
  if isinstance(shape, ImageModelConfig):
    of_batch = {
      'gradients': sum(sizes.values()),
      'activations': num_rows * image_activation_bytes(shape),
    }
    return {name: held | of_batch}
  dtype_bytes, kernels = _dtype_bytes(shape), _kernel_bytes(sizes)
  kernels_in_dtype = kernels * dtype_bytes // 4
  # Kernels in the compute dtype, and the layers' list that foldl makes. Written
  # out, layers are slices of the stacked tensors: no copies.
  is_copied = not shape.unrolls_layers or dtype_bytes != 4
  held = held | {'layer copies': is_copied * kernels_in_dtype}
  per_vector = 4 * _KEPT_FLOAT32 + dtype_bytes * _KEPT_IN_DTYPE
  num_vectors = shape.num_layers * num_rows * shape.sequence_length
  forward = {
    'activations': num_vectors * shape.width * per_vector,
    'attention scores': scores_bytes(shape, num_rows),
    'logits': logits_bytes(shape, num_rows),
  }
  # Of all layers, and the embedding's two parts.
  not_kernels = sum(sizes.values()) - kernels
  by_layer = kernels_in_dtype + not_kernels + sizes['token_embedding']
  # What is stacked and cast to float32 takes the place of what it is made of.
  stacked = sum(sizes.values()) + max(sizes.values()) // 2
  backward = {'gradients': max(by_layer, stacked)}
  return {
    f'{name}, {direction}': _with_idle(shape, num_rows, held | parts)
    for direction, parts in (('forward', forward), ('backward', backward))
  }


def _with_idle(shape, num_rows, parts):
  """Adds what the allocator holds beside the parts of a transformer."""
  if isinstance(shape, ImageModelConfig):
    return parts
  sizes = tensor_bytes(shape)
  total = sum(sizes.values())
  is_large = total >= LARGE_MODEL_BYTES
  limit = LARGE_MODEL_HEAP_BUFFER_BYTES if is_large else _MAX_HEAP_BUFFER_BYTES

  def share_on_heap(num_pieces):
    """Returns the share of the weights in buffers below the limit."""
    small = 0
    for name, size in sizes.items():
      pieces = num_pieces if name.startswith('block/') else 1
      small += size * (size // pieces < limit)
    return small / total

  stacked, by_layer = share_on_heap(1), share_on_heap(shape.num_layers)
  hidden = 4 * shape.width * num_rows * shape.sequence_length
  largest_buffers = {
    'activations': _dtype_bytes(shape) * hidden,
    'attention scores': scores_bytes(shape, num_rows) // _SCORES_COPIES,
    'logits': logits_bytes(shape, num_rows) // _LOGITS_COPIES,
  }
  shares = {part: size < limit for part, size in largest_buffers.items()}
  shares |= {'layer copies': by_layer, 'gradients': by_layer}
  freed = sum(size * shares.get(part, stacked) for part, size in parts.items())
  return parts | {'allocator': int(_IDLE_SHARE * freed)}


def _kernel_bytes(sizes):
  return sum(
    size
    for name, size in sizes.items()
    if name.startswith('block/') and name.endswith('/kernel')
  )


def _dtype_bytes(shape):
  return 2 if shape.compute_dtype == 'bfloat16' else 4
