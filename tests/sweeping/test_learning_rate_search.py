"""The search for learning rates: its runs, its clients, its choice."""

import math

import planned_configs
import pytest

from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import ClientEvaluation, Evaluation
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.learning_rate_search import (
  METRICS,
  choose,
  extension,
  parse_search,
  validation_score,
)

_RATES = {
  'client_work.learning_rate': [0.1, 0.3],
  'server.learning_rate': [0.001],
}


def _axes(values=None):
  return grid.parse_grid(
    values
    or {
      'algorithm.name,server.optimizer': [
        ('fed_avg', 'sgd'),
        ('fed_fish', 'adam'),
      ],
      'client_work.num_local_epochs': [1, 4],
    },
    [],
  )


def _parse(axes=None, **values):
  problems = []
  base = planned_configs.by_hand(evaluation__num_clients=24)
  search = parse_search(
    {'settings': _RATES, 'num_rounds': 10} | values,
    _axes() if axes is None else axes,
    base,
    problems,
  )
  return search, problems


def test_groups_and_rates_by_hand():
  # A setting of a tied key stands for the key.
  search, problems = _parse(per=['algorithm.name'])
  assert not problems
  assert grid.product(search.per) == [
    {'algorithm.name': 'fed_avg', 'server.optimizer': 'sgd'},
    {'algorithm.name': 'fed_fish', 'server.optimizer': 'adam'},
  ]
  assert grid.product(search.axes) == [
    {'client_work.learning_rate': 0.1, 'server.learning_rate': 0.001},
    {'client_work.learning_rate': 0.3, 'server.learning_rate': 0.001},
  ]
  point = grid.product(_axes())[2]
  assert search.group_of(point) == grid.product(search.per)[1]
  name = grid.run_name(
    (*search.per, *search.axes),
    grid.product(search.per)[1] | grid.product(search.axes)[0],
  )
  assert name == 'fed_fish-adam-client_lr0.1-server_lr0.001'


def test_one_search_for_all():
  search, _ = _parse()
  assert grid.product(search.per) == [{}]
  assert search.group_of(grid.product(_axes())[0]) == {}
  name = grid.run_name(search.axes, grid.product(search.axes)[1])
  assert name == 'client_lr0.3-server_lr0.001'


def test_defaults_and_json():
  search, _ = _parse()
  assert search.to_json_dict() == {
    'settings': _RATES,
    'num_rounds': 10,
    'metric': 'held-out loss',
    'per': [],
    'validation_fraction': 0.1,
    'num_clients': 24,
    'max_extensions': 0,
  }


def test_settings_of_a_search_run():
  search, _ = _parse(validation_fraction=0.25)
  base = planned_configs.by_hand(client_splits__held_out_fraction=0.5)
  settings, _ = search.run_settings(base)
  assert settings == {
    'training.num_rounds': 10,
    'client_splits.held_out_fraction': 0.75,
    'evaluation.num_clients': 0,
  }


def test_a_corpus_that_holds_clients_out_itself():
  search, _ = _parse()
  base = planned_configs.shipped('mnist_by_writer')
  assert base.client_splits.held_out_fraction is None
  # f = 0, and v = 0.1: search runs leave its own held-out clients aside.
  settings, options = search.run_settings(base)
  assert settings['client_splits.held_out_fraction'] == 0.1
  assert options['max_clients'] == 24


def test_nobody_is_left_to_train_on():
  search, _ = _parse(validation_fraction=0.5)
  base = planned_configs.by_hand(client_splits__held_out_fraction=0.5)
  with pytest.raises(
    UserError, match='`validation_fraction` 0.5 of the clients'
  ):
    search.run_settings(base)


