"""The summary of an evaluation, by hand."""

import dataclasses
import json
import math

import pytest

from tff_fedfish.evaluation import intervals
from tff_fedfish.evaluation.summary import summarize_evaluation
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.run.corpus_identity import CorpusIdentity

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


def _barrier(client_id, local_loss, global_loss, local_acc, global_acc):
  return ClientBarrier(
    client_id=client_id,
    local_loss=local_loss,
    global_loss=global_loss,
    local_accuracy=local_acc,
    global_accuracy=global_acc,
  )


def _summarize(clients, **options):
  values = {
    'kind': 'held_out',
    'corpus': 'debian_descriptions',
    'corpus_identity': CorpusIdentity(
      name='c4', key='host', part=None, grouping='g', fingerprint='f'
    ),
    'checkpoint': {'round': 20},
    'personalization': {'epochs': 4},
    'skipped_clients': {},
  }
  return summarize_evaluation(clients, **values | options)


_CLIENTS = (
  _client(b'b', 0.25, 3.0, 3.5, 0.125),
  _client(b'a', 0.25, 2.0, 1.5, 0.625),
  _client(b'c', 0.25, 4.0, 4.0, 0.0),
  _client(b'a', 0.0, 2.0, 2.0),
  _client(b'b', 0.0, 3.0, 3.0),
)


def test_by_hand():
  skipped = {'too_few_sequences': 3, 'beyond_max_clients': 1}
  summary = _summarize(_CLIENTS, skipped_clients=skipped)
  assert summary.round_num == 20
  assert summary.num_clients == 3
  assert list(summary.skipped_clients) == sorted(skipped)
  assert summary.client_server_barrier is None
  zero, quarter = summary.fractions
  # Fraction 0: losses 2, 3, mean 2.5; nothing was personalized.
  assert zero.fraction == 0.0
  assert (zero.loss.mean, zero.loss.num_clients) == (2.5, 2)
  assert zero.share_of_clients_hurt is None
  # Fraction 0.25: losses after 1.5, 3.5, 4.0, mean 9 / 3 = 3; accuracies
  # 0.625, 0.125, 0, mean 0.25. One of three rose: b. c's is equal.
  assert quarter.loss == intervals.summarize([1.5, 3.5, 4.0])
  assert quarter.loss.mean == pytest.approx(3.0)
  assert quarter.accuracy.mean == pytest.approx(0.25)
  assert quarter.perplexity['of_mean_loss'] == pytest.approx(math.exp(3))
  assert quarter.share_of_clients_hurt == pytest.approx(1 / 3)
  # Every order of the clients gives the same intervals.
  assert _summarize(_CLIENTS[::-1], skipped_clients=skipped) == summary


def test_bits_per_byte_by_hand():
  clients = [
    _client(b'a', 0.0, 2.0, 2.0),
    _client(b'b', 0.0, 3.0, 3.0),
    _client(b'c', 0.0, _NAN, _NAN),
  ]
  summary = _summarize(clients, num_bytes={b'a': 500, b'b': 700, b'c': 900})
  # (2 x 600 + 3 x 600) / ln 2 / (500 + 700) = 2.5 / ln 2; c counts nowhere.
  (found,) = summary.fractions
  assert found.bits_per_byte == pytest.approx(2.5 / math.log(2))
  assert found.worst_decile_loss == 3.0
  # Images; and text without a byte.
  for num_bytes in (None, dict.fromkeys((b'a', b'b', b'c'), 0)):
    (found,) = _summarize(clients, num_bytes=num_bytes).fractions
    assert found.bits_per_byte is None


def test_diverged_clients_are_counted_and_json_has_no_nan():
  clients = [
    _client(b'a', 0.5, 2.0, _NAN, _NAN),
    _client(b'b', 0.5, 2.0, 1.0),
    _client(b'c', 0.5, _NAN, _NAN, _NAN),
    _client(b'd', 0.5, 2.0, math.inf, 0.75),
  ]
  summary = _summarize(clients, barriers=[_barrier(b'x', 1.0, _NAN, 0, 0)])
  (half,) = summary.fractions
  assert half.loss.mean == 1.0
  assert (half.loss.num_clients, half.loss.num_non_finite) == (1, 3)
  # The accuracy goes with the loss: d's 0.75 is left out.
  assert half.accuracy.mean == 0.5
  # Of a, b and d, whose loss was finite before, a and d are worse off.
  assert half.share_of_clients_hurt == pytest.approx(2 / 3)
  assert summary.client_server_barrier.loss.num_non_finite == 1
  json.dumps(summary.to_json_dict(), allow_nan=False)


def test_perplexity_beyond_a_double():
  (found,) = _summarize([_client(b'a', 0.0, 800.0, 800.0)]).fractions
  assert found.perplexity == {'of_mean_loss': None}


def test_barrier_by_hand():
  # Of x and y. Loss: 3 - 4 = -1 and 2.5 - 2 = 0.5, mean -0.25.
  # Error: (1 - 0.5) - (1 - 0.375) = -0.125 and (1 - 0.25) - (1 - 0.5) = 0.25,
  # mean 0.0625. z, which diverged, is in no mean.
  barriers = [
    _barrier(b'y', 2.0, 2.5, 0.5, 0.25),
    _barrier(b'z', _NAN, 2.0, 0.0, 0.5),
    _barrier(b'x', 4.0, 3.0, 0.375, 0.5),
  ]
  summary = _summarize(_CLIENTS, barriers=barriers).client_server_barrier
  assert summary.loss.mean == -0.25
  assert summary.error.mean == 0.0625
  assert summary.error.num_clients == summary.loss.num_clients == 2
  # A lower barrier may come from a worse local term: (2 + 4) / 2 and
  # (2.5 + 3) / 2.
  assert summary.local_loss.mean == 3.0
  assert summary.global_loss.mean == 2.75
  assert summary.num_clients == 3


def test_a_cohort_that_could_not_be_measured():
  summary = _summarize(_CLIENTS, barriers=[]).client_server_barrier
  assert (summary.num_clients, summary.loss.mean) == (0, None)
  assert summary.local_loss.mean is None


def test_wrong_kind():
  with pytest.raises(ValueError, match='`kind` must be one of held_out, '):
    dataclasses.replace(_summarize(_CLIENTS), kind='local')
