"""Bytes of a client's models, beside what its batches take.

A model is W = 4 N bytes. The method declares how many its clients hold
(`methods/method.py`).
"""

from tff_fedfish.optimizers import cost
from tff_fedfish.training.config import TrainConfig

Parts = dict[str, int]


def in_training(config: TrainConfig, model_bytes: int) -> Parts:
  """Returns what a client holds in its local steps, as part -> bytes.

  Args:
    config: The run's config.
    model_bytes: W.
  """
  num_models = config.method.cost(config).models_in_training
  num_moments = cost.of_settings(config.client_work).num_state_tensors
  return {
    **_held(model_bytes, num_models, _takes_slices(config)),
    'client optimizer state': num_moments * model_bytes,
  }


def after_training(config: TrainConfig, model_bytes: int) -> Parts:
  """Returns what a client holds after its local steps, as part -> bytes.

  The optimizer's state is gone, and the model delta is made last.

  Args:
    config: The run's config.
    model_bytes: W.
  """
  method_cost = config.method.cost(config)
  sums = method_cost.pass_after_training == 'batches' and _takes_slices(config)
  return _held(model_bytes, method_cost.models_after_training, sums)


def rows_at_a_time(config: TrainConfig) -> int:
  """Returns how many rows of a batch pass through the model at a time."""
  num_rows = config.client_work.max_batch_rows
  return min(num_rows, config.client_work.micro_batch_size or num_rows)


def _takes_slices(config):
  return config.client_work.micro_batch_size is not None


def _held(model_bytes, num_models, sums_gradients):
  return {
    'client weights': model_bytes,
    'models of the method': num_models * model_bytes,
    'sums over micro-batches': sums_gradients * model_bytes,
  }