@pytest.mark.parametrize(
  ('held_out_fraction', 'num_clients', 'expected'),
  [
    # Of the clients below f + v = 0.2 one in two is below f = 0.1.
    (0.1, 24, 48),
    # 0.1 of 0.3: one in three.
    (0.2, 24, 72),
    (0.0, 24, 24),
    # 10 / (0.1 / 0.15) = 15.
    (0.05, 10, 15),
    (0.1, 0, None),
  ],
)
def test_how_many_clients_to_score(held_out_fraction, num_clients, expected):
  search, _ = _parse(num_clients=num_clients)
  base = planned_configs.by_hand(
    client_splits__held_out_fraction=held_out_fraction,
    evaluation__num_clients=0,
  )
  _, options = search.run_settings(base)
  assert options['max_clients'] == expected


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    ({'nme': 1}, "'nme' is unknown; known are settings, num_rounds, metric"),
    ({'metric': 'loss'}, '`metric` must be one of held-out loss, accuracy'),
    ({'num_rounds': 0}, '`num_rounds` must be at least 1, found 0'),
    ({'num_rounds': 2.0}, '`num_rounds` must be an int, found 2.0'),
    ({'num_clients': -1}, '`num_clients` must be at least 0, found -1'),
    ({'max_extensions': True}, '`max_extensions` must be an int, found True'),
    (
      {'validation_fraction': 1.0},
      '`validation_fraction` must be finite and above 0 and below 1, found 1.0',
    ),
    ({'validation_fraction': 0}, 'above 0 and below 1, found 0'),
    ({'per': 'algorithm.name'}, '`per` must be a list of settings'),
    (
      {'per': ['server.beta_1']},
      "`per` must name keys of `grid` ('algorithm.name,server.optimizer', "
      "'client_work.num_local_epochs'), found 'server.beta_1'",
    ),
    (
      {'settings': {'client_work.num_local_epochs': [1]}},
      "'client_work.num_local_epochs' must not be in `grid`, too",
    ),
    (
      {'settings': {'seeds.split_seed': [1]}},
      "`settings` must not search 'seeds.split_seed'",
    ),
    ({'settings': {}}, '`settings` must name at least one setting'),
  ],
)
def test_what_is_wrong_with_a_search(values, words):
  search, problems = _parse(**values)
  assert search is None
  assert len(problems) == 1
  assert words in problems[0]
  assert problems[0].startswith('`learning_rate_search`')


def test_what_is_missing():
  problems = []
  base = planned_configs.by_hand()
  for value, expected in (
    (None, []),
    ([], ['`learning_rate_search` must be a dictionary, found []']),
    (
      {},
      [
        "`learning_rate_search`: 'settings' is required",
        "`learning_rate_search`: 'num_rounds' is required",
      ],
    ),
  ):
    assert parse_search(value, _axes(), base, problems) is None
    assert problems == expected
    problems.clear()


@pytest.mark.parametrize(
  'name',
  [
    'seeds.split_seed',
    'client_splits.held_out_fraction',
    'seeds.partition_seed',
    'partition.alpha',
  ],
)
def test_searches_are_apart_where_other_clients_are_held_out(name):
  axes = _axes({name: [0, 0.5]})
  search, problems = _parse(axes)
  assert search is None
  assert f"`per` must hold '{name}', which `grid` varies" in problems[0]
  assert _parse(axes, per=[name])[1] == []


# Selection.


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


def _evaluation(clients, kind='held_out'):
  return Evaluation(summary={'kind': kind}, clients=clients, barriers=None)


def _fraction_below(ids, number):
  """Returns f so that this many of the clients are held out."""
  places = [client_splits.split_position(i, split_seed=7) for i in ids]
  return (places[number - 1] + places[number]) / 2 if number else 0.0


def test_score_is_of_validation_clients_alone():
  ids, clients = _clients([1.0, 2.0, 7.0, 3.0], [0.9, 0.8, 0.25, 0.5])
  fraction = _fraction_below(ids, 2)
  settings = dict(split_seed=7, held_out_fraction=fraction)
  # The first two are held out by the runs of the sweep: (7 + 3) / 2 = 5, not
  # 13 / 4 = 3.25; each counts once, not once per fraction.
  score = validation_score(_evaluation(clients), 'held-out loss', **settings)
  assert score == (5.0, 2)
  # (0.25 + 0.5) / 2
  score = validation_score(_evaluation(clients), 'accuracy', **settings)
  assert score == (0.375, 2)


def test_every_client_with_validation_rows_counts():
  # Merged clients have places below f, too. (1 + 2 + 6) / 3 = 3.
  ids, clients = _clients([1.0, 2.0, 6.0])
  score = validation_score(
    _evaluation(clients, 'own_validation'),
    'held-out loss',
    split_seed=7,
    held_out_fraction=_fraction_below(ids, 2),
  )
  assert score == (3.0, 3)


def test_every_client_is_one_where_nobody_is_held_out():
  _, clients = _clients([1.0, 2.0, 6.0])
  score = validation_score(
    _evaluation(clients), 'held-out loss', split_seed=7, held_out_fraction=0.0
  )
  assert score == (3.0, 3)


