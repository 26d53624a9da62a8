"""Cost of a run: operations, bytes and, measured here, seconds."""

import dataclasses
import math
import typing
from typing import Any

from models.transformer_config import num_parameters, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import client_steps, disk, flops, memory, traffic

if typing.TYPE_CHECKING:
  from tff_fedfish.planning.step_time import MeasuredSeconds


@dataclasses.dataclass(frozen=True)
class RoundTime:
  """Seconds, extrapolated from steps that were timed on this machine.

  Without compiling, evaluations, checkpoints, reading data and, with worker
  processes, what crosses between them.
  """

  local_step_seconds: float
  """One local step of the whole model."""
  local_seconds: float
  """All local steps of a round, one client after the other."""
  after_training_seconds: float
  """The pass after training, and squares of gradients of local steps."""
  client_sums_seconds: float
  """Deltas and sums of all clients."""
  server_seconds: float
  """The server's mean and step."""
  round_seconds: float
  """A round; with workers, the clients' part as they share it."""
  run_seconds: float
  """All rounds."""
  measured_layers: tuple[int, ...]
  num_threads: int
  """As in `step_time.MeasuredSeconds`."""


@dataclasses.dataclass(frozen=True)
class RoundPlan:
  """Cost of a round at most: every client is taken to fill its cap."""

  num_weights: int
  """Scalars of the model."""
  num_tensors: int
  """Tensors that hold them."""
  cohort_size: int | None
  """Clients of a round. None: the corpus says how many; what follows is for one
  client per round."""
  num_rounds: int
  """Rounds of the run."""
  tokens_per_round: int
  """Targets of all clients and local epochs."""
  client_steps: client_steps.ClientSteps
  flops: flops.RoundFlops
  memory: tuple[memory.ProcessMemory, ...]
  """Memory by kind of process: one in process, driver and worker with Ray."""
  traffic: traffic.Traffic
  time: RoundTime | None
  """None if nothing was timed."""
  counting: disk.RowCounting | None = None
  """None if it is not needed, or the corpus is not there."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the plan as JSON values."""
    return dataclasses.asdict(self)


def plan_round(config: TrainConfig, *, timing: bool = True) -> RoundPlan:
  """Returns the cost of a round of a run, without its corpus or weights.

  Args:
    config: The run's config.
    timing: Whether to time steps on this machine, which imports TensorFlow
      and allocates a model of at most four layers. Otherwise the answer comes
      at once.

  Raises:
    UserError: If the model is one of images, or nothing bounds the sequences
      that a client trains on.
  """
  if config.data.holds_images:
    raise UserError(
      'A plan requires a transformer, but `config.model.preset` is '
      f'{config.model.preset!r}. `fedfish train --dry_run` says what its '
      'rounds send.'
    )
  tokens_per_client = client_steps.max_tokens_per_client(config)
  if tokens_per_client is None:
    raise UserError(
      'A plan requires a bound on the sequences of a client, but '
      '`config.client_work.max_sequences_per_client` and num_local_steps are '
      'both None. Give one of them.'
    )
  time = None
  if timing:
    from tff_fedfish.planning import step_time

    time = round_time(config, step_time.measure(config))
  shape = config.transformer_config()
  return RoundPlan(
    num_weights=num_parameters(shape),
    num_tensors=len(weight_shapes(shape)),
    cohort_size=config.cohort_size,
    num_rounds=config.training.num_rounds,
    tokens_per_round=(config.cohort_size or 1) * tokens_per_client,
    client_steps=client_steps.of_config(config),
    flops=flops.of_round(config),
    memory=memory.of_config(config),
    traffic=traffic.of_config(config),
    time=time,
    counting=disk.row_counting(config),
  )


def round_time(config: TrainConfig, measured: 'MeasuredSeconds') -> RoundTime:
  """Adds up a round from the seconds of its parts.

  Workers on one machine share its processor: a round is shorter only by what
  one process leaves idle, which is not known, so it is taken to be as long; but
  the last parts may leave workers without one. Workers on a cluster are taken
  to be machines like this one each.
  """
  steps, engine = client_steps.of_config(config), config.engine
  cohort_size = config.cohort_size or 1
  local = steps.num_local_steps * measured.local_step
  after_training = (
    steps.num_steps_after_training * measured.step_after_training
    + steps.num_observed_steps * measured.squared_gradient
  )
  # At the speed of one machine.
  clients_in_a_row = cohort_size
  if engine.kind == 'ray' and config.cohort_size is not None:
    num_parts = config.num_partial_sums
    num_turns = math.ceil(num_parts / engine.num_workers)
    clients_in_a_row = num_turns * cohort_size / num_parts
    if engine.ray_address == 'local':
      clients_in_a_row *= engine.num_workers
  client_seconds = local + after_training + measured.client_sums
  round_seconds = clients_in_a_row * client_seconds + measured.server
  return RoundTime(
    local_step_seconds=measured.local_step,
    local_seconds=cohort_size * local,
    after_training_seconds=cohort_size * after_training,
    client_sums_seconds=cohort_size * measured.client_sums,
    server_seconds=measured.server,
    round_seconds=round_seconds,
    run_seconds=config.training.num_rounds * round_seconds,
    measured_layers=measured.measured_layers,
    num_threads=measured.num_threads,
  )
