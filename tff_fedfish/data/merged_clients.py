"""Clients that are unions of groups, for training on few and large clients.

Client k of K has the sequences of the groups with hash(partition_seed, id)
mod K = k, group by group: a group stays when others join or leave the corpus.
They are read from a token store, which has the number of tokens of every group.
"""

import dataclasses

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.client_splits import split_clients
from tff_fedfish.data.sequences import ClientRows, Sequences
from tff_fedfish.data.stored_sequences import StoredSequences, StreamRows
from tff_fedfish.data.token_store import TokenStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merge:
  """A division of a corpus's groups among clients."""

  num_clients: int
  """K, >= 1. A client may get no group."""
  partition_seed: int
  """Seed of the hash."""
  split_seed: int
  """Held-out groups are no part of any client; see `split_clients`."""
  held_out_fraction: float
  """Fraction of the groups that are held out; see `split_clients`."""


def client_ids(num_clients: int) -> list[bytes]:
  """Returns the ids of merged clients, in their order."""
  return [b'merged-%05d' % number for number in range(num_clients)]


class MergedClients(ClientRows):
  """The sequences of merged clients. Thread safe."""

  def __init__(self, store: TokenStore, groups: StoredSequences, merge: Merge):
    """Reads nothing yet.

    Args:
      store: The tokenized corpus.
      groups: The sequences of its groups.
      merge: The groups of each client.
    """
    self._groups = groups
    participating = split_clients(
      store.client_ids,
      split_seed=merge.split_seed,
      held_out_fraction=merge.held_out_fraction,
    ).participating
    hashes = randomness.first_words(
      'merge', merge.partition_seed, participating
    )
    owners = (hashes % np.uint64(merge.num_clients)).astype(np.int64)
    by_owner = np.argsort(owners, kind='stable')
    limits = np.searchsorted(owners[by_owner], range(1, merge.num_clients))
    members = np.split(participating.positions[by_owner], limits)
    self._members = dict(
      zip(client_ids(merge.num_clients), members, strict=True)
    )
    self._group_ids = store.client_ids

  def group_ids(self, client_id: bytes) -> list[bytes]:
    """Returns the groups of a client."""
    return [self._group_ids[i] for i in self._members[client_id]]

  def sequences(self, client_id: bytes) -> Sequences:
    """Returns all sequences of a client, group by group; see `ClientRows`."""
    return self._selectable(client_id).all()

  def _selectable(self, client_id: bytes) -> StreamRows:
    return self._groups.rows_of(self._members[client_id])
