"""Draws the clients of a round, as a function of seed and round."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tff_fedfish.data import randomness


def draw_cohort(
  client_ids: Sequence[bytes],
  *,
  seed: int,
  round_num: int,
  cohort_size: int,
) -> list[bytes]:
  """Draws the clients of one round, uniformly and without replacement.

  A pure function: a resumed run, a replayed round and another process draw the
  same cohort. Takes time and memory proportional to `cohort_size`, whatever
  the number of clients.

  A smaller cohort is a prefix of a larger one with the same seed and round. A
  fixed sample of clients for evaluation is the cohort of round 0, which no
  training round uses.

  Args:
    client_ids: Participating clients in a fixed order, such as that of a
      grouped corpus; only the drawn entries are read, so it may be lazy.
    seed: The `cohort_seed`.
    round_num: The round, counted from 1; 0 for an evaluation sample.
    cohort_size: Clients to draw, 1 to `len(client_ids)`.

  Returns:
    `cohort_size` distinct client ids in the order of their draw.

  Raises:
    ValueError: If `cohort_size` is below 1 or above the number of clients.
  """
  if not 1 <= cohort_size <= len(client_ids):
    raise ValueError(
      f'`cohort_size` must be between 1 and {len(client_ids)}, the number of '
      f'clients, found {cohort_size}.'
    )
  order = draw_order(client_ids, seed=seed, round_num=round_num)
  return list(itertools.islice(order, cohort_size))


def draw_order(
  client_ids: Sequence[bytes], *, seed: int, round_num: int
) -> Iterator[bytes]:
  """Yields all clients in the order of their draw; see `draw_cohort`.

  Takes time and memory only for those that are asked for.
  """
  num_clients = len(client_ids)
  generator = randomness.generator('cohort', seed, round_num)
  # A Fisher-Yates shuffle of range(num_clients), as far as it is asked for.
  # `moved` holds the few positions that no longer hold their own index.
  moved = {}
  for step in range(num_clients):
    # int64 on every platform: the stream depends on the type.
    position = int(generator.randint(step, num_clients, dtype=np.int64))
    yield client_ids[moved.get(position, position)]
    moved[position] = moved.pop(step, step)
