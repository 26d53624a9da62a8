"""Which clients are evaluated, in a fixed order, and their two halves.

Dhawan et al. (2024), FedFish, section 4: half of each held-out client's data is
kept for scoring. The model is fine-tuned on 0, 25 or 50 % of all data from the
other half; the 25 % set is a prefix of the 50 % set.

Text is halved by documents. Sequences are blocks of the joined text: halves of
these would score the rest of documents that the model was fine-tuned on.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.cohorts import draw_order
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.evaluation.options import MIN_SEQUENCES


@dataclasses.dataclass(frozen=True)
class Halves:
  """One client's evaluation half and its personalization sets."""

  evaluation: Rows
  """Rows of the first ceil(n / 2) of the permuted documents or sequences."""
  personalization: Mapping[float, Rows]
  """Rows by fraction f of the client's data, without 0: the next floor(f n)
  documents or sequences."""
  num_dropped_sequences: int = 0
  """Rows beyond `max_sequences`."""

  @property
  def num_sequences(self) -> int:
    """Rows that are read; a set is part of the largest one."""
    sets = map(len, self.personalization.values())
    return len(self.evaluation) + max(sets, default=0)


@dataclasses.dataclass(frozen=True)
class ClientSample:
  """Clients that are large enough, and the number of the others."""

  clients: list[tuple[bytes, Halves]]
  """In the order of the draw."""
  skipped: dict[str, int]
  """Clients left out, by reason."""


def choose_clients(
  client_ids: Sequence[bytes],
  client_rows: ClientRows,
  *,
  split_seed: int,
  split_unit: str | None,
  max_clients: int | None,
  fractions: tuple[float, ...] = (),
  max_sequences: int | None = None,
) -> ClientSample:
  """Returns the first clients of a fixed order that can be evaluated.

  A smaller sample is a prefix of a larger one: what training watches is part of
  what `fedfish evaluate` measures.

  Args:
    client_ids: The clients to choose from.
    client_rows: Their sequences or images.
    split_seed: Seed of the order and of every client's halves.
    split_unit: 'documents' or 'sequences': the unit in which text is halved.
      Not read with images.
    max_clients: Maximum number of clients. None: all that are large enough.
    fractions: See `halve_client`.
    max_sequences: See `halve_client`.
  """
  is_text = isinstance(client_rows, ClientSequences)
  unit = split_unit if is_text else 'sequences'
  clients = []
  num_too_small = 0
  for client_id in draw_order(client_ids, seed=split_seed, round_num=0):
    if max_clients is not None and len(clients) == max_clients:
      break
    halves = halve_client(
      client_rows,
      client_id,
      split_seed=split_seed,
      unit=unit,
      fractions=fractions,
      max_sequences=max_sequences,
    )
    if halves is None:
      num_too_small += 1
    else:
      clients.append((client_id, halves))
  return ClientSample(
    clients,
    {
      f'too_few_{unit}': num_too_small,
      'beyond_max_clients': len(client_ids) - num_too_small - len(clients),
    },
  )


def halve_client(
  client_rows: ClientRows,
  client_id: bytes,
  *,
  split_seed: int,
  unit: str,
  fractions: tuple[float, ...] = (),
  max_sequences: int | None = None,
) -> Halves | None:
  """Halves a client's data as a function of (split_seed, client_id).

  So is the noise that images are fine-tuned under.

  Args:
    client_rows: Rows of all clients; of text, also their documents.
    client_id: The client.
    split_seed: The seed.
    unit: 'documents' or 'sequences', which are permuted and halved.
    fractions: Fractions of the client's data to fine-tune on, in [0, 0.5].
    max_sequences: M, maximum number of sequences. With 'sequences' the first M
      of the permutation are halved. With 'documents' the evaluation half keeps
      its first ceil(M / 2) sequences, the set of a fraction f its first
      floor(f M). None: no maximum.

  Returns:
    The halves. None for a client with fewer than `MIN_SEQUENCES` units, or with
    an empty set.
  """
  order, build = _permuted(client_rows, client_id, split_seed, unit)
  if len(order) < MIN_SEQUENCES:
    return None
  limit = sys.maxsize if max_sequences is None else max_sequences
  num_dropped = 0
  if unit == 'sequences':
    num_dropped = max(len(order) - limit, 0)
    order = order[:limit]
  half = math.ceil(len(order) / 2)
  evaluation = sequences_lib.take(build(order[:half]), math.ceil(limit / 2))
  personalization = {}
  for fraction in (f for f in fractions if f > 0):
    rows = build(order[half : half + math.floor(fraction * len(order))])
    rows = sequences_lib.take(rows, math.floor(fraction * limit))
    if rows.noise_seeds is not None:
      # Otherwise all clients would be fine-tuned under the same noise.
      rows = sequences_lib.with_noise(rows, split_seed, 0, client_id)
    personalization[fraction] = rows
  if not all(map(len, (evaluation, *personalization.values()))):
    return None
  cut = (rows.num_dropped_sequences for rows in personalization.values())
  num_dropped += evaluation.num_dropped_sequences + max(cut, default=0)
  return Halves(evaluation, personalization, num_dropped)


def _permuted(client_rows, client_id, split_seed, unit):
  """Returns positions of a client's units, and what builds rows of some."""
  if unit == 'documents':
    documents = client_rows.documents(client_id)
    # With the name below, purposes that never change: they make the halves.
    generator = randomness.generator(
      'client_document_halves', split_seed, client_id
    )
    return generator.permutation(
      len(documents)
    ), lambda chosen: client_rows.build(
      [documents[position] for position in chosen]
    )
  rows = client_rows.sequences(client_id)
  generator = randomness.generator('client_halves', split_seed, client_id)
  return generator.permutation(len(rows)), rows.select
