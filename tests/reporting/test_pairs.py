"""Which arms are compared, and what their names say."""

import json
import os

import pytest
from report_runs import (
  add_metrics,
  read_report,
  write_evaluation,
  write_methods,
  write_run,
  write_scored,
  write_sweep,
)

from tff_fedfish.reporting.pairs import BEST, OTHER, SAME, find_pairs

_DP = {'local_privacy.clip_norm': 1.0, 'local_privacy.noise_multiplier': 2.0}
_BOTH = {'fed_avg': [6.0], 'fed_fish': [5.0]}
# They change no result, or say where things are.
_UNNAMED = {
  'data.directory': '/elsewhere/debian',
  'evaluation.barrier_every_num_rounds': 1,
  'evaluation.every_num_rounds': 1,
  'training.max_non_finite_rounds': 3,
  'seeds.partition_seed': 9,
  'seeds.privacy_seed': 9,
}


def _pairs(directories, *questions):
  pairs = find_pairs(read_report(directories))
  return [
    pair for pair in pairs if pair.question in (questions or pair.question)
  ]


def _write_settings(root, name, values, **options):
  """Writes a run of FedFish for each value of a setting."""
  return [
    write_scored(root / str(value), 5.0, settings={name: value}, **options)
    for value in values
  ]


@pytest.mark.parametrize(
  'ours, theirs, words, their_words',
  [
    ({}, {}, '', ''),
    (_UNNAMED, {}, '', ''),
    ({'client_work.optimizer': 'adamw'}, {}, 'AdamW 0.05', 'SGD 0.05'),
    (
      {'client_work.learning_rate': 0.5},
      {},
      'client rate 0.5',
      'client rate 0.05',
    ),
    ({'server.optimizer': 'sgd'}, {}, 'server SGD 0.001', 'server Adam 0.001'),
    ({'client_work.num_local_epochs': 8}, {}, 'E = 8', 'E = 1'),
    ({'aggregation.bits': 4}, {}, '4 bits', '32 bits'),
    (
      *({}, _DP, 'clip_norm 0, noise_multiplier 0'),
      'clip_norm 1, noise_multiplier 2',
    ),
    (
      *({'model.width': 64}, {'client_work.local_batch_size': 2}),
      *('client local_batch_size 4, width 64',),
      *('client local_batch_size 2, width 128',),
    ),
    # A method's own setting is named where it is not its default.
    ({'algorithm.relative_floor': 0.0}, {}, 'relative_floor 0', ''),
    ({'algorithm.fisher_power': 1.0}, {}, '', ''),
  ],
)
def test_all_that_differs_is_named(tmp_path, ours, theirs, words, their_words):
  options = {'fed_fish': {'settings': ours}, 'fed_avg': {'settings': theirs}}
  runs = write_methods(tmp_path, _BOTH, **options)
  for run in runs:
    identity = {'name': 'c4', 'key': 'host', 'part': None, 'grouping': 'f'}
    identity |= {'schema_version': 1, 'fingerprint': 'f'}
    (run / 'corpus.json').write_text(json.dumps(identity))
  [pair] = _pairs(runs)
  names = ('FedFish', words), ('FedAvg', their_words)
  assert pair.names == tuple(f'{n} ({w})' if w else n for n, w in names)
  assert pair.question == (OTHER if their_words else SAME)


_ALL, _ONLY_BEFORE, _NONE = [0.0, 0.5], [0.0], []


@pytest.mark.parametrize(
  'changes, fractions',
  [
    ({}, _ALL),
    ({'personalization': {'learning_rate': 1.0}}, _ONLY_BEFORE),
    ({'personalization': {'split_unit': 'sequences'}}, _NONE),
    ({'personalization': {'max_sequences_per_client': 16}}, _NONE),
    ({'settings': {'client_work.optimizer': 'adamw'}}, _ONLY_BEFORE),
    ({'settings': {'client_work.max_gradient_norm': 0.1}}, _ONLY_BEFORE),
    # The rate of fine-tuning is an evaluation's own.
    ({'settings': {'client_work.learning_rate': 0.5}}, _ALL),
    ({'settings': {'seeds.model_seed': 9}}, _NONE),
    ({'round_num': 1}, _NONE),
    ({'client_ids': tuple('abce')}, _NONE),
    ({'kind': 'transfer', 'corpus': 'sotu'}, _NONE),
    ({'corpus': 'other'}, _NONE),
  ],
  ids=str,
)
def test_which_evaluations_are_compared(tmp_path, changes, fractions):
  runs = []
  for method, own in (('fed_avg', dict(changes)), ('fed_fish', {})):
    settings = own.pop('settings', {})
    run = write_run(tmp_path / method, algorithm=method, settings=settings)
    tuning = {'learning_rate': 0.1} | own.pop('personalization', {})
    own = {'client_ids': tuple('abcd'), **own}
    write_evaluation(run, 'e', personalization=tuning, **own)
    runs.append(run)
  assert [c.fraction for c in read_report(runs).comparisons] == fractions


