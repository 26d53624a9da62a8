"""Clients' data of `make bench-engine`: tokens as frequent as words."""

import dataclasses

import numpy as np
import tensorflow as tf
from benchmarks.engine_settings import Workload

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient

_SEED = 11


def client_datasets(workload: Workload) -> list[tf.data.Dataset]:
  """Returns every client's batches, made as the trainer makes them."""
  return [client.load().data for client in client_loaders(workload)]


def client_loaders(workload: Workload) -> 'list[SyntheticClient]':
  """Returns what makes every client's batches."""
  return [
    SyntheticClient(workload, client) for client in range(workload.num_clients)
  ]


@dataclasses.dataclass(frozen=True)
class SyntheticClient(ClientLoader):
  """One of these clients, for a process that makes the data itself."""

  workload: Workload
  client: int

  def load(self) -> LoadedClient:
    """Returns the client's batches."""
    sequences = client_sequences(self.workload, self.client)
    batch_size = self.workload.local_batch_size
    return LoadedClient(sequences_lib.to_dataset(sequences, batch_size), {})


def client_sequences(workload: Workload, client: int) -> Sequences:
  """Returns full sequences of tokens drawn by Zipf's law.

  The id of rank r has a probability in proportion to 1 / r; every client ranks
  the ids in an order of its own.

  Args:
    workload: Says how many.
    client: The client's number; the data is a function of it.
  """
  generator = np.random.default_rng([_SEED, client])
  vocabulary_size = workload.transformer_config().vocabulary_size
  probabilities = 1 / np.arange(1, vocabulary_size + 1)
  num_rows = workload.num_local_steps * workload.local_batch_size
  tokens = generator.choice(
    generator.permutation(vocabulary_size),
    size=(num_rows, workload.sequence_length + 1),
    p=probabilities / probabilities.sum(),
  )
  return Sequences(
    tokens=tokens.astype(np.int32),
    num_targets=np.full(num_rows, workload.sequence_length, np.int32),
  )
