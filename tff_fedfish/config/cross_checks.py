"""Checks of a config across its sections, each of which is right by itself."""

import typing

from models.image_model_config import IMAGE_MODELS
from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish.config.privacy_settings import privacy_problems
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.methods.settings import settings_unlike

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

# Sequences of a client in a round, whose order lies in memory.
_MAX_STREAM = 10**8


def problems_of(config: 'TrainConfig') -> list[str]:
  """Returns a clause for each setting that does not go with another section."""
  return [
    *_problems_of_method(config),
    *_problems_of_clients(config),
    *_problems_of_rows(config),
    *_problems_of_steps(config),
    *privacy_problems(config),
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
  # Methods may ask for the model's shape, which then there is none.
  if _problems_of_model(config):
    return []
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
  if merges_groups:
    because = "with `config.partition.scheme` 'merge'"
    problems += settings_unlike(config, [('data.sampling', 'blocks')], because)
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
  scores_held_out = config.method.personal(config) is None
  if (
    held_out_fraction == 0 and scores_held_out and config.evaluation.num_clients
  ):
    problems.append(
      '`config.evaluation.num_clients` must be 0 when '
      '`config.client_splits.held_out_fraction` is 0, found '
      f'{config.evaluation.num_clients}'
    )
  return problems


def _problems_of_rows(config):
  """Says where the rows of clients cannot be divided as is set."""
  validation, test = config.row_fractions
  personal, splits = config.method.personal(config), 'config.client_splits'
  problems = []
  if validation + test >= 1:
    problems.append(
      f'`{splits}.validation_fraction` and `{splits}.test_fraction` must be '
      f'below 1 together, found {validation} and {test}'
    )
  if validation + test > 0:
    because = 'where clients keep rows for validation or tests'
    problems += settings_unlike(config, [('data.sampling', 'blocks')], because)
  if test > 0 and config.partition.has_twins:
    problems.append(
      f'`{splits}.test_fraction` must be 0 with `config.partition.held_out` '
      f"'matching', whose clients are tested on, found {test}"
    )
  has_tests = test > 0 or config.partition.has_twins
  if personal is not None and not has_tests:
    problems.append(
      f'`{splits}.test_fraction` must be above 0 with algorithm.name '
      f'{config.algorithm.name!r}, found {test}'
    )
  if personal is not None and personal.validates and not validation:
    problems.append(
      f'`{splits}.validation_fraction` must be above 0 with algorithm.name '
      f'{config.algorithm.name!r}, found {validation}'
    )
  if config.client_splits.shuffles_targets and not has_tests:
    problems.append(
      f'`{splits}.shuffles_targets` must be false where clients have no test '
      f'rows, found true; set `--{splits}.test_fraction`'
    )
  return problems


def _problems_of_steps(config):
  work, batches = config.client_work, config.data.client_batches
  cap = work.max_sequences_per_client
  if work.num_local_steps is None:
    if batches == 'ragged' or (cap is None and batches == 'full_only'):
      return []
    if cap is not None and cap >= work.local_batch_size:
      return []
    return [
      '`config.client_work.max_sequences_per_client` must be at least '
      f'local_batch_size, {work.local_batch_size}, with '
      f'`config.data.client_batches` {batches!r}, found {cap}'
    ]
  full = 'with num_local_steps, whose batches are full anyway'
  passes = 'with num_local_steps, which goes through all blocks in passes'
  says = 'with num_local_steps, which says how many sequences a round takes'
  problems = [
    *settings_unlike(config, [('data.client_batches', 'ragged')], full),
    *settings_unlike(config, [('data.sampling', 'blocks')], passes),
  ]
  if work.max_rows > _MAX_STREAM:
    problems.append(
      '`config.client_work.num_local_steps` times local_batch_size must be at '
      f'most {_MAX_STREAM} sequences, found {work.num_local_steps} times '
      f'{work.local_batch_size}'
    )
  unread = [('num_local_epochs', 1), ('max_sequences_per_client', None)]
  expected = [(f'client_work.{name}', wanted) for name, wanted in unread]
  return problems + settings_unlike(config, expected, says)


def _problems_of_model(config):
  preset, holds_images = config.model.preset, config.data.holds_images
  if holds_images != (preset in IMAGE_MODELS):
    fitting = (
      IMAGE_MODELS if holds_images else (*PRESETS, 'custom', FROM_DIRECTORY)
    )
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
