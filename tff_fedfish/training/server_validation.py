"""Rows that the server of a one-shot method holds, and scores weights on.

Jhunjhunwala et al. (2024), FedFisher, appendix D.3: 500 training images, drawn
with replacement. No federated server has these; the paper's method needs them
to choose the step at which its solve stops.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.sequences import ClientRows, Rows
from tff_fedfish.evaluation.evaluator import ClientEvaluator


def draw_rows(
  client_ids: Sequence[bytes],
  client_rows: ClientRows,
  *,
  num_rows: int,
  split_seed: int,
) -> list[Rows]:
  """Draws rows of all clients together, uniformly and with replacement.

  Args:
    client_ids: The clients.
    client_rows: Their sequences or images. All are read to be counted, and
      those with drawn rows again.
    num_rows: Rows to draw, >= 1.
    split_seed: Seed of the draw.

  Returns:
    The rows by client, of clients with any. Empty: no client has a row.
  """
  sizes = [len(client_rows.sequences(c)) for c in client_ids]
  ends = np.cumsum(sizes)
  if not len(ends) or not ends[-1]:
    return []
  generator = randomness.generator('server_validation', split_seed)
  drawn = np.sort(generator.randint(ends[-1], size=num_rows))
  by_client = collections.defaultdict(list)
  for row in drawn:
    index = int(np.searchsorted(ends, row, side='right'))
    by_client[index].append(row - ends[index] + sizes[index])
  return [
    client_rows.sequences(client_ids[index]).select(np.asarray(rows))
    for index, rows in by_client.items()
  ]


class Score(NamedTuple):
  """Accuracy of weights on the server's rows, in [0, 1], over all targets."""

  evaluator: ClientEvaluator
  rows: Sequence[Rows]

  def __call__(self, weights: Sequence[Any]) -> float:
    """Returns the accuracy of a model's trainable weights."""
    scores = [self.evaluator.score(tuple(weights), r) for r in self.rows]
    num_right = sum(score.accuracy * score.num_tokens for score in scores)
    return num_right / sum(score.num_tokens for score in scores)
