"""Held-out clients before and after fine-tuning on a part of their data.

Dhawan et al. (2024), FedFish, section 4: half of a held-out client's data is
for evaluation, always; 0, 25 or 50 % of its data, from the other half, is what
the model is fine-tuned on before. The 25 % set is a prefix of the 50 % set.
Halves of text are made of documents: were they made of sequences, blocks of the
joined text, most of what is scored would be the rest of a document that the
model was fine-tuned on.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Rows
from tff_fedfish.evaluation.results import ClientEvaluation

if TYPE_CHECKING:
  from tff_fedfish.evaluation.client_evaluator import ClientEvaluator

MIN_SEQUENCES = 4
"""Clients with fewer sequences, or documents, are not evaluated: their 25 % set
would be empty."""


@dataclasses.dataclass(frozen=True)
class PersonalizationSplit:
  """One client's evaluation half and its personalization sets."""

  evaluation: Rows
  """Rows of the first ceil(n / 2) of the permuted documents or sequences."""
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
    fractions: Fractions of the client's data to fine-tune on, in [0, 0.5]. 0.5
      takes all that is not for evaluation, f below it the first floor(f n).
    max_sequences: Use at most so many sequences of the permutation; None: all.

  Returns:
    The split, or None for a client with fewer than `MIN_SEQUENCES`, or with too
    few for the smallest fraction.
  """
  if len(sequences) < MIN_SEQUENCES:
    return None
  # The first name of this module: another purpose would be another split.
  generator = randomness.generator('client_halves', split_seed, client_id)
  permuted = sequences.select(generator.permutation(len(sequences)))
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


def split_documents(
  documents: Sequence[np.ndarray],
  build: Callable[[Sequence[np.ndarray]], Rows],
  *,
  client_id: bytes,
  split_seed: int,
  fractions: tuple[float, ...] = (),
  max_sequences: int | None = None,
) -> PersonalizationSplit | None:
  """Splits documents as a function of (split_seed, client_id).

  Args:
    documents: All of the client's.
    build: Returns the sequences of some documents.
    client_id: The client.
    split_seed: The seed.
    fractions: Fractions of the client's n documents to fine-tune on, in [0,
      0.5]. 0.5 takes all that are not for evaluation, f below it the first
      floor(f n).
    max_sequences: M. The evaluation set keeps its first ceil(M / 2) sequences,
      the set of a fraction f its first floor(f M). None: all.

  Returns:
    The split, or None for a client with fewer than `MIN_SEQUENCES` documents,
    or with too few for the smallest fraction, or with an empty set.
  """
  num_documents = len(documents)
  if num_documents < MIN_SEQUENCES:
    return None
  order = randomness.generator(
    'client_document_halves', split_seed, client_id
  ).permutation(num_documents)
  permuted = [documents[position] for position in order]
  num_evaluation = math.ceil(num_documents / 2)

  def rows(chosen, fraction, rounded):
    cap = None if max_sequences is None else rounded(fraction * max_sequences)
    return sequences_lib.take(build(chosen), cap)

  pool = permuted[num_evaluation:]
  personalization = {
    fraction: rows(
      pool if fraction == 0.5 else pool[: math.floor(fraction * num_documents)],
      fraction,
      math.floor,
    )
    for fraction in fractions
    if fraction > 0
  }
  evaluation = rows(permuted[:num_evaluation], 0.5, math.ceil)
  if not all(map(len, (evaluation, *personalization.values()))):
    return None
  return PersonalizationSplit(evaluation, personalization)


def evaluate_clients(
  evaluator: 'ClientEvaluator',
  trainable: tuple,
  clients: Iterable[tuple[bytes, PersonalizationSplit]],
  fractions: tuple[float, ...],
  *,
  num_local_epochs: int,
  learning_rate: float,
  non_trainable: tuple = (),
) -> Iterator[list[ClientEvaluation]]:
  """Scores every client at every fraction, always on its evaluation half.

  Args:
    evaluator: Scores and fine-tunes.
    trainable: The global model's weights; every client starts from them.
    clients: Client id and split. The split has a personalization set for
      every fraction above 0.
    fractions: Fractions of the client's data to fine-tune on; 0 for none.
    num_local_epochs: Passes of fine-tuning, >= 1.
    learning_rate: Its step size, > 0.
    non_trainable: The model's weights that are held fixed.

  Yields:
    For each client its entries, one per fraction.
  """
  for client_id, halves in clients:
    before = evaluator.score(trainable, halves.evaluation, non_trainable)
    entries = []
    for fraction in fractions:
      after, num_sequences = before, 0
      if fraction > 0:
        data = halves.personalization[fraction]
        num_sequences = len(data)
        tuned = evaluator.fine_tune(
          trainable,
          data,
          num_local_epochs=num_local_epochs,
          learning_rate=learning_rate,
          non_trainable=non_trainable,
        )
        after = evaluator.score(tuned, halves.evaluation, non_trainable)
      entries.append(
        ClientEvaluation(
          client_id=client_id,
          fraction=fraction,
          num_evaluation_sequences=len(halves.evaluation),
          num_evaluation_tokens=before.num_tokens,
          num_personalization_sequences=num_sequences,
          loss_before=before.loss,
          accuracy_before=before.accuracy,
          loss_after=after.loss,
          accuracy_after=after.accuracy,
        )
      )
    yield entries