@pytest.mark.parametrize(
  'settings, changes, num_arms',
  [
    ({}, {'checkpoints.keep_last': 9, 'seeds.shuffle_seed': 9}, 1),
    (
      _DP | {'algorithm.fisher_estimator': 'last_epoch'},
      {'seeds.privacy_seed': 9},
      1,
    ),
    # Other samples of clients, while training, have no common mean.
    ({}, {'evaluation.num_clients': 64}, 2),
    ({}, {'evaluation.max_sequences_per_client': 8}, 2),
    ({}, {'seeds.split_seed': 9}, 2),
    ({}, {'algorithm.fisher_estimator': 'last_epoch'}, 2),
  ],
)
def test_runs_that_differ_in_seeds_are_one_arm(
  tmp_path, settings, changes, num_arms
):
  runs = [
    write_run(tmp_path / name, settings=settings | own)
    for name, own in (('a', {}), ('b', {'seeds.model_seed': 9} | changes))
  ]
  assert len(read_report(runs).arms) == num_arms


def test_pairs_of_the_same_settings_say_what_they_share(tmp_path):
  methods = ('fed_avg', 'fed_fish', 'fed_prox')
  gains = {(name, epochs, 2): 1.0 for name in methods for epochs in (1, 4)}
  same = _pairs(write_sweep(tmp_path, gains, num_seeds=1), SAME)
  assert {(' − '.join(pair.names), pair.setting) for pair in same} == {
    (names, f'E = {epochs}')
    for names in ('FedFish − FedAvg', 'FedProx − FedAvg', 'FedProx − FedFish')
    for epochs in (1, 4)
  }
  assert [pair.is_against_baseline for pair in same].count(True) == 4


def test_a_copy_makes_no_pair(tmp_path):
  runs = [write_scored(tmp_path / name, 5.0) for name in 'ab']
  runs.append(write_scored(tmp_path / 'c', 5.0, algorithm='fed_avg'))
  assert len(_pairs(runs)) == 1


@pytest.mark.parametrize(
  'setting, words, values',
  [
    (
      'algorithm.fisher_estimator',
      'fisher_estimator',
      ('extra_pass', 'last_epoch'),
    ),
    # There is no other side to choose the best rate for.
    ('client_work.learning_rate', 'client rate', (0.1, 0.2, 0.3)),
  ],
)
def test_variants_of_one_method(tmp_path, setting, words, values):
  pairs = _pairs(_write_settings(tmp_path, setting, values))
  assert len(pairs) == len(values) * (len(values) - 1) / 2
  one, other = (f'FedFish ({words} {value})' for value in values[:2])
  assert pairs[0].names == (other, one)
  assert (pairs[0].question, pairs[0].trials) == (OTHER, (1, 1))
  assert not pairs[0].is_against_baseline


@pytest.mark.parametrize('num_widths, num_pairs', [(5, 15), (6, 6)])
def test_of_many_sides_each_is_compared_with_the_baseline(
  tmp_path, num_widths, num_pairs
):
  widths = [16 * (number + 1) for number in range(num_widths)]
  runs = _write_settings(tmp_path, 'model.width', widths)
  runs.append(write_scored(tmp_path / 'average', 5.0, algorithm='fed_avg'))
  # 6 sides have 15 pairs; of 7 those with FedAvg are left.
  pairs = _pairs(runs)
  assert len(pairs) == num_pairs
  assert sum(pair.is_against_baseline for pair in pairs) == num_widths


_GRID = {
  'fed_avg': {0.1: 6.5, 0.01: 6.0},
  'fed_fish': {0.1: 5.95, 0.01: 6.2, 0.03: 6.3},
}


@pytest.fixture(name='grid')
def _grid(tmp_path):
  """Runs of which FedFish is best at 0.1, but for validation at 0.03."""
  runs = []
  for method, by_rate in _GRID.items():
    for rate, loss in by_rate.items():
      settings = {'client_work.learning_rate': rate}
      path = tmp_path / f'{method}{rate}'
      runs.append(write_scored(path, loss, algorithm=method, settings=settings))
  return runs


def test_the_best_of_each_grid(grid):
  [pair] = _pairs(grid, BEST)
  assert pair.names == (
    'FedFish (client rate 0.1, best of 3)',
    'FedAvg (client rate 0.01, best of 2)',
  )
  assert (pair.trials, str(pair.chosen_on)) == ((3, 2), 'held-out clients')
  # A trial with a client that is not finite is never the best.
  path = grid[2] / 'evaluations' / 'e' / 'per_client.csv'
  path.write_text(path.read_text().replace(',5.95,', ',nan,', 2))
  [pair] = _pairs(grid, BEST)
  assert pair.names[0] == 'FedFish (client rate 0.01, best of 3)'


