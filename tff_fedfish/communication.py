"""What a round communicates, in models and in bytes.

Dhawan et al. (2024), FedFish, count uploads: FedAvg sends one model of float32
per client and round, FedFish two (w F delta and w F). Downloads are one model
for both; they are counted in the totals. The few scalars that go along are not
counted.
"""

import dataclasses

# Models that a client uploads in a round.
UPLINK_UNITS = {'fed_avg': 1, 'fed_fish': 2}
_DOWNLINK_UNITS = 1
# Of float32.
BYTES_PER_WEIGHT = 4


@dataclasses.dataclass(frozen=True)
class Communication:
  """Cumulative communication after some rounds."""

  uplink_units: int
  """Models uploaded by one client that takes part in every round."""
  total_units: int
  """Models uploaded and downloaded, likewise."""
  uplink_bytes: int
  """Bytes uploaded by all clients of all cohorts."""
  total_bytes: int
  """Bytes uploaded and downloaded, likewise."""


def after_rounds(
  num_rounds: int, *, algorithm: str, cohort_size: int, num_weights: int
) -> Communication:
  """Returns what `num_rounds` rounds have communicated.

  Args:
    num_rounds: Rounds so far, >= 0.
    algorithm: A key of `UPLINK_UNITS`.
    cohort_size: Clients per round.
    num_weights: Trainable scalars of the model.
  """
  uplink = num_rounds * UPLINK_UNITS[algorithm]
  total = uplink + num_rounds * _DOWNLINK_UNITS
  bytes_per_unit = cohort_size * num_weights * BYTES_PER_WEIGHT
  return Communication(
    uplink, total, uplink * bytes_per_unit, total * bytes_per_unit
  )