@pytest.mark.parametrize('metric', METRICS)
def test_diverged_client_spoils_the_score(metric):
  ids, clients = _clients([math.inf, 2.0, math.nan])
  score, number = validation_score(
    _evaluation(clients), metric, split_seed=7, held_out_fraction=0.0
  )
  assert math.isnan(score)
  assert number == 3
  # One that is held out by the runs of the sweep spoils nothing.
  score, number = validation_score(
    _evaluation(clients[:4]),
    metric,
    split_seed=7,
    held_out_fraction=_fraction_below(ids, 1),
  )
  assert score in (2.0, 0.5)
  assert number == 1


def test_no_validation_client():
  ids, clients = _clients([1.0, 2.0, 3.0])
  with pytest.raises(UserError, match='found no validation client with at'):
    validation_score(
      _evaluation(clients[:4]),
      'accuracy',
      split_seed=7,
      held_out_fraction=_fraction_below(ids, 2),
    )


@pytest.mark.parametrize(
  ('scores', 'metric', 'expected'),
  [
    ([3.0, 2.0, 2.0, 5.0], 'held-out loss', 1),
    ([3.0, 2.0, 5.0, 5.0], 'accuracy', 2),
    ([math.nan, math.inf, 4.0, -math.inf], 'held-out loss', 2),
    ([math.nan, 0.1, math.inf], 'accuracy', 1),
    ([math.nan, math.inf], 'held-out loss', None),
  ],
)
def test_choice_by_hand(scores, metric, expected):
  search, _ = _parse(metric=metric)
  tried = [{'client_work.learning_rate': 10.0**i} for i in range(5)]
  choice = choose(search, {'a.b': 1}, tried[: len(scores)], scores, 7)
  if expected is None:
    assert choice is None
    return
  assert choice == {
    'for': {'a.b': 1},
    'chosen': tried[expected],
    'metric': metric,
    'score': scores[expected],
    'num_validation_clients': 7,
    'at_edge': [],
  }


class TestExtension:
  _search, _ = _parse(
    _axes({'server.learning_rate': [1.0]}),
    settings={'client_work.learning_rate': [0.1, 0.2, 0.4]},
    max_extensions=2,
  )

  def _next(self, rates, scores):
    tried = [{'client_work.learning_rate': rate} for rate in rates]
    choice = choose(self._search, {}, tried, scores, 1)
    return extension(self._search, tried, choice)

  def test_beyond_the_largest_and_the_smallest(self):
    rates = [0.1, 0.2, 0.4]
    assert self._next(rates, [3, 2, 1]) == {'client_work.learning_rate': 0.8}
    assert self._next(rates, [1, 2, 3]) == {'client_work.learning_rate': 0.05}

  def test_ends_within_and_after_so_many(self):
    assert self._next([0.1, 0.2, 0.4], [2, 1, 2]) is None
    assert self._next([0.1, 0.2, 0.4, 0.8], [4, 3, 1, 2]) is None
    rates = [0.1, 0.2, 0.4, 0.8]
    assert self._next(rates, [4, 3, 2, 1]) == {'client_work.learning_rate': 1.6}
    assert self._next([*rates, 1.6], [5, 4, 3, 2, 1]) is None

  def test_needs_one_setting_with_numbers(self):
    _, problems = _parse(
      settings={'server.nesterov': [True, False]}, max_extensions=1
    )
    assert problems == [
      '`learning_rate_search`: `max_extensions` requires `settings` with one '
      'setting and at least two numbers above 0, found server.nesterov with '
      '[True, False]'
    ]


def test_values_at_the_edge():
  search, problems = _parse(
    settings={
      'client_work.learning_rate': [0.3, 0.1, 1.0],
      'server.learning_rate,server.momentum,server.nesterov': [
        (0.01, 'a', True),
        (0.1, 'b', True),
      ],
      'server.beta_1': [0.9],
    }
  )
  assert not problems

  def edges(rates):
    return choose(search, {}, [rates], [1.0], 1)['at_edge']

  rates = {
    'client_work.learning_rate': 0.3,
    'server.learning_rate': 0.1,
    'server.momentum': 'b',
    'server.nesterov': True,
    'server.beta_1': 0.9,
  }
  # 0.3 lies between 0.1 and 1; names have no edge, nor has a single value.
  assert edges(rates) == ['server.learning_rate']
  # An axis that the method does not read was not chosen from.
  assert not edges({'server.beta_1': 0.9})
  rates['client_work.learning_rate'] = 0.1
  assert edges(rates) == [
    'client_work.learning_rate',
    'server.learning_rate',
  ]
