"""Bytes that the protocol sends, and bytes that cross process borders.

The protocol's are what a deployment would send between clients and server
(`communication.py`). Worker processes simulate clients beside each other, so
what they are sent is less: the weights once per machine, and the sum over the
clients of a partial sum instead of every client's update.
"""

import dataclasses

from models.model_shapes import num_parameters
from tff_fedfish import communication
from tff_fedfish.training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Traffic:
  """What one round, and the whole run, send. Scalars are not counted."""

  round_uplink_bytes: int
  """All clients of a round to the server."""
  round_downlink_bytes: int
  """The server to all clients of a round."""
  run_uplink_bytes: int
  """The same of all rounds."""
  run_downlink_bytes: int
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
  """Returns what a run sends.

  Args:
    config: The run's config.
  """
  num_weights = num_parameters(config.model_shape())
  counts = [
    communication.after_rounds(
      num_rounds,
      traffic=config.method.traffic(config.algorithm),
      cohort_size=config.cohort_size or 1,
      num_weights=num_weights,
    )
    for num_rounds in (1, config.training.num_rounds)
  ]
  one_model = communication.BYTES_PER_WEIGHT * num_weights
  crosses = config.engine.kind == 'ray'
  num_parts = config.num_partial_sums
  num_broadcasts = 0
  if crosses:
    is_one_machine = config.engine.ray_address == 'local'
    num_broadcasts = 1 if is_one_machine else config.engine.num_workers
  return Traffic(
    round_uplink_bytes=counts[0].uplink_bytes,
    round_downlink_bytes=counts[0].total_bytes - counts[0].uplink_bytes,
    run_uplink_bytes=counts[1].uplink_bytes,
    run_downlink_bytes=counts[1].total_bytes - counts[1].uplink_bytes,
    num_partial_sums=num_parts,
    num_broadcasts=num_broadcasts,
    round_broadcast_bytes=num_broadcasts * one_model,
    round_partial_sum_bytes=crosses * num_parts * accumulator_bytes(config),
  )


def accumulator_bytes(config: TrainConfig) -> int:
  """Returns the size of the sums over clients."""
  units = config.method.cost(config).models_summed
  num_weights = num_parameters(config.model_shape())
  return units * communication.BYTES_PER_WEIGHT * num_weights
