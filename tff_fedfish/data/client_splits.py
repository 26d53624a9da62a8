"""Splits clients into those that train and those held out, by a hash."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.client_ids import ChosenIds, ClientIds

_HASHED_AT_ONCE = 1 << 17


@dataclasses.dataclass(frozen=True)
class ClientSplit:
  """The clients of a corpus, each on one side, in the corpus's order."""

  participating: ChosenIds | list[bytes]
  """Clients that may be drawn in training. Like the others they are not copied
  where a corpus has them as `ClientIds`."""
  held_out: ChosenIds | list[bytes]
  """Clients that training never sees."""
  validation: ChosenIds | list[bytes] | tuple[()] = ()
  """Clients that training never sees, and that choose its best round."""


def split_clients(
  client_ids: Sequence[bytes],
  *,
  split_seed: int,
  held_out_fraction: float | None,
  own_held_out: Collection[bytes] = (),
  purpose: str = 'client_split',
) -> ClientSplit:
  """Splits clients into participating and held-out ones.

  Args:
    client_ids: The clients of a corpus.
    split_seed: The seed of the split.
    held_out_fraction: Probability that a client is held out, 0 to 1, for which
      its `split_position` is below it; either side can be empty. None: only
      `own_held_out` are held out.
    own_held_out: Clients that the corpus's own split holds out. They never
      participate. With a fraction they are on neither side: what is chosen by
      a fraction of the others has not seen them.
    purpose: Of the hash.

  Returns:
    Both sides, each in the order of `client_ids`.
  """
  is_own = np.zeros(len(client_ids), bool)
  if own_held_out:
    own = frozenset(own_held_out)
    is_own[:] = [client_id in own for client_id in client_ids]
  participating, held_out = ~is_own, is_own
  if held_out_fraction is not None:
    by_hash = _by_hash(client_ids, split_seed, held_out_fraction, purpose)
    participating, held_out = ~by_hash & ~is_own, by_hash & ~is_own
  return ClientSplit(
    _chosen(client_ids, participating), _chosen(client_ids, held_out)
  )


def with_validation(
  split: ClientSplit, split_seed: int, fraction: float
) -> ClientSplit:
  """Takes a fraction of the held-out clients, by a hash, for validation."""
  if not fraction:
    return split
  parts = split_clients(
    split.held_out,
    split_seed=split_seed,
    held_out_fraction=fraction,
    purpose='validation_clients',
  )
  return ClientSplit(split.participating, parts.participating, parts.held_out)


def split_position(client_id: bytes, *, split_seed: int) -> float:
  """Returns the client's place in [0, 1); it is held out below the fraction.

  It depends on the arguments alone: a client stays on its side when others join
  or leave the corpus, and one that is held out at a fraction is held out at
  every larger one.
  """
  return randomness.fraction('client_split', split_seed, client_id)


def _by_hash(client_ids, split_seed, held_out_fraction, purpose):
  """Returns bool [num_clients]: whether it is held out."""
  sides, left = [np.empty(0, bool)], iter(client_ids)
  while few := list(itertools.islice(left, _HASHED_AT_ONCE)):
    words = randomness.first_words(purpose, split_seed, few)
    # As `randomness.fraction` does it: 53 bits, exact in a double.
    sides.append((words >> np.uint64(11)) / 2.0**53 < held_out_fraction)
  return np.concatenate(sides)


def _chosen(client_ids, is_chosen) -> ChosenIds | list[bytes]:
  if isinstance(client_ids, ClientIds):
    return client_ids.where(is_chosen)
  return list(itertools.compress(client_ids, is_chosen))
