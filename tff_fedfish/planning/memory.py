"""Resident bytes of each process of a run, part by part, moment by moment.

A model is W = 4 N bytes for N weights. Which copies are alive follows from the
engine, the method's declaration and how TensorFlow runs graphs: see
docs/planning.md. An image model's activations are counted in its code, as if
nothing were freed before the end.
"""

import dataclasses
import math

from models.image_model_config import ImageModelConfig, resnet_blocks
from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.optimizers import cost
from tff_fedfish.planning import flops

Parts = dict[str, int]
"""Part -> bytes."""

# Measured: interpreter, TensorFlow, TFF and compiled graphs.
PROCESS_BYTES = 925 * 10**6
# Measured, for each layer that is written out instead of looped over.
UNROLLED_LAYER_BYTES = 10 * 10**6

# Measured: vectors of the model's width that a layer keeps for its gradient,
# per token. In float32: 3 of each norm, and the residual stream.
_KEPT_FLOAT32 = 7
# In the compute dtype: joined projections 3, attention 1, GELU 5 times 4.
_KEPT_IN_DTYPE = 24
# Measured: copies of a block of attention scores that are alive together.
_SCORES_COPIES = 4
# Logits, their exponentials and their gradient, in float32.
_LOGITS_COPIES = 3
# A convolution's output, with bias or normalized, after ReLU, and its gradient.
_CONVOLUTION_COPIES = 4
# Measured: freed buffers below a size stay with glibc's allocator, and this
# share of them lies idle between others.
_IDLE_SHARE = 0.5
# glibc's own size, and that of large models, as in runtime/freed_memory.py,
# which imports TensorFlow; a test compares them.
_MAX_HEAP_BUFFER_BYTES = 32 * 2**20
LARGE_MODEL_BYTES = 256 * 2**20
LARGE_MODEL_HEAP_BUFFER_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class ProcessMemory:
  """Memory of one kind of process.

  With an accelerator all but the part 'process' lies in its memory.
  """

  name: str
  """'the process'; with Ray 'the driver' or 'each worker'."""
  moments: dict[str, Parts]
  """Moment -> part -> bytes, of the moments that may take most."""
  peak_moment: str
  """The moment that takes most."""
  peak_bytes: int
  """The sum of its parts."""


def of_config(config: TrainConfig) -> tuple[ProcessMemory, ...]:
  """Returns the process's memory; with Ray the driver's and a worker's."""
  sizes = tensor_bytes(config.model_shape()).values()
  weights = sum(sizes)
  sums = config.method.cost(config).models_summed * weights
  num_moments = cost.of_settings(config.server).num_state_tensors
  process, at_client = _process_parts(config), moments_of_client(config)
  state = process | {
    'weights': weights,
    'optimizer state': num_moments * weights,
  }
  # Complete before the old state goes; the mean is made tensor by tensor.
  new_state = {'new weights and state': (1 + num_moments) * weights}
  server_step = new_state | {'update': max(sizes)}
  earlier = {'sums of earlier clients': sums}
  barrier = {}
  if config.evaluation.barrier_every_num_rounds:
    # Clients train once more, the old state and the new one beside them; each
    # gives its model and its update.
    given = {'client weights': weights, "client's update": sums}
    barrier = {
      f'barrier, {moment}': state | new_state | parts
      for moment, parts in (at_client | {'trained client': given}).items()
    }
  if config.engine.kind == 'in_process':
    in_parts = config.num_partial_sums > 1
    # A part's sum is there beside the sum of the parts before it.
    held = state | earlier | {'partial sums': in_parts * sums}
    moments = {moment: held | parts for moment, parts in at_client.items()}
    if in_parts:
      # The sum so far, a part's, and the new sum.
      moments['merge of partial sums'] = state | {'partial sums': 3 * sums}
    moments['server step'] = state | earlier | server_step
    return (_process_memory('the process', moments | barrier),)
  driver = {
    # As arrays, and in the object store.
    'broadcast': {'broadcast weights': 2 * weights},
    # The sum so far, a part's arrays and their tensors, and the new sum.
    'merge of partial sums': {
      'broadcast weights': weights,
      'partial sums': 4 * sums,
    },
    'server step': {'broadcast weights': weights, 'partial sums': sums}
    | server_step,
  }
  driver = {moment: state | parts for moment, parts in driver.items()}
  # In the object store, and as tensors; the sum as arrays, and in the store.
  held = process | {'broadcast weights': 2 * weights} | earlier
  worker = at_client | {'sending of the sum': {'partial sums': 2 * sums}}
  worker = {moment: held | parts for moment, parts in worker.items()}
  return (
    _process_memory('the driver', driver | barrier),
    _process_memory('each worker', worker),
  )


def run_bytes(config: TrainConfig) -> int:
  """Returns the most that all processes of a run take on this machine."""
  first, *others = of_config(config)
  engine = config.engine
  # The workers of a cluster are elsewhere.
  num_workers = engine.num_workers if engine.ray_address == 'local' else 0
  return first.peak_bytes + num_workers * sum(w.peak_bytes for w in others)