def test_validation_clients_choose_where_all_have_them(grid):
  losses = [loss for by_rate in _GRID.values() for loss in by_rate.values()]
  for run, loss in zip(grid, losses, strict=True):
    add_metrics(run, validation__loss=(9.0, 8.0, 12.0 - loss))
  [pair] = _pairs(grid, BEST)
  assert pair.names == (
    'FedFish (client rate 0.03, best of 3 on validation clients)',
    'FedAvg (client rate 0.1, best of 2 on validation clients)',
  )
  assert pair.chosen_on == 'validation clients'
  add_metrics(grid[0], validation__loss=(9.0, 8.0, ''))
  [pair] = _pairs(grid, BEST)
  assert str(pair.chosen_on) == 'held-out clients'


@pytest.mark.parametrize(
  'chosen_on', ['held_out_clients', 'validation_clients']
)
def test_a_best_checkpoint_counts_as_its_trials(tmp_path, chosen_on):
  best = {'round': 1, 'best_of_rounds': 3, 'chosen_on': chosen_on}
  facts = {'evaluation': {'round_num': 1, 'facts': {'checkpoint': best}}}
  runs = write_methods(tmp_path, _BOTH, fed_fish=facts)
  is_validated = chosen_on == 'validation_clients'
  for run in runs if is_validated else ():
    add_metrics(run, validation__loss=(9.0, 8.0, 7.0))
  [pair] = _pairs(runs, BEST)
  where = ' on validation clients' * is_validated
  assert pair.names == (
    f'FedFish (best of 3{where}, round 1)',
    'FedAvg (round 2)',
  )
  assert (pair.trials, pair.rounds) == ((3, 1), (1, 2))
  [comparison] = read_report(runs).comparisons
  assert comparison.has_choice != is_validated


@pytest.mark.parametrize(
  'chosen_on', ['held-out clients', 'validation clients']
)
def test_a_choice_of_runs_alone_is_on_their_clients(tmp_path, chosen_on):
  # FedAvg has a single trial, and no validation clients.
  best = {'round': 2, 'best_of_rounds': 3}
  best['chosen_on'] = chosen_on.replace('-', '_').replace(' ', '_')
  options = {'kind': 'transfer', 'facts': {'checkpoint': best}}
  runs = write_methods(
    tmp_path,
    {'fed_avg': [6.0] * 3, 'fed_fish': [5.0] * 3},
    fed_avg={'evaluation': {'kind': 'transfer'}},
    fed_fish={'evaluation': options},
  )
  [comparison] = read_report(runs).comparisons
  assert str(comparison.pair.chosen_on) == chosen_on
  # They are not those that are scored.
  assert not comparison.has_choice
  assert comparison.verdict() == 'lower'


def test_the_best_models_of_seeds_are_not_those_of_the_last_round(tmp_path):
  runs = write_methods(tmp_path, {'fed_avg': [6.0] * 3, 'fed_fish': [7.0] * 3})
  # The best rounds of FedFish are 1, 2 and 2; its last ones were scored later.
  for run, round_num in zip(runs[3:], (1, 2, 2), strict=True):
    best = {'round': round_num, 'best_of_rounds': 3}
    best['chosen_on'] = 'held_out_clients'
    losses = {0.0: (5.0,) * 2}
    write_evaluation(
      run,
      'best',
      client_ids=('a', 'b'),
      losses=losses,
      facts={'checkpoint': best},
    )
    summary = run / 'evaluations' / 'best' / 'summary.json'
    os.utime(summary, (1, 1))
  [same, best] = read_report(runs).comparisons
  assert (same.pair.question, best.pair.question) == (SAME, BEST)
  assert same.differences['loss'].mean == 1.0
  assert best.pair.names[0] == 'FedFish (best of 3, rounds 1 to 2)'
  assert best.differences['loss'].mean == -1.0


@pytest.mark.parametrize('num_rounds', [None, 4])
def test_rounds_may_differ_between_runs_that_ended(tmp_path, num_rounds):
  options = {
    method: {
      'held_out_losses': losses,
      'num_rounds': num_rounds,
      'evaluation': {'round_num': len(losses) - 1},
    }
    for method, losses in (('fed_avg', (8, 7)), ('fed_fish', (8, 7, 6)))
  }
  pairs = _pairs(write_methods(tmp_path, _BOTH, **options), BEST, OTHER)
  # A run is no other one for being unfinished.
  assert [pair.names for pair in pairs] == [
    ('FedFish (2 rounds)', 'FedAvg (1 round)')
  ] * (num_rounds is None)
