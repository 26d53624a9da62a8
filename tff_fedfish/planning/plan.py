"""Cost of a run, computed before it is started."""

import dataclasses
import math
import typing
from typing import Annotated, Any

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import client_steps, communication, flops, memory
from tff_fedfish.planning.client_states import StatesOnDisk, states_on_disk

if typing.TYPE_CHECKING:
  from tff_fedfish.planning.step_time import RoundTime


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Bytes sent, without scalars; labels are those of the printed table.

  Clients and server would send the first four in a deployment. The last three
  cross process borders here, where workers simulate clients: the weights once
  per machine, and one sum per part of a cohort back.
  """

  round_uplink_bytes: Annotated[int, 'up, a round']
  round_downlink_bytes: Annotated[int, 'down, a round']
  run_uplink_bytes: Annotated[int, 'up, {num_rounds:,} rounds']
  run_downlink_bytes: Annotated[int, 'down, {num_rounds:,} rounds']
  num_partial_sums: int
  """Parts into which a cohort is divided."""
  num_broadcasts: int
  """Machines that are sent the weights in a round: with `ray_address` 'local'
  one, on a cluster one per worker at most; 0 in process."""
  round_broadcast_bytes: Annotated[
    int, 'to workers, a round ({num_broadcasts} machines at most)'
  ]
  round_partial_sum_bytes: Annotated[
    int, 'from workers, a round ({num_partial_sums} partial sums)'
  ]
  largest_message_bytes: Annotated[
    int, 'largest message: the weights, or a partial sum'
  ]


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
  tokens_per_round: int
  """Targets of all clients and local epochs."""
  client_steps: client_steps.ClientSteps
  flops: flops.RoundFlops
  memory: tuple[memory.ProcessMemory, ...]
  """Memory by kind of process: one in process, driver and worker with Ray."""
  traffic: Traffic
  checkpoint_bytes: int
  """A checkpoint's weights and optimizer state on the disk."""
  time: 'RoundTime | None'
  """None if nothing was timed."""
  client_states: StatesOnDisk | None = None
  """None if clients keep nothing."""
  phases: tuple[str, ...] = ()
  """Line on each phase of the run; none where its rounds are of one kind. What
  is said of a round is that of the last phase."""

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

    time = step_time.round_time(config, step_time.step_seconds(config))
  shape = config.model_shape()
  return RoundPlan(
    num_weights=num_parameters(shape),
    num_tensors=len(weight_shapes(shape)),
    cohort_size=config.cohort_size,
    num_rounds=config.training.num_rounds,
    tokens_per_round=(config.cohort_size or 1) * tokens_per_client,
    client_steps=client_steps.of_config(config),
    flops=flops.of_round(config),
    memory=memory.of_config(config),
    traffic=traffic(config),
    checkpoint_bytes=communication.BYTES_PER_WEIGHT
    * num_parameters(shape)
    * (1 + config.server.step_cost().num_state_tensors),
    time=time,
    client_states=states_on_disk(config),
    phases=phase_lines(config),
  )


def traffic(config: TrainConfig) -> Traffic:
  """Returns the bytes that a run sends."""
  num_weights = num_parameters(config.model_shape())
  whole_run = communication.until_round(config, config.training.num_rounds)
  sent, round_traffic = {}, config.method.traffic(config)
  for name, of_client in (('round', round_traffic), ('run', whole_run)):
    found = communication.of_cohorts(
      of_client,
      cohort_size=config.cohort_size or 1,
      num_weights=num_weights,
    )
    sent[f'{name}_uplink_bytes'] = found.uplink_bytes
    sent[f'{name}_downlink_bytes'] = found.total_bytes - found.uplink_bytes
  model_bytes = communication.BYTES_PER_WEIGHT * num_weights
  engine, num_parts = config.engine, config.num_partial_sums
  crosses = engine.kind == 'ray'
  num_machines = 1 if engine.ray_address == 'local' else engine.num_workers
  models_summed = memory.models_summed(config)
  num_sent = round_traffic.downlink
  return Traffic(
    **sent,
    num_partial_sums=num_parts,
    num_broadcasts=crosses * num_machines,
    round_broadcast_bytes=int(crosses * num_machines * num_sent * model_bytes),
    round_partial_sum_bytes=crosses * num_parts * models_summed * model_bytes,
    largest_message_bytes=crosses
    * math.ceil(max(num_sent, models_summed) * model_bytes),
  )


def phase_lines(config: TrainConfig) -> tuple[str, ...]:
  """Returns a line on each phase: its rounds, and what a client sends."""
  lines, num_rounds = [], config.training.num_rounds
  for phase in config.phases:
    last = num_rounds
    if phase.last_round is not None:
      last = min(phase.last_round, num_rounds)
    if last >= phase.first_round:
      sent = phase.method.traffic(config)
      lines.append(
        f'Phase {phase.name!r}, rounds {phase.first_round} to {last}: '
        f'{sent.uplink:.4g} models up and {sent.downlink:.4g} down a round and '
        'client.'
      )
    elif phase.first_round > num_rounds:
      lines.append(
        f'Phase {phase.name!r} begins after the last round, {num_rounds}.'
      )
  return tuple(lines)
