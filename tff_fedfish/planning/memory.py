"""Peak resident bytes of each process of a run.

A model is W = 4 N bytes for N weights. Which copies are alive follows from the
engine, the method's declaration and how TensorFlow runs graphs. The parts that
are alive together are added up for every stage of a round that may take most;
the largest sum is the peak. An image model's activations are counted in its
code, as if nothing were freed before the end.
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
from tff_fedfish.planning.client_states import clients_of_corpus

Parts = dict[str, int]
"""Part -> bytes."""

_DTYPE_BYTES = {'float32': 4, 'bfloat16': 2}
# Measured: interpreter and libraries, and the graph of a layer.
PROCESS_BYTES = 925 * 10**6
UNROLLED_LAYER_BYTES = 10 * 10**6
# Vectors of the model's width that a layer keeps for a token's gradient.
_KEPT_FLOAT32, _KEPT_IN_DTYPE = 7, 24
# Copies of attention scores, logits and convolved images alive together.
_SCORES_COPIES, _LOGITS_COPIES, _CONVOLUTION_COPIES = 4, 3, 4
_NUM_SHOWN_PARTS = 3
# Freed buffers below a size stay with the allocator, half of them idle.
# glibc's own size, and that of large models, as in runtime/large_models.py,
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
  peak_bytes: int
  """Most that it takes."""
  largest_parts: Parts
  """The three largest parts of that, the largest first."""


def of_config(config: TrainConfig) -> tuple[ProcessMemory, ...]:
  """Returns the process's memory; with Ray the driver's and a worker's."""
  sizes = tensor_bytes(config.model_shape()).values()
  weights = sum(sizes)
  sums = models_summed(config) * weights
  num_moments = config.server.step_cost().num_state_tensors
  process = _process_parts(config)
  at_client = [*_client_stages(config), *client_features.stages(config)]
  state = process | {
    'weights': weights,
    'optimizer state': num_moments * weights,
  }
  # Complete before the old state goes; the mean is made tensor by tensor.
  new_state = {'new weights and state': (1 + num_moments) * weights}
  server_step = new_state | {'update': max(sizes)}
  earlier = {'sums of earlier clients': sums}
  barrier = []
  if config.evaluation.barrier_every_num_rounds:
    # Clients train once more, the old state and the new one beside them; each
    # gives its model and its update.
    held = state | new_state
    given = {'client weights': weights, "client's update": sums}
    barrier = [held | parts for parts in (*at_client, given)]
  solve = []
  if config.method.solver is not None:
    num_clients = config.cohort_size or clients_of_corpus(config) or 1
    num_models = config.method.solver.models_held(config, num_clients)
    # The weights of the round are there beside the solution.
    models = {'models of the solve': int(num_models * weights)}
    models |= {'weights': weights, 'new weights': weights}
    solve = [state | _with_idle(config.model_shape(), 1, models)]
  if config.engine.kind == 'in_process':
    in_parts = config.num_partial_sums > 1
    # A part's sum is there beside the sum of the parts before it.
    held = state | earlier | {'partial sums': in_parts * sums}
    stages = [held | parts for parts in at_client]
    if in_parts:
      # The sum so far, a part's, and the new sum.
      stages.append(state | {'partial sums': 3 * sums})
    stages.append(state | earlier | server_step)
    return (_process_memory('the process', stages + barrier + solve),)
  broadcast = {'broadcast weights': weights}
  driver = [
    # As arrays, and in the object store.
    state | {'broadcast weights': 2 * weights},
    # The sum so far, a part's arrays and their tensors, and the new sum.
    state | broadcast | {'partial sums': 4 * sums},
    state | broadcast | {'partial sums': sums} | server_step,
  ]
  # In the object store, and as tensors; the sum as arrays, and in the store.
  held = process | {'broadcast weights': 2 * weights} | earlier
  sending = {'partial sums': 2 * sums}
  worker = [held | parts for parts in (*at_client, sending)]
  return (
    _process_memory('the driver', driver + barrier + solve),
    _process_memory('each worker', worker),
  )


def models_summed(config: TrainConfig) -> int:
  """Returns the models over which the server forms sums, rounded up."""
  if config.method.solver is not None:
    return 1
  return max(1, math.ceil(config.method.traffic(config).uplink))


def run_bytes(config: TrainConfig) -> int:
  """Returns the most that all processes of a run take on this machine."""
  first, *others = of_config(config)
  engine = config.engine
  # The workers of a cluster are elsewhere.
  num_workers = engine.num_workers if engine.ray_address == 'local' else 0
  return first.peak_bytes + num_workers * sum(w.peak_bytes for w in others)


