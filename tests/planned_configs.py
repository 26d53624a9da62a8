"""Run configs small enough that what they take is counted by hand."""

import pathlib

from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig

_CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'


def shipped(name: str, **settings) -> TrainConfig:
  """Returns a config of configs/, with `section__setting=value` overrides."""
  return config_loading.load_config(
    _CONFIGS / f'{name}.py',
    [
      f'--config.{key.replace("__", ".")}={value}'
      for key, value in settings.items()
    ],
  )


def by_hand(**settings) -> TrainConfig:
  """Returns FedFish on a model of 180 weights, with overrides.

  Width 3, 1 head, 1 layer, 5 ids, 4 tokens:
  embeddings 5*3 + 4*3 = 27, norms 3 * (3 + 3) = 18, attention 3*9 + 9 = 36 and
  3*3 + 3 = 12, MLP 3*12 + 12 = 48 and 12*3 + 3 = 39: 180 in all.

  A round: 3 clients of at most 5 sequences, batches of 2 (3 to a pass), 2
  local epochs; 7 rounds.
  """
  values = dict(
    algorithm__name='fed_fish',
    client_work__num_local_epochs=2,
    client_work__local_batch_size=2,
    client_work__max_sequences_per_client=5,
    model__preset='custom',
    model__num_layers=1,
    model__width=3,
    model__num_heads=1,
    model__vocabulary_size=5,
    data__sequence_length=4,
    cohorts__cohort_size=3,
    training__num_rounds=7,
  )
  return shipped('demo', **values | settings)
