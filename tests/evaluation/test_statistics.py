"""The statistics of an evaluation, by hand."""

import math

import pytest

from tff_fedfish.evaluation import intervals, statistics
from tff_fedfish.evaluation.tables import (
  ClientBarrier,
  ClientEvaluation,
  as_table,
)

_NAN = math.nan


def _client(client_id, fraction, before, after, accuracy=0.5):
  return ClientEvaluation(
    client_id=client_id,
    fraction=fraction,
    num_evaluation_sequences=5,
    num_evaluation_tokens=600,
    num_personalization_sequences=round(10 * fraction),
    loss_before=before,
    accuracy_before=0.25,
    loss_after=after,
    accuracy_after=accuracy,
  )


def _scores(clients):
  return statistics.fraction_scores(as_table(ClientEvaluation, clients))


def _barrier(*rows):
  names = ('client_id', 'local_loss', 'global_loss')
  names += ('local_accuracy', 'global_accuracy')
  rows = [ClientBarrier(**dict(zip(names, row, strict=True))) for row in rows]
  return statistics.barrier_scores(as_table(ClientBarrier, rows))


def test_scores_by_hand():
  clients = [
    _client(b'b', 0.25, 3.0, 3.5, 0.125),
    _client(b'a', 0.25, 2.0, 1.5, 0.625),
    _client(b'c', 0.25, 4.0, 4.0, 0.0),
    _client(b'a', 0.0, 2.0, 2.0),
    _client(b'b', 0.0, 3.0, 3.0),
  ]
  zero, quarter = _scores(clients)
  # Fraction 0: losses 2, 3, mean 2.5; nothing was personalized.
  assert zero.fraction == 0.0
  assert (zero.loss.mean, zero.loss.num_clients) == (2.5, 2)
  assert zero.share_of_clients_hurt is None
  # Fraction 0.25: losses after 1.5, 3.5, 4.0, mean 9 / 3 = 3; accuracies
  # 0.625, 0.125, 0, mean 0.25. One of three rose: b. c's is equal.
  assert quarter.loss == intervals.summarize([1.5, 3.5, 4.0])
  assert quarter.loss.mean == pytest.approx(3.0)
  assert quarter.accuracy.mean == pytest.approx(0.25)
  assert quarter.share_of_clients_hurt == pytest.approx(1 / 3)
  # Every order of the clients gives the same intervals.
  assert _scores(clients[::-1]) == [zero, quarter]


def test_diverged_clients_are_counted():
  clients = [
    _client(b'a', 0.5, 2.0, _NAN, _NAN),
    _client(b'b', 0.5, 2.0, 1.0),
    _client(b'c', 0.5, _NAN, _NAN, _NAN),
    _client(b'd', 0.5, 2.0, math.inf, 0.75),
  ]
  [half] = _scores(clients)
  assert half.loss.mean == 1.0
  assert (half.loss.num_clients, half.loss.num_non_finite) == (1, 3)
  # The accuracy goes with the loss: d's 0.75 is left out.
  assert half.accuracy.mean == 0.5
  # Of a, b and d, whose loss was finite before, a and d are worse off.
  assert half.share_of_clients_hurt == pytest.approx(2 / 3)


def test_barrier_by_hand():
  # Of x and y. Loss: 3 - 4 = -1 and 2.5 - 2 = 0.5, mean -0.25.
  # Error: (1 - 0.5) - (1 - 0.375) = -0.125 and (1 - 0.25) - (1 - 0.5) = 0.25,
  # mean 0.0625. z, which diverged, is in no mean.
  found = _barrier(
    (b'y', 2.0, 2.5, 0.5, 0.25),
    (b'z', _NAN, 2.0, 0.0, 0.5),
    (b'x', 4.0, 3.0, 0.375, 0.5),
  )
  assert found.loss.mean == -0.25
  assert found.error.mean == 0.0625
  assert found.error.num_clients == found.loss.num_clients == 2
  assert found.loss.num_non_finite == 1
  # A lower barrier may come from a worse local term: (2 + 4) / 2 and
  # (2.5 + 3) / 2.
  assert (found.local_loss, found.global_loss) == (3.0, 2.75)
  assert found.num_clients == 3


def test_a_cohort_that_could_not_be_measured():
  found = _barrier()
  assert (found.num_clients, found.loss.mean, found.local_loss) == (
    0,
    None,
    None,
  )
