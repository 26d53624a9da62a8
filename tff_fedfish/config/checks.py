"""Requirements between settings of different sections."""

import typing

from models.image_model_config import IMAGE_MODELS
from models.transformer_config import PRESETS
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

# Sequences of a client in a round, whose order lies in memory.
_MAX_STREAM = 10**8


def problems_of(config: 'TrainConfig') -> list[str]:
  """Returns one clause for each problem, naming `config.section.setting`.

  Args:
    config: A config each of whose sections is right by itself.
  """
  return [
    *_problems_of_method(config),
    *_problems_of_clients(config),
    *_problems_of_steps(config),
    *_problems_of_model(config),
    *_problems_of_engine(config),
  ]


def _problems_of_method(config):
  expected, found = config.method.settings, type(config.algorithm)
  if found is not expected:
    return [
      f'`config.algorithm` must be a {expected.__name__} with algorithm.name '
      f'{config.algorithm.name!r}, found a {found.__name__}'
    ]
  return config.method.problems(config)


def _problems_of_clients(config):
  """Says where the clients cannot come from what is set."""
  name, scheme = config.data.corpus, config.partition.scheme
  held_out_fraction = config.client_splits.held_out_fraction
  corpus = IMAGE_CORPORA.get(name)
  clients = corpus.clients if corpus else 'own'
  merges_groups = config.partition.merges_groups
  problems = []
  if merges_groups and corpus:
    problems.append(
      "`config.partition.scheme` 'merge' requires a corpus of text, found "
      f'corpus {name!r}'
    )
  if clients == 'partition' and scheme is None:
    problems.append(
      f'`config.partition.scheme` is required with corpus {name!r}, which has '
      'no clients of its own'
    )
  if clients == 'own' and scheme is not None and not merges_groups:
    choices = 'left out' if corpus else "left out or 'merge'"
    problems.append(
      f'`config.partition.scheme` must be {choices} with corpus {name!r}, '
      f'which has clients of its own, found {scheme!r}'
    )
  if held_out_fraction is None and not (corpus and corpus.holds_out):
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


def _problems_of_steps(config):
  work = config.client_work
  if work.num_local_steps is None:
    return []
  problems = []
  if work.max_rows > _MAX_STREAM:
    problems.append(
      '`config.client_work.num_local_steps` times local_batch_size must be at '
      f'most {_MAX_STREAM} sequences, found {work.num_local_steps} times '
      f'{work.local_batch_size}'
    )
  return problems + [
    f'`config.client_work.{name}` must be {wanted} with num_local_steps, which '
    f'says how many sequences a round takes, found {found}'
    for name, wanted in (
      ('num_local_epochs', 1),
      ('max_sequences_per_client', None),
    )
    if (found := getattr(work, name)) != wanted
  ]


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
