"""Resident bytes of each process of a run, part by part, moment by moment.

Which copies are alive follows from the engine (`runtime/`: one client at a
time, added up in its own function call), the methods (`algorithms/slots/`) and
how TensorFlow runs their graphs; docs/planning.md says where each comes from.
"""

import dataclasses
import math

from models.image_model_config import ImageModelConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.optimizers import cost
from tff_fedfish.planning import client_memory, traffic
from tff_fedfish.planning.client_memory import Parts

# Interpreter, TensorFlow, TFF and compiled graphs; measured.
PROCESS_BYTES = 925 * 10**6
# Of each layer that is written out instead of looped over; measured.
UNROLLED_LAYER_BYTES = 10 * 10**6


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
  """Returns the memory of each kind of process of a run.

  Returns:
    One process; with engine 'ray' the driver and one worker.
  """
  tensor_bytes = client_memory.tensor_bytes(config.model_shape()).values()
  weights, sums = sum(tensor_bytes), traffic.accumulator_bytes(config)
  num_moments = cost.of_settings(config.server).num_state_tensors
  process = _process_parts(config)
  state = process | {
    'weights': weights,
    'optimizer state': num_moments * weights,
  }
  # Complete before the old state goes; the mean is made tensor by tensor.
  new_state = {'new weights and state': (1 + num_moments) * weights}
  server_step = new_state | {'update': max(tensor_bytes)}
  at_client = client_memory.moments_of_client(config)
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
    held = state | {'sums of earlier clients': sums}
    # A part's sum is there beside the sum of the parts before it.
    moments = _beside(held | {'partial sums': in_parts * sums}, at_client)
    if in_parts:
      # The sum so far, a part's, and the new sum.
      moments['merge of partial sums'] = state | {'partial sums': 3 * sums}
    moments['server step'] = held | server_step
    return (_process('the process', moments | barrier),)
  at_driver = {
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
  held = process | {
    # In the object store, and as tensors.
    'broadcast weights': 2 * weights,
    'sums of earlier clients': sums,
  }
  # As arrays, and in the object store.
  at_worker = at_client | {'sending of the sum': {'partial sums': 2 * sums}}
  return (
    _process('the driver', _beside(state, at_driver) | barrier),
    _process('each worker', _beside(held, at_worker)),
  )


def run_bytes(config: TrainConfig) -> int:
  """Returns what all processes of a run take on this machine at most."""
  first, *others = of_config(config)
  engine = config.engine
  # The workers of a cluster are elsewhere.
  num_workers = engine.num_workers if engine.ray_address == 'local' else 0
  return first.peak_bytes + num_workers * sum(w.peak_bytes for w in others)


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


def _beside(held, moments):
  return {moment: held | parts for moment, parts in moments.items()}


def _process(name, moments):
  moments = {
    moment: {part: size for part, size in parts.items() if size}
    for moment, parts in moments.items()
  }
  sizes = {moment: sum(parts.values()) for moment, parts in moments.items()}
  peak = max(sizes, key=sizes.get)
  return ProcessMemory(name, moments, peak, sizes[peak])
