"""Learning rates of a round, of clients and server.

A round's rates follow from the config and the round's number. They are set on
the state before the round, whatever it holds: a run that is resumed goes on as
if it had not stopped.
"""

from typing import TYPE_CHECKING, Any

from tff_fedfish.config.optimizer_settings import OptimizerSettings
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.optimizers import schedules

if TYPE_CHECKING:
  import tensorflow_federated as tff

_COLUMNS = {
  'client_work': 'train/client_learning_rate',
  'server': 'train/server_learning_rate',
}


def rates_by_column(config: TrainConfig, round_num: int) -> dict[str, float]:
  """Returns the columns of metrics.csv with the rates that vary.

  Args:
    config: The run's config.
    round_num: The round, >= 1.
  """
  return {
    column: _rate(getattr(config, section), round_num)
    for section, column in _COLUMNS.items()
    if getattr(config, section).varies_learning_rate
  }


def with_rates(
  process: 'tff.learning.templates.LearningProcess',
  state: Any,
  config: TrainConfig,
  round_num: int,
) -> Any:
  """Returns the state with the learning rates of the round that follows it.

  Args:
    process: The run's learning process.
    state: Its state; the rates that it holds are not read.
    config: The run's config.
    round_num: The round, >= 1.

  Returns:
    The state; the same object where all rates are constant.
  """
  slots = {
    slot: _rate(settings, round_num)
    for slot, settings in (
      ('client_work', config.client_work),
      ('finalizer', config.server),
    )
    if settings.varies_learning_rate
  }
  if not slots:
    return state
  # Late: columns and rates are asked for without TensorFlow, too.
  import tensorflow as tf

  hparams = process.get_hparams(state)
  for slot, rate in slots.items():
    # A tensor: with it the state that is returned stays tensors, too.
    hparams[slot]['learning_rate'] = tf.constant(rate, tf.float32)
  return process.set_hparams(state, hparams)


def _rate(settings: OptimizerSettings, round_num: int) -> float:
  return schedules.learning_rate(
    settings.learning_rate,
    round_num,
    schedule=settings.learning_rate_schedule,
    warmup_rounds=settings.warmup_rounds,
    schedule_rounds=settings.schedule_rounds,
    final_fraction=settings.final_fraction,
  )
