"""Which clients are evaluated, in a fixed order, and the model's mean score."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.cohorts import draw_order
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation.personalization import (
  PersonalizationSplit,
  split_documents,
  split_sequences,
)
from tff_fedfish.runtime.round_options import RoundInterrupted

if TYPE_CHECKING:
  from tff_fedfish.evaluation.client_evaluator import ClientEvaluator


@dataclasses.dataclass(frozen=True)
class ClientSample:
  """Clients that are large enough, and how many were not taken why."""

  clients: list[tuple[bytes, PersonalizationSplit]]
  """In the order of the draw."""
  skipped: dict[str, int]
  """Clients left out, by reason."""


def choose_clients(
  client_ids: Sequence[bytes],
  client_rows: ClientRows,
  *,
  split_seed: int,
  split_unit: str,
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
    split_seed: Seed of the order and of every client's split.
    split_unit: 'documents' or 'sequences', of which halves are made; images
      are split one by one.
    max_clients: How many to return at most; None: all that are large enough.
    fractions: Personalization sets to make, see `split_sequences`.
    max_sequences: Sequences used of a client, at most; None: all.
  """
  unit = 'sequences'
  if isinstance(client_rows, ClientSequences):
    unit = split_unit
  clients = []
  num_too_small = 0
  for client_id in draw_order(client_ids, seed=split_seed, round_num=0):
    if max_clients is not None and len(clients) == max_clients:
      break
    options = dict(
      client_id=client_id,
      split_seed=split_seed,
      fractions=fractions,
      max_sequences=max_sequences,
    )
    if unit == 'documents':
      halves = split_documents(
        client_rows.documents(client_id), client_rows.build, **options
      )
    else:
      halves = split_sequences(client_rows.sequences(client_id), **options)
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


def mean_score(
  evaluator: 'ClientEvaluator',
  trainable: tuple,
  sample: ClientSample,
  *,
  non_trainable: tuple = (),
  should_stop: Callable[[], bool] | None = None,
) -> dict[str, float | int]:
  """Returns the uniform mean over clients, and the perplexity of its loss.

  Raises:
    RoundInterrupted: If `should_stop`, asked before each client, says so.
  """
  scores = []
  for _, halves in sample.clients:
    if should_stop is not None and should_stop():
      raise RoundInterrupted
    scores.append(evaluator.score(trainable, halves.evaluation, non_trainable))
  loss = float(np.mean([score.loss for score in scores]))
  try:
    perplexity = math.exp(loss)
  except OverflowError:
    perplexity = math.inf
  return {
    'held_out/loss': loss,
    'held_out/accuracy': float(np.mean([score.accuracy for score in scores])),
    'held_out/perplexity': perplexity,
    'held_out/num_clients': len(scores),
  }
