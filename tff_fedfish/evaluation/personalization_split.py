"""Splits a client's sequences or images for personalization.

Dhawan et al. (2024), FedFish, section 4: half of a held-out client's data is
for evaluation, always; 0, 25 or 50 % of its data, from the other half, is what
the model is fine-tuned on before. The 25 % set is a prefix of the 50 % set.
"""

import dataclasses
import math
from collections.abc import Mapping

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Rows

MIN_SEQUENCES = 4
"""Clients with fewer are not evaluated: their 25 % set would be empty."""


@dataclasses.dataclass(frozen=True)
class PersonalizationSplit:
  """One client's evaluation half and its personalization sets."""

  evaluation: Rows
  """The first ceil(n / 2) of the permuted sequences."""
  personalization: Mapping[float, Rows]
  """Rows by fraction of the client's data, without 0."""


def split_sequences(
  sequences: Rows,
  *,
  client_id: bytes,
  split_seed: int,
  fractions: tuple[float, ...] = (),
  max_sequences: int | None = None,
) -> PersonalizationSplit | None:
  """Splits sequences as a function of (split_seed, client_id).

  So are the seeds of the noise that images are fine-tuned under.

  Args:
    sequences: All of the client's.
    client_id: The client.
    split_seed: The seed.
    fractions: Shares of the client's data to fine-tune on, in [0, 0.5]. 0.5
      takes all that is not for evaluation, f below it the first floor(f n).
    max_sequences: Use at most so many sequences of the permutation; None: all.

  Returns:
    The split, or None for a client with fewer than `MIN_SEQUENCES`, or with too
    few for the smallest fraction.
  """
  if len(sequences) < MIN_SEQUENCES:
    return None
  permuted = sequences_lib.permute(
    sequences,
    # The first name of this module: another purpose would be another split.
    randomness.generator('client_halves', split_seed, client_id),
  )
  permuted = sequences_lib.take(permuted, max_sequences)
  num_sequences = len(permuted)
  num_evaluation = math.ceil(num_sequences / 2)
  pool = permuted.select(slice(num_evaluation, None))
  if pool.noise_seeds is not None:
    # Otherwise all clients would be fine-tuned under the same noise.
    pool = sequences_lib.with_noise(pool, split_seed, 0, client_id)
  if any(0 < f < 0.5 and f * num_sequences < 1 for f in fractions):
    return None
  personalization = {
    fraction: pool
    if fraction == 0.5
    else sequences_lib.take(pool, math.floor(fraction * num_sequences))
    for fraction in fractions
    if fraction > 0
  }
  return PersonalizationSplit(
    sequences_lib.take(permuted, num_evaluation), personalization
  )
