"""Communication of rounds, in models and in bytes.

Dhawan et al. (2024), section 5, count uploads. A method declares how many
models of float32 a client sends and receives in a round, and what quantized
deltas come with; downloads are counted in the totals. The few scalars that go
along are not counted.
"""

import dataclasses
import typing

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.methods.parts import Traffic
from tff_fedfish.rounds.compression import packed_bytes

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

# Of float32.
BYTES_PER_WEIGHT = 4


@dataclasses.dataclass(frozen=True)
class Communication:
  """Cumulative communication after some rounds; units are ints if whole."""

  uplink_units: int | float
  """Models uploaded by one client that takes part in every round."""
  total_units: int | float
  """Models uploaded and downloaded so far."""
  uplink_bytes: int
  """Bytes uploaded by all clients of all cohorts."""
  total_bytes: int
  """Bytes uploaded and downloaded so far."""

  @property
  def downlink_bytes(self) -> int:
    """Bytes downloaded by all clients of all cohorts."""
    return self.total_bytes - self.uplink_bytes


def of_client(config: 'TrainConfig') -> Traffic:
  """Returns the models that a client sends and receives in a round.

  What is quantized counts by its bytes.
  """
  traffic, method = config.method.traffic(config), config.method
  if not config.aggregation.is_quantized:
    return traffic
  shape = config.model_shape()
  num_bytes = packed_bytes(
    weight_shapes(shape).values(), config.aggregation.bits
  ) + method.quantized_extra_bytes(config)
  size = BYTES_PER_WEIGHT * num_parameters(shape)
  return traffic._replace(uplink=num_bytes / size)


def until_round(config: 'TrainConfig', num_rounds: int) -> Traffic:
  """Returns the models that a client sends and receives in the first rounds."""
  parts = []
  for phase in config.phases:
    last = num_rounds if phase.last_round is None else phase.last_round
    count = min(last, num_rounds) - phase.first_round + 1
    parts.append((max(count, 0), phase.method.traffic(config)))
  parts = parts or [(num_rounds, of_client(config))]
  return Traffic(
    sum(count * sent.uplink for count, sent in parts),
    sum(count * sent.downlink for count, sent in parts),
  )


def of_cohorts(
  traffic: Traffic, *, cohort_size: int, num_weights: int
) -> Communication:
  """Returns the communication of cohorts of clients.

  Args:
    traffic: Models that one client of each cohort sends and receives so far.
    cohort_size: Clients per round.
    num_weights: Trainable scalars of the model.
  """
  units = traffic.uplink, traffic.uplink + traffic.downlink
  bytes_per_unit = cohort_size * num_weights * BYTES_PER_WEIGHT
  return Communication(
    *(int(unit) if unit == int(unit) else unit for unit in units),
    *(round(unit * bytes_per_unit) for unit in units),
  )