def moments_of_client(config: TrainConfig) -> dict[str, Parts]:
  """Returns what a client adds to what is resident, by moment.

  Only the moments that may take most. A client's end is not among them: its
  terms take the place of what they are made of.
  """
  work, method_cost = config.client_work, config.method.cost(config)
  shape = config.model_shape()
  weights = sum(tensor_bytes(shape).values())
  num_moments = cost.of_settings(work).num_state_tensors
  num_rows = min(work.max_batch_rows, work.micro_batch_size or math.inf)
  pass_after = method_cost.pass_after_training

  def held(num_models, has_batches):
    sums_slices = has_batches and work.micro_batch_size is not None
    return {
      'client weights': weights,
      'models of the method': num_models * weights,
      'sums over micro-batches': sums_slices * weights,
    }

  in_training = held(method_cost.models_in_training, True) | {
    'client optimizer state': num_moments * weights
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
  """Returns the most that an image's forward and backward pass keep."""
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
  """Returns the bytes of a batch's largest block of attention scores."""
  blocks = flops.query_blocks(shape.sequence_length)
  largest = max(rows * columns for rows, columns in blocks)
  return _SCORES_COPIES * 4 * num_rows * shape.num_heads * largest


def logits_bytes(shape: TransformerConfig, num_rows: int) -> int:
  """Returns the bytes of the logits of a batch, or of a chunk of it."""
  num_bytes = 4 * num_rows * shape.sequence_length * shape.vocabulary_size
  if flops.forms_logits_in_chunks(shape):
    num_bytes = flops.MAX_LOGITS_BYTES
  return _LOGITS_COPIES * num_bytes


def _process_parts(config):
  """Returns what every process holds from its start."""
  shape = config.model_shape()
  if not isinstance(shape, ImageModelConfig):
    num_unrolled = shape.num_layers if shape.unrolls_layers else 0
    return {'process': PROCESS_BYTES + num_unrolled * UNROLLED_LAYER_BYTES}
  num_unrolled = sum(name.endswith('/kernel') for name in shape.weight_shapes())
  num_images = IMAGE_CORPORA[config.data.corpus].num_images
  if num_images is None:
    # Late: listing files is of no use to other corpora.
    from tff_fedfish.data.images.image_folder import ImageFolder

    num_images = len(ImageFolder(config.data.directory).paths)
  return {
    'process': PROCESS_BYTES + num_unrolled * UNROLLED_LAYER_BYTES,
    # A byte per value.
    'images': num_images * math.prod(shape.image_shape),
  }


def _process_memory(name, moments):
  moments = {
    moment: {part: size for part, size in parts.items() if size}
    for moment, parts in moments.items()
  }
  sizes = {moment: sum(parts.values()) for moment, parts in moments.items()}
  peak = max(sizes, key=sizes.get)
  return ProcessMemory(name, moments, peak, sizes[peak])


def _moments_of_gradient(name, shape, num_rows, held):
  """Returns the moments in which the gradient of a batch may take most."""
  sizes = tensor_bytes(shape)
  total = sum(sizes.values())
  if isinstance(shape, ImageModelConfig):
    activations = num_rows * image_activation_bytes(shape)
    return {name: held | {'gradients': total, 'activations': activations}}
  dtype_bytes = _dtype_bytes(shape)
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
  num_vectors = shape.num_layers * num_rows * shape.sequence_length
  # Of all layers, and the embedding's two parts.
  by_layer = kernels_in_dtype + total - kernels + sizes['token_embedding']
  # What is stacked and cast to float32 takes the place of what it is made of.
  stacked = total + max(sizes.values()) // 2
  directions = {
    'forward': {
      'activations': num_vectors * shape.width * per_vector,
      'attention scores': scores_bytes(shape, num_rows),
      'logits': logits_bytes(shape, num_rows),
    },
    'backward': {'gradients': max(by_layer, stacked)},
  }
  held = held | {'layer copies': is_copied * kernels_in_dtype}
  return {
    f'{name}, {direction}': _with_idle(shape, num_rows, held | parts)
    for direction, parts in directions.items()
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
  scores, logits = scores_bytes(shape, num_rows), logits_bytes(shape, num_rows)
  # The share of each part that lies in such buffers; of others as of weights.
  shares = {
    'activations': _dtype_bytes(shape) * hidden < limit,
    'attention scores': scores // _SCORES_COPIES < limit,
    'logits': logits // _LOGITS_COPIES < limit,
    'layer copies': by_layer,
    'gradients': by_layer,
  }
  freed = sum(size * shares.get(part, stacked) for part, size in parts.items())
  return parts | {'allocator': int(_IDLE_SHARE * freed)}


def _dtype_bytes(shape):
  return 2 if shape.compute_dtype == 'bfloat16' else 4
