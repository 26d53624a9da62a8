"""Bytes that the checkpoints of a run take on disk at most."""

from models.model_shapes import num_parameters
from tff_fedfish.communication import BYTES_PER_WEIGHT
from tff_fedfish.optimizers import cost
from tff_fedfish.training.config import TrainConfig


def checkpoint_bytes(config: TrainConfig) -> int:
  """Returns the bytes of all checkpoints of a run, at the moment of most.

  That is while the last one is written beside those that are kept: weights and
  the server optimizer's moments.

  Args:
    config: The run's config.
  """
  num_moments = cost.of_settings(config.server).num_state_tensors
  num_weights = num_parameters(config.model_shape())
  settings, num_rounds = config.checkpoints, config.training.num_rounds
  # Round 0 and the last, and those between.
  num_kept = 2
  if settings.every_num_rounds:
    num_kept += (num_rounds - 1) // settings.every_num_rounds
  if settings.keep_last:
    num_spaced = 0
    if settings.keep_every_num_rounds:
      num_spaced = num_rounds // settings.keep_every_num_rounds
    num_kept = min(num_kept, 2 + settings.keep_last + num_spaced)
  return num_kept * (1 + num_moments) * num_weights * BYTES_PER_WEIGHT