def _client_stages(config):
  """Returns what a client adds to what is resident, in stages of its work.

  Only those that may take most. A client's end is not among them: its terms
  take the place of what they are made of.
  """
  work, cost = config.client_work, config.method.cost(config)
  shape = config.model_shape()
  weights = sum(tensor_bytes(shape).values())
  num_moments = work.step_cost().num_state_tensors
  num_rows = min(work.max_batch_rows, work.micro_batch_size or math.inf)
  has_pass_after = cost.passes_after_training > 0
  held = {'models of the method': cost.models_held * weights}
  slice_sums = 0 if work.micro_batch_size is None else weights
  is_private = config.local_privacy.is_on
  if is_private:
    num_rows = 1
  # The client's, and those of the next one, which is being loaded.
  kept = int(2 * sum(s.num_models for s in config.kept_slots) * weights)
  in_training = {
    'client weights': weights,
    'sums over micro-batches': slice_sums,
    # Their sum, a clipped one, and what noise makes of the sum.
    'clipped gradients': 3 * is_private * weights,
    'client optimizer state': num_moments * weights,
    'kept tensors': kept,
  } | ({} if has_pass_after else held)
  # Another forward pass that is differentiated keeps activations, too.
  num_kept_rows = num_rows * (1 + (cost.passes_in_training > 0))
  stages = _gradient_stages(shape, num_kept_rows, in_training)
  if has_pass_after:
    after = held | {
      'client weights': weights,
      'sums over micro-batches': slice_sums,
      'kept tensors': kept,
    }
    stages += _gradient_stages(shape, num_rows, after)
  return stages


def tensor_bytes(shape: ModelShape) -> dict[str, int]:
  """Returns the bytes of each weight tensor, by name."""
  return {
    name: 4 * math.prod(tensor_shape)
    for name, tensor_shape in weight_shapes(shape).items()
  }


def _largest_buffers(shape: TransformerConfig, num_rows: int) -> Parts:
  """Returns the bytes of the largest buffer of each part of a forward pass."""
  length, num_ids = shape.sequence_length, shape.vocabulary_size
  num_tokens, dtype_bytes = num_rows * length, _DTYPE_BYTES[shape.compute_dtype]
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
      from tff_fedfish.data.images.folder import list_folder

      num_images = len(list_folder(config.data.directory).paths)
    # A byte per value.
    images = {'images': num_images * math.prod(shape.image_shape)}
  else:
    num_unrolled = shape.unrolls_layers * shape.num_layers
  return {
    'process': PROCESS_BYTES + num_unrolled * UNROLLED_LAYER_BYTES
  } | images


def _process_memory(name, stages):
  parts = max(stages, key=lambda parts: sum(parts.values()))
  largest = sorted(parts, key=parts.get, reverse=True)[:_NUM_SHOWN_PARTS]
  shown = {part: parts[part] for part in largest if parts[part]}
  return ProcessMemory(name, sum(parts.values()), shown)


def _gradient_stages(shape, num_rows, held):
  """Returns the parts at the end of a forward and of a backward pass."""
  sizes = tensor_bytes(shape)
  total = sum(sizes.values())
  if isinstance(shape, ImageModelConfig):
    kept = 4 * _CONVOLUTION_COPIES * num_rows * shape.num_convolved()
    return [held | {'gradients': total, 'activations': kept}]
  buffers = _largest_buffers(shape, num_rows)
  dtype_bytes = _DTYPE_BYTES[shape.compute_dtype]
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
  held = held | {'layer copies': is_copied * kernels_in_dtype}
  forward = {
    'activations': num_vectors * shape.width * per_vector,
    'attention scores': _SCORES_COPIES * buffers['attention scores'],
    'logits': _LOGITS_COPIES * buffers['logits'],
  }
  backward = {'gradients': max(by_layer, stacked)}
  return [
    _with_idle(shape, num_rows, held | parts) for parts in (forward, backward)
  ]


def _with_idle(shape, num_rows, parts):
  """Adds what the allocator holds beside the parts of a transformer.

  That is half of all parts whose largest buffer is small.
  """
  if isinstance(shape, ImageModelConfig):
    return parts
  sizes = tensor_bytes(shape)
  is_large = sum(sizes.values()) >= LARGE_MODEL_BYTES
  limit = LARGE_MODEL_HEAP_BUFFER_BYTES if is_large else _MAX_HEAP_BUFFER_BYTES
  # Layers are stacked in the tensors of models, and apart in their gradients.
  of_layer = max(
    size // (shape.num_layers if name.startswith('block/') else 1)
    for name, size in sizes.items()
  )
  buffers = _largest_buffers(shape, num_rows)
  buffers |= {'layer copies': of_layer, 'gradients': of_layer}
  idle = sum(
    size
    for part, size in parts.items()
    if buffers.get(part, max(sizes.values())) < limit
  )
  return parts | {'allocator': idle // 2}
