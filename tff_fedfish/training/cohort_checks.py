"""Checks that a corpus has the clients that a config asks for."""

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.errors import UserError
from tff_fedfish.run.row_source import row_source

# Clients whose affinity to each other each of them keeps.
_MAX_AFFINITIES = 4096


def require_groups(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError unless there are as many groups as merged clients."""
  num_clients = config.partition.num_clients
  num_groups = len(split.participating)
  if config.partition.merges_groups and num_clients > num_groups:
    raise UserError(
      f'`--config.partition.num_clients` is {num_clients}, but only '
      f'{num_groups} groups of {config.data.directory!r} are not held out. '
      'Lower num_clients, or hold out a smaller '
      '`--config.client_splits.held_out_fraction`.'
    )


def require_cohort(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError unless the participating clients make a cohort."""
  cohort_size = config.cohorts.cohort_size
  num_clients = len(row_source(config).training_clients(split))
  if not num_clients:
    raise UserError(
      f'{config.data.directory!r} must have clients to train on, but has none '
      'that is not held out. Lower `--config.client_splits.held_out_fraction`.'
    )
  remedy = 'group the corpus by a finer key'
  if config.partition.scheme is not None:
    remedy = 'raise `--config.partition.num_clients`'
  elif config.data.holds_images:
    remedy = 'hold out a smaller `--config.client_splits.held_out_fraction`'
  if cohort_size is not None and cohort_size > num_clients:
    raise UserError(
      f'`--config.cohorts.cohort_size` is {cohort_size}, but only '
      f'{num_clients} participating clients exist in '
      f'{config.data.directory!r}. Lower cohort_size, or {remedy}.'
    )


def require_held_out_clients(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError where clients are to be scored and none is held out."""
  if config.method.personal(config) is not None:
    return
  validation = config.client_splits.validation_clients_fraction
  if validation and not (split.held_out and split.validation):
    raise UserError(
      f'`--config.client_splits.validation_clients_fraction` is {validation}, '
      f'which leaves {len(split.validation)} validation clients and '
      f'{len(split.held_out)} others of the held-out clients in '
      f'{config.data.directory!r}. Change it, or raise '
      '`--config.client_splits.held_out_fraction`.'
    )
  if config.evaluation.num_clients and not split.held_out:
    raise UserError(
      '`--config.evaluation.num_clients` is '
      f'{config.evaluation.num_clients}, but of {len(split.participating)} '
      f'clients in {config.data.directory!r} none is held out. Raise '
      '`--config.client_splits.held_out_fraction`, or set num_clients to 0.'
    )


def require_downloads(config: TrainConfig, split: ClientSplit) -> None:
  """Raises UserError where clients cannot be sent the models that are set."""
  personal = config.method.personal(config)
  if personal is None or personal.downloads is None:
    return
  num_clients = len(row_source(config).training_clients(split))
  if num_clients > _MAX_AFFINITIES:
    raise UserError(
      f'algorithm.name {config.algorithm.name!r} takes at most '
      f'{_MAX_AFFINITIES} participating clients, as each keeps a number for '
      f'every other, but {config.data.directory!r} has {num_clients}. Raise '
      '`--config.client_splits.held_out_fraction`, or lower '
      '`--config.partition.num_clients`.'
    )
  num_models, num_others = personal.downloads.num_models, num_clients - 1
  if num_models > num_others:
    raise UserError(
      f'`--config.algorithm.num_downloads` is {num_models}, but a client can '
      f'be sent models of only {num_others} other participating clients of '
      f'{config.data.directory!r}. Lower num_downloads.'
    )
