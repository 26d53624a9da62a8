"""What settings of different sections require of each other."""

import typing

from models.image_model_config import IMAGE_MODELS
from models.presets import PRESETS
from tff_fedfish.training.image_corpora import IMAGE_CORPORA

if typing.TYPE_CHECKING:
  from tff_fedfish.training.config import TrainConfig


def problems_of(config: 'TrainConfig') -> list[str]:
  """Returns one clause for each problem, naming `config.section.setting`.

  Args:
    config: A config each of whose sections is right by itself.
  """
  return [
    *_problems_of_clients(config),
    *_problems_of_model(config),
    *_problems_of_engine(config),
  ]


def _problems_of_clients(config):
  """Says where the clients cannot come from what is set."""
  name, scheme = config.data.corpus, config.partition.scheme
  held_out_fraction = config.client_splits.held_out_fraction
  clients = IMAGE_CORPORA[name].clients if config.data.holds_images else 'own'
  problems = []
  if clients == 'partition' and scheme is None:
    problems.append(
      f'`config.partition.scheme` is required with corpus {name!r}, which has '
      'no clients of its own'
    )
  if clients == 'own' and scheme is not None:
    problems.append(
      f'`config.partition.scheme` must be left out with corpus {name!r}, which '
      f'has clients of its own, found {scheme!r}'
    )
  if held_out_fraction is None and not config.data.holds_images:
    problems.append(
      '`config.client_splits.held_out_fraction` must be a number with corpus '
      f'{name!r}, which holds nobody out itself, found None'
    )
  if held_out_fraction == 0 and config.evaluation.num_clients:
    problems.append(
      '`config.evaluation.num_clients` must be 0 when '
      '`config.client_splits.held_out_fraction` is 0, found '
      f'{config.evaluation.num_clients}'
    )
  return problems


def _problems_of_model(config):
  preset, holds_images = config.model.preset, config.data.holds_images
  if holds_images != (preset in IMAGE_MODELS):
    fitting = IMAGE_MODELS if holds_images else (*PRESETS, 'custom')
    return [
      f'`config.model.preset` must be one of {", ".join(fitting)} with corpus '
      f'{config.data.corpus!r}, found {preset!r}'
    ]
  if holds_images:
    if config.engine.xla:
      return [
        '`config.engine.xla` must be false with an image model, found true'
      ]
    return []
  try:
    shape = config.transformer_config()
  except ValueError as error:
    return [f'`config.model`: {str(error).rstrip(".")}']
  if config.engine.xla and not shape.unrolls_layers:
    return [
      '`config.engine.xla` must be false where the layers are looped over, '
      f'found true with {shape.num_layers} layers; set '
      '`--config.model.layer_loop=unrolled` to have it'
    ]
  return []


def _problems_of_engine(config):
  num_parts = config.num_partial_sums
  if config.engine.kind == 'ray' and config.engine.num_workers > num_parts:
    return [
      '`config.engine.num_workers` must be at most the number of parts into '
      f'which a cohort is divided, {num_parts}, found '
      f'{config.engine.num_workers}; raise `--config.engine.num_partial_sums` '
      'or `--config.cohorts.cohort_size`'
    ]
  return []
