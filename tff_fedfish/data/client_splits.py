"""Splits clients into those that train and those held out."""

import dataclasses
from collections.abc import Collection, Iterable

from tff_fedfish.data import randomness


@dataclasses.dataclass(frozen=True)
class ClientSplit:
  """The clients of a corpus, each on one side, in the corpus's order."""

  participating: list[bytes]
  """Clients that may be drawn in training."""
  held_out: list[bytes]
  """Clients that training never sees."""


def is_held_out(
  client_id: bytes, *, split_seed: int, held_out_fraction: float
) -> bool:
  """Says whether a client is held out of training.

  The answer depends only on the arguments: a client stays on its side when
  others join or leave the corpus, and a client that is held out at one fraction
  is held out at every larger one.

  Args:
    client_id: The client.
    split_seed: The seed of the split.
    held_out_fraction: Probability of being held out, 0 to 1.

  Raises:
    ValueError: If the fraction is not between 0 and 1.
  """
  _check_fraction(held_out_fraction)
  return split_position(client_id, split_seed=split_seed) < held_out_fraction


def split_clients(
  client_ids: Iterable[bytes],
  *,
  split_seed: int,
  held_out_fraction: float | None,
  own_held_out: Collection[bytes] = (),
) -> ClientSplit:
  """Splits clients into participating and held-out ones.

  Args:
    client_ids: The clients of a corpus.
    split_seed: The seed of the split.
    held_out_fraction: Probability that a client is held out, 0 to 1, as
      `is_held_out` decides it; either side can be empty. None: only
      `own_held_out` are held out.
    own_held_out: Clients that the corpus's own split holds out. They never
      participate. With a fraction they are on neither side: what is chosen by
      a fraction of the others has not seen them.

  Returns:
    Both sides, each in the order of `client_ids`.

  Raises:
    ValueError: If the fraction is not between 0 and 1.
  """
  if held_out_fraction is not None:
    _check_fraction(held_out_fraction)
  own_held_out = frozenset(own_held_out)
  split = ClientSplit(participating=[], held_out=[])
  for client_id in client_ids:
    if client_id in own_held_out:
      if held_out_fraction is None:
        split.held_out.append(client_id)
      continue
    held_out = held_out_fraction is not None and is_held_out(
      client_id, split_seed=split_seed, held_out_fraction=held_out_fraction
    )
    (split.held_out if held_out else split.participating).append(client_id)
  return split


def split_position(client_id: bytes, *, split_seed: int) -> float:
  """Returns the client's place in [0, 1); it is held out below the fraction."""
  return randomness.fraction('client_split', split_seed, client_id)


def _check_fraction(held_out_fraction: float) -> None:
  if not 0.0 <= held_out_fraction <= 1.0:
    raise ValueError(
      '`held_out_fraction` must be between 0 and 1, found '
      f'{held_out_fraction}. It is a share of the clients, such as 0.1.'
    )
