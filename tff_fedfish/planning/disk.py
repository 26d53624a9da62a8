"""Disk that clients' tensors and features take, before a run is started."""

import contextlib
import dataclasses
from collections.abc import Sequence

from models.model_shapes import num_parameters
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import token_description, token_store
from tff_fedfish.data.places import StoreError
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.errors import UserError
from tff_fedfish.printing import format_bytes

FEATURE_BYTES = 2
"""Size of a feature, float16."""
_FLOAT_BYTES = _LABEL_BYTES = 4
_FLOAT64_BYTES = 8
_TEXT_BYTES_PER_TOKEN = 4


@dataclasses.dataclass(frozen=True)
class StatesOnDisk:
  """Expected size of the client states of a run."""

  client_bytes: int
  """Size of one client's state, without the names of its tensors."""
  num_clients: float | None
  """Clients that have taken part at the end. None, as is `peak_bytes`: the
  number of clients that may take part is not known."""
  peak_bytes: int | None
  """Largest size during the run: the newest states, and those that the last
  two checkpoints need."""

  def __str__(self) -> str:
    client = format_bytes(self.client_bytes)
    if self.num_clients is None:
      return f'{client} for each client that has taken part'
    return (
      f'up to {format_bytes(self.peak_bytes)}, {self.num_clients:,.0f} clients '
      f'of {client} at the end'
    )


def states_on_disk(
  config: TrainConfig, num_clients: int | None = None
) -> StatesOnDisk | None:
  """Returns the size of a run's client states; None if clients keep nothing.

  Of K clients, random cohorts of C reach K (1 - (1 - C / K)^r) in r rounds. A
  client that takes part before and after a checkpoint has two states until the
  next checkpoint but one. Without `num_clients`, K is that of the corpus.
  """
  if not config.kept_models:
    return None
  num_models = sum(config.kept_models.values())
  num_scalars = num_models * num_parameters(config.model_shape())
  client_bytes = int(num_scalars * _FLOAT_BYTES)
  if num_clients is None:
    num_clients = clients_of_corpus(config)
  if num_clients is None:
    return StatesOnDisk(client_bytes, None, None)
  cohort_size = min(config.cohort_size or num_clients, num_clients)
  num_rounds = config.training.num_rounds
  every = config.checkpoints.every_num_rounds or num_rounds

  def share_reached(num_rounds):
    return 1 - (1 - cohort_size / num_clients) ** num_rounds

  # Round of the last checkpoint but one.
  before = (num_rounds - 1) // every * every
  again = share_reached(before) * share_reached(num_rounds - before)
  earlier = share_reached(max(before - every, 0)) * share_reached(every)
  taking_part = num_clients * share_reached(num_rounds)
  # The cohort's states are written before what they supersede goes.
  num_states = taking_part + num_clients * (again + earlier) + cohort_size
  # Those of the best round.
  num_states += taking_part * config.checkpoints.keep_best
  return StatesOnDisk(client_bytes, taking_part, int(num_states * client_bytes))


def clients_of_corpus(config: TrainConfig) -> int | None:
  """Returns how many clients may take part; None if that is not known."""
  if config.partition.num_clients is not None:
    return config.partition.num_clients
  if config.data.holds_images:
    return None
  try:
    manifest = token_store.manifest_of(config.data.directory)
  except (UserError, StoreError):
    return None
  held_out = config.client_splits.held_out_fraction or 0.0
  return max(round(manifest.counts.num_groups * (1 - held_out)), 1)


def tokenized_corpus(config: TrainConfig) -> str:
  """Returns the estimated size of the corpus's tokens, and that of a token."""
  dtype = token_description.token_dtype(config.model.vocabulary_size)
  size = 'the corpus is not here'
  with contextlib.suppress(UserError, StoreError):
    shards = token_store.manifest_of(config.data.directory).shards
    num_bytes = sum(shard.num_bytes for shard in shards)
    num_tokens = num_bytes // _TEXT_BYTES_PER_TOKEN
    size = f'about {format_bytes(num_tokens * dtype.itemsize)}'
  return f'{size}; {dtype.itemsize} bytes per token'


def feature_bytes(
  config: TrainConfig, client_rows: ClientRows, clients: Sequence[bytes]
) -> int:
  """Returns the size of the features, labels and eigenbases of some clients."""
  num_features, max_gram_rows = config.method.features.sizes(config)
  total = 0
  for client_id in clients:
    rows = client_rows.training_sequences(
      client_id,
      shuffle_seed=config.seeds.shuffle_seed,
      round_num=1,
      max_sequences=config.client_work.max_sequences_per_client,
    )
    n = len(rows)
    total += n * (FEATURE_BYTES * num_features + _LABEL_BYTES)
    if n <= max_gram_rows:
      # Vectors, and two sums for each of them.
      total += _FLOAT64_BYTES * n * (n + 2)
  return total
