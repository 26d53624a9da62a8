"""Resident bytes of each process of a run, part by part, moment by moment.

A model is W = 4 N bytes for N weights. Which copies are alive follows from the
engine, the method's declaration and how TensorFlow runs graphs: see
docs/planning.md. An image model's activations are counted in its code, as if
nothing were freed before the end.
"""

import dataclasses
import math

from models import transformer_config
from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape, weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.planning import client_features
from tff_fedfish.planning.client_states import DTYPE_BYTES, clients_of_corpus

Parts = dict[str, int]
"""Part -> bytes."""

# Measured, or counted in the code: docs/planning.md says of what each is made.
PROCESS_BYTES = 925 * 10**6
UNROLLED_LAYER_BYTES = 10 * 10**6
# Vectors of the model's width that a layer keeps for a token's gradient.
_KEPT_FLOAT32, _KEPT_IN_DTYPE = 7, 24
# Copies of attention scores, logits and convolved images alive together.
_SCORES_COPIES, _LOGITS_COPIES, _CONVOLUTION_COPIES = 4, 3, 4
# Freed buffers below a size stay with the allocator, this share of them idle.
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
  num_moments = config.server.step_cost().num_state_tensors
  process, at_client = _process_parts(config), moments_of_client(config)
  at_client |= client_features.moments(config)
  state = process | {
    'weights': weights,
    'optimizer state': num_moments * weights,
  }
  # Complete before the old state goes; the mean is made tensor by tensor.
  new_state = {'new weights and state': (1 + num_moments) * weights}
  server_step = new_state | {'update': max(sizes)}
  earlier = {'sums of earlier clients': sums}
  barrier = {}
  evaluation = config.evaluation
  if (
    evaluation.barrier_every_num_rounds
    or evaluation.diagnostics_every_num_rounds
  ):
    # Clients train once more, the old state and the new one beside them; each
    # gives its model and its update.
    held = state | new_state
    given = {'client weights': weights, "client's update": sums}
    parts_at = at_client | {'trained client': given}
    if evaluation.diagnostics_every_num_rounds:
      # Three sums of the updates are kept in float64, then both means.
      held |= {'sums of the bare means': 6 * weights}
      given |= {'delta in float64': 2 * weights}
      parts_at |= {'bare means': {'bare means': 4 * weights}}
    barrier = {
      f'barrier, {moment}': held | parts for moment, parts in parts_at.items()
    }
  solve = {}
  if config.method.solver is not None:
    num_clients = config.cohort_size or clients_of_corpus(config) or 1
    num_models = config.method.solve_models(config, num_clients)
    # The weights of the round are there beside the solution.
    models = {'models of the solve': int(num_models * weights)}
    models |= {'weights': weights, 'new weights': weights}
    idle = _with_idle(config.model_shape(), 1, models)
    solve = {'server solve': state | idle}
  if config.engine.kind == 'in_process':
    in_parts = config.num_partial_sums > 1
    # A part's sum is there beside the sum of the parts before it.
    held = state | earlier | {'partial sums': in_parts * sums}
    moments = {moment: held | parts for moment, parts in at_client.items()}
    if in_parts:
      # The sum so far, a part's, and the new sum.
      moments['merge of partial sums'] = state | {'partial sums': 3 * sums}
    moments['server step'] = state | earlier | server_step
    moments |= barrier | solve
    return (_process_memory('the process', moments),)
  broadcast = {'broadcast weights': weights}
  driver = {
    # As arrays, and in the object store.
    'broadcast': state | {'broadcast weights': 2 * weights},
    # The sum so far, a part's arrays and their tensors, and the new sum.
    'merge of partial sums': state | broadcast | {'partial sums': 4 * sums},
    'server step': state | broadcast | {'partial sums': sums} | server_step,
  }
  # In the object store, and as tensors; the sum as arrays, and in the store.
  held = process | {'broadcast weights': 2 * weights} | earlier
  worker = at_client | {'sending of the sum': {'partial sums': 2 * sums}}
  worker = {moment: held | parts for moment, parts in worker.items()}
  return (
    _process_memory('the driver', driver | barrier | solve),
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
  num_moments = work.step_cost().num_state_tensors
  num_rows = min(work.max_batch_rows, work.micro_batch_size or math.inf)
  pass_after = method_cost.pass_after_training
  slice_sums = 0 if work.micro_batch_size is None else weights
  is_private = config.local_privacy.is_on
  if is_private:
    num_rows = 1
  # The client's, and those of the next one, which is being loaded.
  kept = int(2 * sum(s.num_models for s in config.kept_slots) * weights)
  in_training = {
    'client weights': weights,
    'models of the method': method_cost.models_in_training * weights,
    'sums over micro-batches': slice_sums,
    # Their sum, a clipped one, and what noise makes of the sum.
    'clipped gradients': 3 * is_private * weights,
    'client optimizer state': num_moments * weights,
    'kept tensors': kept,
  }
  after = {
    'client weights': weights,
    'kept tensors': kept,
    'models of the method': method_cost.models_after_training * weights,
    'sums over micro-batches': slice_sums * (pass_after == 'batches'),
  }
  # Another forward pass that is differentiated keeps activations, too.
  num_kept_rows = num_rows * (1 + method_cost.extra_backwards)
  moments = _moments_of_gradient(
    'local step', shape, num_kept_rows, in_training
  )
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


def largest_buffers(shape: TransformerConfig, num_rows: int) -> Parts:
  """Returns the bytes of the largest buffer of each part of a forward pass."""
  length, num_ids = shape.sequence_length, shape.vocabulary_size
  num_tokens, dtype_bytes = num_rows * length, DTYPE_BYTES[shape.compute_dtype]
  blocks = transformer_config.query_blocks(length)
  num_scores = max((end - start) * end for start, end in blocks)
  logits = 4 * num_tokens * num_ids
  if transformer_config.logits_chunk_length(length, num_ids) is not None:
    logits = transformer_config.MAX_LOGITS_BYTES
  return {
    # Of the MLP.
    'activations': 4 * shape.width * num_tokens * dtype_bytes,
    'attention scores': 4 * num_rows * shape.num_heads * num_scores,
    'logits': logits,
  }


def _process_parts(config):
  """Returns what every process holds from its start."""
  shape, images = config.model_shape(), {}
  if isinstance(shape, ImageModelConfig):
    num_unrolled = sum(
      name.endswith('/kernel') for name in weight_shapes(shape)
    )
    num_images = IMAGE_CORPORA[config.data.corpus].num_images
    if num_images is None:
      # Late: listing files is of no use to other corpora.
      from tff_fedfish.data.images.image_folder import ImageFolder

      num_images = len(ImageFolder(config.data.directory).paths)
    # A byte per value.
    images = {'images': num_images * math.prod(shape.image_shape)}
  else:
    num_unrolled = shape.unrolls_layers * shape.num_layers
  return {
    'process': PROCESS_BYTES + num_unrolled * UNROLLED_LAYER_BYTES
  } | images


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
    kept = 4 * _CONVOLUTION_COPIES * num_rows * shape.num_convolved()
    return {name: held | {'gradients': total, 'activations': kept}}
  buffers = largest_buffers(shape, num_rows)
  dtype_bytes = DTYPE_BYTES[shape.compute_dtype]
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
      'attention scores': _SCORES_COPIES * buffers['attention scores'],
      'logits': _LOGITS_COPIES * buffers['logits'],
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
    pieces = {name: num_pieces * name.startswith('block/') for name in sizes}
    small = [n for name, n in sizes.items() if n // (pieces[name] or 1) < limit]
    return sum(small) / total

  stacked, by_layer = share_on_heap(1), share_on_heap(shape.num_layers)
  buffers = largest_buffers(shape, num_rows)
  shares = {part: size < limit for part, size in buffers.items()}
  shares |= {'layer copies': by_layer, 'gradients': by_layer}
  # Other parts are models, made of stacked tensors.
  freed = sum(size * shares.get(part, stacked) for part, size in parts.items())
  return parts | {'allocator': int(_IDLE_SHARE * freed)}
