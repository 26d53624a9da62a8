"""Communication of rounds, in models and in bytes.

Dhawan et al. (2024), section 5, count uploads. A method declares how many
models of float32 a client sends and receives in a round; downloads are counted
in the totals. The few scalars that go along are not counted.
"""

import dataclasses
import typing

from tff_fedfish.methods.method import Traffic

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

# Of float32.
BYTES_PER_WEIGHT = 4


@dataclasses.dataclass(frozen=True)
class Communication:
  """Cumulative communication after some rounds."""

  uplink_units: int | float
  """Models uploaded by one client that takes part in every round."""
  total_units: int | float
  """Models uploaded and downloaded so far."""
  uplink_bytes: int
  """Bytes uploaded by all clients of all cohorts."""
  total_bytes: int
  """Bytes uploaded and downloaded so far."""


def until_round(config: 'TrainConfig', num_rounds: int) -> Traffic:
  """Returns the models that a client sends and receives in the first rounds."""
  parts = []
  for phase in config.phases:
    last = num_rounds if phase.last_round is None else phase.last_round
    count = min(last, num_rounds) - phase.first_round + 1
    parts.append((max(count, 0), phase.method.traffic(config)))
  parts = parts or [(num_rounds, config.method.traffic(config))]
  return Traffic(
    sum(count * sent.uplink for count, sent in parts),
    sum(count * sent.downlink for count, sent in parts),
  )


def phase_lines(config: 'TrainConfig') -> tuple[str, ...]:
  """Returns a line on each phase: its rounds, and what a client sends."""
  lines, num_rounds = [], config.training.num_rounds
  for phase in config.phases:
    last = num_rounds
    if phase.last_round is not None:
      last = min(phase.last_round, num_rounds)
    if last < phase.first_round:
      if phase.first_round > num_rounds:
        lines.append(
          f'Phase {phase.name!r} begins after the last round, {num_rounds}.'
        )
      continue
    sent = phase.method.traffic(config)
    lines.append(
      f'Phase {phase.name!r}, rounds {phase.first_round} to {last}: '
      f'{sent.uplink:.4g} models up and {sent.downlink:.4g} down a round and '
      'client.'
    )
  return tuple(lines)


def after_rounds(
  num_rounds: int,
  *,
  traffic: Traffic,
  cohort_size: int,
  num_weights: int,
  num_downloads: int | None = None,
) -> Communication:
  """Returns what `num_rounds` rounds have communicated.

  Args:
    num_rounds: Rounds so far, >= 0.
    traffic: Models that a client sends and receives in a round.
    cohort_size: Clients per round.
    num_weights: Trainable scalars of the model.
    num_downloads: Models that all clients were sent in these rounds. None: as
      `traffic` says.

  Returns:
    The totals; units are ints where they are whole.
  """
  uplink = num_rounds * traffic.uplink
  downlink = num_rounds * traffic.downlink
  if num_downloads is not None:
    downlink = num_downloads / cohort_size
  total = uplink + downlink
  bytes_per_unit = cohort_size * num_weights * BYTES_PER_WEIGHT
  return Communication(
    _whole(uplink),
    _whole(total),
    round(uplink * bytes_per_unit),
    round(total * bytes_per_unit),
  )


def _whole(units):
  return int(units) if units == int(units) else units
