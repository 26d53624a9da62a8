"""Scores of a search's runs, the choice, and values beyond an edge."""

import math
import pathlib
import types

import pytest

from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import Evaluation
from tff_fedfish.evaluation.tables import ClientEvaluation, as_table
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.search import LearningRateSearch
from tff_fedfish.sweeping.searches import Search, validation_score

_RATE = 'client_work.learning_rate'


def _search(tried, scores, *, metric='held-out loss', max_extensions=0):
  """Returns a search for which the first three of the rates were given."""
  axes = grid.parse_grid({name: [1, 2, 3] for name in [*tried[0]][:1]})
  return Search(
    search=LearningRateSearch(
      settings=axes,
      num_rounds=1,
      metric=metric,
      max_extensions=max_extensions,
    ),
    group={},
    runs=[
      Run(
        name='x',
        directory=pathlib.Path('x'),
        config=None,
        evaluations={},
        point={},
        rates=rates,
      )
      for rates in tried
    ],
    scores=scores,
    num_clients=7,
  )


@pytest.mark.parametrize(
  ('scores', 'metric', 'expected'),
  [
    ([3.0, 2.0, 2.0, 5.0], 'held-out loss', 1),
    ([3.0, 2.0, 5.0, 5.0], 'accuracy', 2),
    ([math.nan, math.inf, 4.0, -math.inf], 'held-out loss', 2),
    ([math.nan, 0.1, math.inf], 'accuracy', 1),
    ([math.nan, math.inf], 'held-out loss', None),
    ([], 'held-out loss', None),
  ],
)
def test_best_by_hand(scores, metric, expected):
  tried = [{_RATE: rate} for rate in (0.1, 0.3, 1.0, 3.0)]
  search = _search(tried[: len(scores) or 4], scores, metric=metric)
  assert search.best == expected
  assert search.rates == ({} if expected is None else tried[expected])


def test_edges_and_the_line():
  names = [_RATE, 'server.optimizer', 'server.beta_1', 'server.learning_rate']
  tried = [
    dict(zip(names, values, strict=True))
    for values in ((0.3, 'a', 0.9, 0.1), (0.1, 'b', 0.9, 0.1), (1, 'b', 0.9, 1))
  ]
  # 0.3 lies between 0.1 and 1; names have no edge, nor has a single value.
  assert _search(tried, [1.0, 2.0, 3.0]).edges == ['server.learning_rate']
  search = _search(tried, [3.0, 2.0, 1.5])
  assert search.edges == [_RATE, 'server.learning_rate']
  assert search.line() == (
    f'Chosen for all runs: {_RATE} 1, server.optimizer b, server.beta_1 0.9, '
    'server.learning_rate 1 (held-out loss 1.5000 over 7 validation clients). '
    f'At the edge of the values tried: {_RATE}, server.learning_rate.'
  )


@pytest.mark.parametrize(
  ('rates', 'scores', 'expected'),
  [
    ([0.1, 0.2, 0.4], [3, 2, 1], 0.8),
    ([0.1, 0.2, 0.4], [1, 2, 3], 0.05),
    ([0.1, 0.2, 0.4], [2, 1, 2], None),
    ([0.1, 0.2, 0.4, 0.8], [4, 3, 1, 2], None),
    ([0.1, 0.2, 0.4, 0.8], [4, 3, 2, 1], 1.6),
    # After two further values it ends.
    ([0.1, 0.2, 0.4, 0.8, 1.6], [5, 4, 3, 2, 1], None),
  ],
)
def test_values_beyond_an_edge(rates, scores, expected):
  search = _search([{_RATE: rate} for rate in rates], scores, max_extensions=2)
  assert search.extension == (expected and {_RATE: expected})


def _clients(losses, accuracies=None):
  """Returns rows of clients in the order of their places in [0, 1)."""
  ids = sorted(
    (b'a', b'b', b'c', b'd', b'e')[: len(losses)],
    key=lambda i: client_splits.split_position(i, split_seed=7),
  )
  return ids, [
    ClientEvaluation(
      client_id=client_id,
      fraction=fraction,
      num_evaluation_sequences=2,
      num_evaluation_tokens=16,
      num_personalization_sequences=0,
      loss_before=loss,
      accuracy_before=accuracy,
      # After personalization it is another model's.
      loss_after=99.0,
      accuracy_after=0.99,
    )
    for client_id, loss, accuracy in zip(
      ids, losses, accuracies or [0.5] * len(losses), strict=True
    )
    for fraction in (0.0, 0.5)
  ]


def _score(clients, metric='held-out loss', kind='held_out', num_held_out=0):
  """Scores clients; the first of their places are held out by the arms."""
  ids, rows = clients
  places = [client_splits.split_position(i, split_seed=7) for i in ids]
  between = (places[num_held_out - 1] + places[num_held_out]) / 2
  return validation_score(
    Evaluation(
      summary=types.SimpleNamespace(kind=kind),
      clients=as_table(ClientEvaluation, rows),
      barriers=None,
      affinities=None,
    ),
    metric,
    split_seed=7,
    held_out_fraction=between if num_held_out else 0.0,
  )


def test_score_is_of_validation_clients_only():
  clients = _clients([1.0, 2.0, 7.0, 3.0], [0.9, 0.8, 0.25, 0.5])
  # The first two are held out by the arms: (7 + 3) / 2 = 5, not 13 / 4 = 3.25;
  # each counts once, not once per fraction.
  assert _score(clients, num_held_out=2) == (5.0, 2)
  # (0.25 + 0.5) / 2
  assert _score(clients, 'accuracy', num_held_out=2) == (0.375, 2)
  # Nobody is held out: 13 / 4.
  assert _score(clients) == (3.25, 4)
  # Clients with validation rows have places below f, too.
  assert _score(clients, kind='own_validation', num_held_out=2) == (3.25, 4)


@pytest.mark.parametrize('metric', ['held-out loss', 'accuracy'])
def test_diverged_client_spoils_the_score(metric):
  score, number = _score(_clients([math.inf, 2.0, math.nan]), metric)
  assert math.isnan(score) and number == 3
  # One that is held out by the arms spoils nothing: 2 or 0.5.
  score, number = _score(_clients([math.inf, 2.0]), metric, num_held_out=1)
  assert score in (2.0, 0.5) and number == 1


def test_no_validation_client():
  ids, rows = _clients([1.0, 2.0, 3.0])
  with pytest.raises(UserError, match='found no validation client with at'):
    # The third client has no rows.
    _score((ids, rows[:4]), num_held_out=2)
