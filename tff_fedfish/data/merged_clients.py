"""Clients that are unions of groups, for training on few and large clients.

Client k of K has the sequences of the groups with hash(partition_seed, id)
mod K = k, group by group. A sequence is found by (group, row), so that memory
holds those of one round and the groups that `ClientSequences` keeps.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.client_splits import split_clients
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.row_counts import RowCounts, load_or_count
from tff_fedfish.data.sequences import ClientRows, Rows, Sequences


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


def owner(group_id: bytes, *, num_clients: int, partition_seed: int) -> int:
  """Returns the number of the client that a group belongs to.

  It is 0 to num_clients - 1 and depends only on the arguments: a group stays
  when others join or leave the corpus.
  """
  digest = randomness.digest('merge', partition_seed, group_id)
  return int.from_bytes(digest[:8], 'big') % num_clients


def open_merged_clients(
  corpus: GroupedCorpus,
  groups: ClientSequences,
  merge: Merge,
  *,
  on_start: Callable[[], None] = lambda: None,
  on_group: Callable[[], None] = lambda: None,
) -> 'MergedClients':
  """Returns the merged clients of a corpus.

  Args:
    corpus: The corpus.
    groups: The sequences of its groups.
    merge: Which of them become which clients.
    on_start: See `load_or_count`, which counts what is not kept.
    on_group: See `load_or_count`.

  Raises:
    UserError: If a group's examples cannot be read.
  """
  counts = load_or_count(
    corpus.content_digest,
    corpus.client_ids,
    groups,
    on_start=on_start,
    on_group=on_group,
  )
  participating = split_clients(
    corpus.client_ids,
    split_seed=merge.split_seed,
    held_out_fraction=merge.held_out_fraction,
    own_held_out=corpus.held_out,
  ).participating
  return MergedClients(
    groups,
    participating,
    counts.select(participating.positions),
    num_clients=merge.num_clients,
    partition_seed=merge.partition_seed,
  )


class MergedClients(ClientRows):
  """The sequences of merged clients. Thread safe."""

  def __init__(
    self,
    groups: ClientSequences,
    group_ids: Sequence[bytes],
    counts: RowCounts,
    *,
    num_clients: int,
    partition_seed: int,
  ):
    """Reads nothing yet.

    Args:
      groups: The sequences of the groups.
      group_ids: The groups to merge, in a fixed order.
      counts: Those of `group_ids`.
      num_clients: Clients to make.
      partition_seed: See `owner`.
    """
    self._groups = groups
    self._group_ids = group_ids
    self._counts = counts
    # As `owner` says it.
    hashes = randomness.first_words('merge', partition_seed, group_ids)
    owners = (hashes % np.uint64(num_clients)).astype(np.int64)
    by_owner = np.argsort(owners, kind='stable')
    limits = np.searchsorted(owners[by_owner], range(1, num_clients))
    self._members = dict(
      zip(client_ids(num_clients), np.split(by_owner, limits), strict=True)
    )

  def group_ids(self, client_id: bytes) -> list[bytes]:
    """Returns the groups of a client."""
    return [self._group_ids[i] for i in self._members[client_id]]

  def sequences(self, client_id: bytes) -> Sequences:
    """Returns all sequences of a client, group by group; see `ClientRows`."""
    rows = self._selectable(client_id)
    return rows.select(np.arange(len(rows)))

  def _selectable(self, client_id: bytes) -> '_UnreadRows':
    counts = self._counts.select(self._members[client_id])
    return _UnreadRows(
      groups=self._groups, group_ids=self.group_ids(client_id), counts=counts
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _UnreadRows(Rows):
  """All sequences of a client; only the groups of chosen ones are tokenized."""

  groups: ClientSequences
  group_ids: list[bytes]
  counts: RowCounts

  def __len__(self) -> int:
    return int(self.counts.num_rows.sum())

  @property
  def num_tokens(self) -> int:
    return int(self.counts.num_tokens.sum())

  def num_tokens_at(self, index: np.ndarray) -> int:
    """Returns the real tokens of rows that are not read; see `Rows`."""
    num_rows, num_tokens = self.counts.num_rows, self.counts.num_tokens
    # Only the last row of a group is shorter than the others.
    block_length = self.groups.sequence_length + 1
    found = np.full(len(self), block_length, np.int64)
    has_rows = num_rows > 0
    missing = num_rows * block_length - num_tokens
    found[np.cumsum(num_rows)[has_rows] - 1] -= missing[has_rows]
    return int(found[index].sum())

  def select(self, index: np.ndarray) -> Sequences:
    """Returns the sequences with some numbers, counted over all groups."""
    starts = np.concatenate([[0], np.cumsum(self.counts.num_rows)])
    tokens = np.empty([len(index), self.groups.sequence_length + 1], np.int32)
    num_targets = np.empty(len(index), np.int32)
    # An empty group starts where the next one does: the last is meant.
    of_rows = np.searchsorted(starts, index, side='right') - 1
    by_group = np.argsort(of_rows, kind='stable')
    changes = np.flatnonzero(np.diff(of_rows[by_group])) + 1
    for places in np.split(by_group, changes) if len(index) else ():
      group = of_rows[places[0]]
      found = self.groups.sequences(self.group_ids[group])
      if len(found) != self.counts.num_rows[group]:
        raise ValueError(
          f'Group {self.group_ids[group]!r} must have '
          f'{self.counts.num_rows[group]} sequences, as when they were '
          f'counted, but has {len(found)}: the corpus was changed.'
        )
      rows = index[places] - starts[group]
      tokens[places] = found.tokens[rows]
      num_targets[places] = found.num_targets[rows]
    return Sequences(
      tokens,
      num_targets,
      num_short_block_tokens=int(self.counts.num_short_block_tokens.sum()),
    )
