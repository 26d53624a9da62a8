"""Resident bytes of each process of a run, part by part, moment by moment.

Which copies are alive follows from the engine (`runtime/`: one client at a
time, added up in its own function call), the methods (`algorithms/slots/`) and
how TensorFlow runs their graphs; docs/planning.md says where each comes from.
N is the number of weights, W = 4 N bytes.
"""

import dataclasses
import math

from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.optimizers import cost
from tff_fedfish.planning import client_memory, image_memory, traffic
from tff_fedfish.planning.held_models import Parts
from tff_fedfish.training.config import TrainConfig

# Interpreter, TensorFlow, TFF and compiled graphs; measured.
PROCESS_BYTES = 925 * 10**6
# Of each layer that is written out instead of looped over; measured.
UNROLLED_LAYER_BYTES = 10 * 10**6


@dataclasses.dataclass(frozen=True)
class ProcessMemory:
  """What one kind of process holds.

  With an accelerator all but the part 'process' lies in its memory.
  """

  name: str
  """'the process'; with Ray 'the driver' or 'each worker'."""
  moments: dict[str, Parts]
  """Moment -> part -> bytes, of the moments that may take most."""
  peak_moment: str
  """The one that does."""
  peak_bytes: int
  """The sum of its parts."""


def of_config(config: TrainConfig) -> tuple[ProcessMemory, ...]:
  """Returns the memory of each kind of process of a run.

  Args:
    config: The run's config.

  Returns:
    One process; with engine 'ray' the driver and one worker.
  """
  parts = _Resident(config)
  of_kind = image_memory if config.data.holds_images else client_memory
  client_moments = of_kind.moments_of_client(config)
  in_barrier = {}
  if config.evaluation.barrier_every_num_rounds:
    # Clients train once more, the old state and the new one beside them; each
    # gives its model and its update.
    given = {'client weights': parts.weights, "client's update": parts.sums}
    in_barrier = {
      f'barrier, {moment}': parts.next_state | taken
      for moment, taken in (client_moments | {'trained client': given}).items()
    }
  if config.engine.kind == 'in_process':
    return (
      _one_process(parts, client_moments, in_barrier, config.num_partial_sums),
    )
  return _driver(parts, in_barrier), _worker(parts, client_moments)


def run_bytes(config: TrainConfig) -> int:
  """Returns what all processes of a run take on this machine at most.

  Args:
    config: The run's config.
  """
  first, *others = of_config(config)
  engine = config.engine
  # The workers of a cluster are elsewhere.
  num_workers = engine.num_workers if engine.ray_address == 'local' else 0
  return first.peak_bytes + num_workers * sum(w.peak_bytes for w in others)


def _one_process(parts, client_moments, in_barrier, num_partial_sums):
  held = parts.process | parts.state
  in_parts = num_partial_sums > 1
  at_client = held | {
    # Of a part, beside the sum of the parts before it.
    'sums of earlier clients': parts.sums,
    'partial sums': in_parts * parts.sums,
  }
  moments = {
    moment: at_client | taken for moment, taken in client_moments.items()
  }
  if in_parts:
    # The sum so far, a part's, and the new sum.
    moments['merge of partial sums'] = held | {'partial sums': 3 * parts.sums}
  moments['server step'] = (
    held | {'sums of earlier clients': parts.sums} | parts.new_state
  )
  moments |= {moment: held | taken for moment, taken in in_barrier.items()}
  return _process('the process', moments)


def _driver(parts, in_barrier):
  held = parts.process | parts.state
  return _process(
    'the driver',
    {
      # As arrays, and in the object store.
      'broadcast': held | {'broadcast weights': 2 * parts.weights},
      # The sum so far, a part's arrays and their tensors, and the new sum.
      'merge of partial sums': held
      | {'broadcast weights': parts.weights, 'partial sums': 4 * parts.sums},
      'server step': held
      | {'broadcast weights': parts.weights, 'partial sums': parts.sums}
      | parts.new_state,
    }
    | {moment: held | taken for moment, taken in in_barrier.items()},
  )


def _worker(parts, client_moments):
  held = (
    parts.process
    # In the object store, and as tensors.
    | {'broadcast weights': 2 * parts.weights}
    | {'sums of earlier clients': parts.sums}
  )
  moments = {moment: held | taken for moment, taken in client_moments.items()}
  # As arrays, and in the object store.
  moments['sending of the sum'] = held | {'partial sums': 2 * parts.sums}
  return _process('each worker', moments)


class _Resident:
  """Parts that do not depend on what a client is at."""

  def __init__(self, config):
    shape = config.model_shape()
    tensor_bytes = client_memory.tensor_bytes(shape).values()
    num_moments = cost.of_settings(config.server).num_state_tensors
    self.weights = sum(tensor_bytes)
    self.sums = traffic.accumulator_bytes(config)
    self.process = {
      'process': PROCESS_BYTES + _num_unrolled(shape) * UNROLLED_LAYER_BYTES
    }
    if config.data.holds_images:
      self.process['images'] = _image_bytes(config)
    self.state = {
      'weights': self.weights,
      'optimizer state': num_moments * self.weights,
    }
    # Complete before the old one goes; the mean is made tensor by tensor.
    self.next_state = {
      'new weights and state': (1 + num_moments) * self.weights
    }
    self.new_state = self.next_state | {'update': max(tensor_bytes)}


def _image_bytes(config: TrainConfig) -> int:
  """Returns what the images of all clients take, a byte per value."""
  num_images = IMAGE_CORPORA[config.data.corpus].num_images
  if num_images is None:
    # Late: what lists the files is of no use to other corpora.
    from tff_fedfish.data.images.image_folder import ImageFolder

    num_images = len(ImageFolder(config.data.directory).paths)
  return num_images * math.prod(config.model_shape().image_shape)


def _num_unrolled(shape: ModelShape) -> int:
  """Returns how many layers are written out in the graphs."""
  if isinstance(shape, ImageModelConfig):
    return sum(name.endswith('/kernel') for name in shape.weight_shapes())
  return shape.num_layers if shape.unrolls_layers else 0


def _process(name, moments):
  moments = {
    moment: {part: size for part, size in parts.items() if size}
    for moment, parts in moments.items()
  }
  peak = max(moments, key=lambda moment: sum(moments[moment].values()))
  return ProcessMemory(name, moments, peak, sum(moments[peak].values()))
