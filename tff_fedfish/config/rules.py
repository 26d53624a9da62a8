"""Contradictions among settings, each of which is right by itself."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from models.image_model_config import IMAGE_MODELS
from tff_fedfish.config.data_settings import IMAGE_SCHEMES
from tff_fedfish.config.run_settings import TEXT_PRESETS
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.fields import either, problems_of_reading
from tff_fedfish.rounds.compression import FLOAT_BITS

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

# Below it there is no privacy, and its accounts overflow.
_MIN_NOISE = 0.01


def problems_of(config: 'TrainConfig') -> list[str]:
  """Returns a clause for each setting that contradicts another one."""
  problems, _ = _of_reading(config)
  for name, allowed, because in _rules(config):
    section, _, setting = name.partition('.')
    value = getattr(getattr(config, section), setting)
    if value not in allowed:
      problems.append(
        f'`config.{name}` must be {either(allowed)} {because}, found {value!r}'
      )
  problems += _limits(config)
  holds_images, sizes = config.data.holds_images, config.model.sizes.values()
  fits = holds_images == (config.model.preset in IMAGE_MODELS)
  if fits and (
    holds_images or None not in (*sizes, config.data.sequence_length)
  ):
    # Methods may ask for the model's shape.
    problems += list(_model(config)) or _method(config)
  return problems


def unread_required(config: 'TrainConfig') -> list[str]:
  """Returns a clause for each setting that must be given, but is not read."""
  return _of_reading(config)[1]


def _of_reading(config):
  sections = (getattr(config, f.name) for f in dataclasses.fields(config))
  found = [problems_of_reading(section, config) for section in sections]
  return [sum(clauses, []) for clauses in zip(*found, strict=True)]


def _rules(config) -> Iterator[tuple[str, tuple[Any, ...], str]]:
  """Yields (setting, allowed values, reason) for what other settings demand."""
  corpus = IMAGE_CORPORA.get(config.data.corpus)
  with_corpus = f'with corpus {config.data.corpus!r}'
  schemes = {
    None: (None, 'merge'),
    'own': (None,),
    'partition': IMAGE_SCHEMES,
    'either': (None, *IMAGE_SCHEMES),
  }
  clients = corpus and corpus.clients
  yield 'partition.scheme', schemes[clients], with_corpus
  presets = IMAGE_MODELS if corpus else TEXT_PRESETS
  yield 'model.preset', presets, with_corpus
  if config.partition.merges_groups:
    because = "with `config.partition.scheme` 'merge'"
    yield 'data.sampling', ('blocks',), because
  if sum(config.row_fractions) > 0:
    because = 'where clients keep rows for validation or tests'
    yield 'data.sampling', ('blocks',), because
  scores_held_out = config.method.personal(config) is None
  if config.client_splits.held_out_fraction == 0 and scores_held_out:
    because = 'when `config.client_splits.held_out_fraction` is 0'
    yield 'evaluation.num_clients', (0,), because
  name = config.algorithm.name
  if not scores_held_out:
    because = f'with algorithm.name {name!r}, which scores no held-out clients'
    yield 'client_splits.validation_clients_fraction', (0.0,), because
  if config.phases or config.algorithm.solve is not None:
    because = f'with algorithm.name {name!r}, whose last round is fixed'
    yield 'training.patience', (None,), because
  if not _has_tests(config):
    because = (
      'where clients have no test rows (set `client_splits.test_fraction`)'
    )
    yield 'client_splits.shuffles_targets', (False,), because
  if config.client_work.optimizer == 'sgd' and not config.client_work.momentum:
    because = "with optimizer 'sgd' without momentum, which has no moments"
    yield 'client_work.keeps_optimizer_state', (False,), because
  if config.client_work.num_local_steps is not None:
    by = 'with num_local_steps,'
    full = f'{by} whose batches are full anyway'
    yield 'data.client_batches', ('ragged',), full
    passes = f'{by} which goes through all blocks in passes'
    yield 'data.sampling', ('blocks',), passes
    counts = f'{by} which says how many sequences a round takes'
    yield 'client_work.num_local_epochs', (1,), counts
    yield 'client_work.max_sequences_per_client', (None,), counts
  if config.method.quantized_extra_bytes is None:
    because = f'with algorithm.name {name!r}, which declares no quantized delta'
    yield 'aggregation.bits', (FLOAT_BITS,), because
  if config.local_privacy.is_on:
    yield from _rules_of_privacy(config)


def _rules_of_privacy(config):
  if config.method.local_work is not None:
    name = config.algorithm.name
    because = f'with algorithm.name {name!r}, whose local work has no noise'
    yield 'local_privacy.clip_norm', (0.0,), because
  by = 'with local_privacy,'
  because = f'{by} which takes one row at a time'
  yield 'client_work.micro_batch_size', (None,), because
  because = f'{by} whose unit is a row that is the same in every round'
  yield 'data.sampling', ('blocks',), because
  if config.local_privacy.draws_batches:
    because = f"{by} whose sampling 'poisson' makes its own batches"
    yield 'data.client_batches', ('ragged',), because
    return
  because = f'{by} as a batch could hold a row twice'
  yield 'data.client_batches', ('ragged', 'full_only'), because
  because += " with sampling 'shuffled' (set `local_privacy.sampling`)"
  yield 'client_work.num_local_steps', (None,), because


def _has_tests(config):
  return config.row_fractions[1] > 0 or config.partition.has_twins


def _limits(config) -> Iterator[str]:
  """Yields clauses on numbers that other settings bound."""
  for settings in (config.client_work, config.server):
    is_exponential = settings.learning_rate_schedule == 'exponential'
    if is_exponential and not settings.final_fraction:
      yield (
        f'`config.{settings.section}.final_fraction` must be above 0 with '
        f"learning_rate_schedule 'exponential', found {settings.final_fraction}"
      )
  if config.model.preset == 'custom':
    for name, size in config.model.sizes.items():
      if size is None:
        yield f"`config.model.{name}` is required with preset 'custom'"
  if 0 < config.local_privacy.noise_multiplier < _MIN_NOISE:
    yield (
      '`config.local_privacy.noise_multiplier` must be 0 or at least '
      f'{_MIN_NOISE}, found {config.local_privacy.noise_multiplier}'
    )
  yield from _limits_of_clients(config)
  yield from _limits_of_rounds(config)


def _limits_of_clients(config):
  corpus = IMAGE_CORPORA.get(config.data.corpus)
  splits = 'config.client_splits'
  held_out_fraction = config.client_splits.held_out_fraction
  if held_out_fraction is None and not (corpus and corpus.holds_out):
    yield (
      f'`{splits}.held_out_fraction` must be a number with corpus '
      f'{config.data.corpus!r}, which holds nobody out itself, found None'
    )
  validation, test = config.row_fractions
  if validation + test >= 1:
    yield (
      f'`{splits}.validation_fraction` and `{splits}.test_fraction` must be '
      f'below 1 together, found {validation} and {test}'
    )
  if test > 0 and config.partition.has_twins:
    yield (
      f'`{splits}.test_fraction` must be 0 with `config.partition.held_out` '
      f"'matching', whose clients are tested on, found {test}"
    )
  if personal := config.method.personal(config):
    lacking = {
      'test_fraction': not _has_tests(config),
      'validation_fraction': personal.validates and not validation,
    }
    for name, lacks in lacking.items():
      if lacks:
        yield (
          f'`{splits}.{name}` must be above 0 with algorithm.name '
          f'{config.algorithm.name!r}, found 0.0'
        )


def _limits_of_rounds(config):
  num_parts = config.num_partial_sums
  if config.engine.kind == 'ray' and config.engine.num_workers > num_parts:
    yield (
      '`config.engine.num_workers` must be at most the number of parts into '
      f'which a cohort is divided, {num_parts}, found '
      f'{config.engine.num_workers}; raise `--config.engine.num_partial_sums` '
      'or `--config.cohorts.cohort_size`'
    )
  yield from _full_batches(config)


def _full_batches(config):
  """Yields a clause where a client's rows do not fill a batch."""
  work, batches = config.client_work, config.data.client_batches
  cap = work.max_sequences_per_client
  takes_some = batches != 'ragged' or config.local_privacy.is_on
  if work.num_local_steps is not None or not takes_some:
    return
  fills = cap is None or cap >= work.local_batch_size
  if not fills or (cap is None and batches == 'repeat_full'):
    reason = f'`config.data.client_batches` {batches!r}'
    if config.local_privacy.is_on:
      reason = 'local_privacy, which trains on full batches only'
    yield (
      '`config.client_work.max_sequences_per_client` must be at least '
      f'local_batch_size, {work.local_batch_size}, with {reason}, found {cap}'
    )


def _method(config):
  method = type(config.algorithm)
  if (name := config.algorithm.name) != vars(method).get('name'):
    return [
      '`config.algorithm` must be of the class of algorithm.name '
      f'{name!r}, found a {method.__name__}'
    ]
  return config.method.problems(config)


def _model(config):
  """Yields clauses on the shape of the model."""
  if config.data.holds_images:
    return
  try:
    shape = config.transformer_config()
  except ValueError as error:
    yield f'`config.model`: {str(error).rstrip(".")}'
    return
  if config.engine.xla and not shape.unrolls_layers:
    yield (
      '`config.engine.xla` must be false where the layers are looped over, '
      f'found true with {shape.num_layers} layers'
    )
