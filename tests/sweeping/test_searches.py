"""Scores of a search's runs, the choice, and values beyond an edge."""

import math
import pathlib

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import Evaluation
from tff_fedfish.evaluation.tables import ClientEvaluation, as_table
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.sweeping.search import LearningRateSearch
from tff_fedfish.sweeping.searches import Search, validation_score

_RATE = 'client_work.learning_rate'
_EPOCHS = 'client_work.num_local_epochs'


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


def test_values_beyond_an_edge_are_of_the_setting_s_type():
  # 2 * 2 / 1
  search = _search([{_EPOCHS: 1}, {_EPOCHS: 2}], [2, 1], max_extensions=3)
  assert search.extension == {_EPOCHS: 4}
  assert type(search.extension[_EPOCHS]) is int
  # 1 * 1 / 2 epochs are none.
  search = _search([{_EPOCHS: 1}, {_EPOCHS: 2}], [1, 2], max_extensions=3)
  assert search.extension is None
  # A rate is a float, however it is written: 1 * 1 / 3.
  search = _search([{_RATE: 1}, {_RATE: 3}], [1, 2], max_extensions=3)
  assert search.extension == {_RATE: 0.333333}


def test_rates_that_only_some_methods_read():
  tried = [{_RATE: 0.1}, {_RATE: 0.3, 'algorithm.mu': 1.0}]
  assert _search(tried, [2.0, 1.0]).edges == [_RATE]


def _score(losses, accuracies=None, metric='held-out loss'):
  clients = [
    ClientEvaluation(
      client_id=str(loss).encode(),
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
    for loss, accuracy in zip(
      losses, accuracies or [0.5] * len(losses), strict=True
    )
    for fraction in (0.0, 0.5)
  ]
  evaluation = Evaluation(
    summary=None,
    clients=as_table(ClientEvaluation, clients),
    barriers=None,
  )
  return validation_score(evaluation, metric)


def test_score_by_hand():
  # (1 + 2 + 7 + 3) / 4; each counts once, not once per fraction.
  assert _score([1.0, 2.0, 7.0, 3.0]) == (3.25, 4)
  # (0.25 + 0.5) / 2
  assert _score([1.0, 2.0], [0.25, 0.5], 'accuracy') == (0.375, 2)


@pytest.mark.parametrize('metric', ['held-out loss', 'accuracy'])
def test_diverged_client_spoils_the_score(metric):
  score, number = _score([math.inf, 2.0, math.nan], metric=metric)
  assert math.isnan(score) and number == 3


def test_no_validation_client():
  with pytest.raises(UserError, match='found no validation client with at'):
    _score([])
