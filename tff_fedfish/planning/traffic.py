"""Bytes that the protocol sends, and bytes that cross process borders.

The protocol's are what a deployment would send between clients and server
(`communication.py`). Worker processes simulate clients, so they are sent less:
the weights once per machine, and one sum per part of the cohort back.
"""

import dataclasses

from models.model_shapes import num_parameters
from tff_fedfish import communication
from tff_fedfish.config.schema import TrainConfig


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Bytes sent in one round, and in the whole run, without scalars."""

  round_uplink_bytes: int
  """All clients of a round to the server."""
  round_downlink_bytes: int
  """The server to all clients of a round."""
  run_uplink_bytes: int
  run_downlink_bytes: int
  """The same of all rounds."""
  num_partial_sums: int
  """Parts into which a cohort is divided."""
  num_broadcasts: int
  """Machines that are sent the weights in a round: with `ray_address` 'local'
  one, on a cluster one per worker at most; 0 in process."""
  round_broadcast_bytes: int
  """Weights sent to worker processes in a round."""
  round_partial_sum_bytes: int
  """Partial accumulators sent back by worker processes in a round."""


def of_config(config: TrainConfig) -> Traffic:
  """Returns the traffic of a run."""
  num_weights = num_parameters(config.model_shape())
  one_round, all_rounds = (
    communication.after_rounds(
      num_rounds,
      traffic=config.method.traffic(config.algorithm),
      cohort_size=config.cohort_size or 1,
      num_weights=num_weights,
    )
    for num_rounds in (1, config.training.num_rounds)
  )
  engine, num_parts = config.engine, config.num_partial_sums
  crosses = engine.kind == 'ray'
  num_machines = 1 if engine.ray_address == 'local' else engine.num_workers
  num_broadcasts = crosses * num_machines
  one_model = communication.BYTES_PER_WEIGHT * num_weights
  return Traffic(
    round_uplink_bytes=one_round.uplink_bytes,
    round_downlink_bytes=one_round.total_bytes - one_round.uplink_bytes,
    run_uplink_bytes=all_rounds.uplink_bytes,
    run_downlink_bytes=all_rounds.total_bytes - all_rounds.uplink_bytes,
    num_partial_sums=num_parts,
    num_broadcasts=num_broadcasts,
    round_broadcast_bytes=num_broadcasts * one_model,
    round_partial_sum_bytes=crosses * num_parts * accumulator_bytes(config),
  )


def accumulator_bytes(config: TrainConfig) -> int:
  """Returns the size of the sums over clients."""
  num_models = config.method.cost(config).models_summed
  num_weights = num_parameters(config.model_shape())
  return num_models * communication.BYTES_PER_WEIGHT * num_weights
