"""Peak resident bytes of each process of a run.

A model is W = 4 N bytes for N weights. Which copies are alive follows from the
engine, the method's declaration and how TensorFlow runs graphs. The parts that
are alive together are added up for every stage of a round that may take most;
the largest sum is the peak. docs/planning.md has the table.
"""

import dataclasses
import math

from models.image_model_config import ImageModelConfig
from models.model_shapes import weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.planning import client_memory
from tff_fedfish.planning.client_memory import Parts, tensor_bytes
from tff_fedfish.planning.disk import clients_of_corpus

# Measured: interpreter and libraries, and the graph of a layer.
PROCESS_BYTES = 925 * 10**6
UNROLLED_LAYER_BYTES = 10 * 10**6
_NUM_SHOWN_PARTS = 3


@dataclasses.dataclass(frozen=True)
class ProcessMemory:
  """Memory of one kind of process."""

  name: str
  """'the process'; with Ray 'the driver' or 'each worker'."""
  peak_bytes: int
  """Most that it takes."""
  largest_parts: Parts
  """The three largest parts of the peak, the largest first."""
  host_bytes: int
  """Part of the peak that stays in the host's memory with a GPU."""

  @property
  def gpu_bytes(self) -> int:
    """Part of the peak that lies in a GPU's memory if there is one."""
    return self.peak_bytes - self.host_bytes


def process_memory(config: TrainConfig) -> tuple[ProcessMemory, ...]:
  """Returns the process's memory; with Ray the driver's and a worker's."""
  sizes = tensor_bytes(config.model_shape()).values()
  weights = sum(sizes)
  sums = math.ceil(models_summed(config) * weights)
  num_state_tensors = config.server.step_cost().num_state_tensors
  process = _process_parts(config)
  at_client = client_memory.stages(config)
  state = process | {
    'weights': weights,
    'optimizer state': num_state_tensors * weights,
  }
  # Complete before the old state goes; the mean is made tensor by tensor.
  new_state = {'new weights and state': (1 + num_state_tensors) * weights}
  server_step = new_state | {'update': max(sizes)}
  earlier = {'sums of earlier clients': sums}
  server = _solve_stages(config, state)
  if config.evaluation.barrier_every_num_rounds:
    # Clients train once more, the old state and the new one beside them.
    server += [state | new_state | parts for parts in at_client]
  if config.engine.kind == 'in_process':
    in_parts = config.num_partial_sums > 1
    # A part's sum is there beside the sum of the parts before it.
    held = state | earlier | {'partial sums': in_parts * sums}
    stages = [held | parts for parts in at_client]
    if in_parts:
      # The sum so far, a part's, and the new sum.
      stages.append(state | {'partial sums': 3 * sums})
    stages.append(state | earlier | server_step)
    return (_at_peak('the process', stages + server),)
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
  worker = [held | parts for parts in at_client]
  worker.append(held | {'partial sums': 2 * sums})
  return (
    _at_peak('the driver', driver + server),
    _at_peak('each worker', worker),
  )


def models_summed(config: TrainConfig) -> float:
  """Returns the models over which the server forms sums."""
  if config.method.solve is not None:
    return 1
  return max(1, config.method.traffic(config).uplink)


def num_local_workers(config: TrainConfig) -> int:
  """Returns the workers beside the driver; those of a cluster are elsewhere."""
  engine = config.engine
  is_local = engine.kind == 'ray' and engine.ray_address == 'local'
  return engine.num_workers if is_local else 0


def run_bytes(config: TrainConfig) -> int:
  """Returns the most that all processes of a run take on this machine."""
  first, *others = process_memory(config)
  workers = sum(worker.peak_bytes for worker in others)
  return first.peak_bytes + num_local_workers(config) * workers


def _solve_stages(config, state):
  """Returns what a one-shot method's solve holds; [] for other methods."""
  if config.method.solve is None:
    return []
  weights = sum(tensor_bytes(config.model_shape()).values())
  num_clients = config.cohort_size or clients_of_corpus(config) or 1
  num_models = config.method.solve_models(config, num_clients)
  # The weights of the round are there beside the solution.
  models = {'models of the solve': int(num_models * weights)}
  models |= {'weights': weights, 'new weights': weights}
  return [state | models]


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


def _at_peak(name, stages):
  """Returns the memory of the stage that takes most."""
  parts = max(stages, key=lambda parts: sum(parts.values()))
  largest = sorted(parts, key=parts.get, reverse=True)[:_NUM_SHOWN_PARTS]
  shown = {part: parts[part] for part in largest if parts[part]}
  host = sum(parts.get(name, 0) for name in ('process', 'images'))
  return ProcessMemory(name, sum(parts.values()), shown, host)
