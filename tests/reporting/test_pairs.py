"""Which arms are compared, and what their names say."""

import json

import pytest
from report_runs import (
  add_metrics,
  read_report,
  write_evaluation,
  write_run,
  write_scored,
  write_sweep,
)

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.pairs import BEST, OTHER, SAME, find_pairs

_DP = {'local_privacy.clip_norm': 1.0, 'local_privacy.noise_multiplier': 2.0}
_FINE_TUNING = {
  'epochs': 4,
  'learning_rate': 0.1,
  'batch_size': 4,
  'sequence_length': 128,
  'split_seed': 3,
  'split_unit': 'documents',
  'max_sequences_per_client': None,
}


def _pairs(directories):
  return list(find_pairs(read_report(directories)))


@pytest.mark.parametrize(
  'ours, theirs, question, names',
  [
    ({}, {}, SAME, ('FedFish', 'FedAvg')),
    (
      {'client_work.optimizer': 'adamw', 'client_work.learning_rate': 0.001},
      {'client_work.learning_rate': 0.03},
      OTHER,
      ('FedFish (AdamW 0.001)', 'FedAvg (SGD 0.03)'),
    ),
    (
      {'server.learning_rate': 0.1, 'client_work.num_local_epochs': 8},
      {},
      OTHER,
      ('FedFish (E = 8, server rate 0.1)', 'FedAvg (E = 1, server rate 0.001)'),
    ),
    (
      {'aggregation.bits': 4, 'server.optimizer': 'sgd'},
      {},
      OTHER,
      (
        'FedFish (server SGD 0.001, 4 bits)',
        'FedAvg (server Adam 0.001, 32 bits)',
      ),
    ),
    (
      {},
      _DP,
      OTHER,
      (
        'FedFish (clip_norm 0, noise_multiplier 0)',
        'FedAvg (clip_norm 1, noise_multiplier 2)',
      ),
    ),
    (
      {'model.width': 64, 'client_work.local_batch_size': 2},
      {'cohorts.cohort_size': 4, 'engine.num_partial_sums': 2},
      OTHER,
      (
        'FedFish (client local_batch_size 2, width 64, cohort_size 8, '
        'num_partial_sums 1)',
        'FedAvg (client local_batch_size 4, width 128, cohort_size 4, '
        'num_partial_sums 2)',
      ),
    ),
    # A method's own setting: named where it is not its default.
    (
      {'algorithm.relative_floor': 0.0, 'algorithm.fisher_power': 1.0},
      {},
      SAME,
      ('FedFish (relative_floor 0)', 'FedAvg'),
    ),
    # They change no result, or say where things are.
    (
      {
        'data.directory': '/elsewhere/debian',
        'evaluation.barrier_every_num_rounds': 1,
        'evaluation.every_num_rounds': 1,
        'checkpoints.every_num_rounds': 1,
        'training.max_non_finite_rounds': 3,
        'seeds.partition_seed': 9,
        'seeds.privacy_seed': 9,
      },
      {},
      SAME,
      ('FedFish', 'FedAvg'),
    ),
  ],
)
def test_all_that_differs_is_named(tmp_path, ours, theirs, question, names):
  runs = []
  for method, settings in (('fed_avg', theirs), ('fed_fish', ours)):
    runs.append(
      write_scored(
        tmp_path / method, (5.0, 6.0), algorithm=method, settings=settings
      )
    )
    identity = {'name': 'c4', 'key': 'host', 'part': None, 'grouping': 'f' * 64}
    identity |= {'schema_version': 1, 'fingerprint': 'f' * 64}
    (runs[-1] / 'corpus.json').write_text(json.dumps(identity))
  [pair] = _pairs(runs)
  assert (pair.question, pair.names) == (question, names)
  assert pair.is_against_baseline


_EVERYWHERE, _ONLY_WITHOUT_TUNING, _NOWHERE = [0.0, 0.5], [0.0], []


@pytest.mark.parametrize(
  'changes, fractions',
  [
    ({}, _EVERYWHERE),
    ({'personalization': {'learning_rate': 1.0}}, _ONLY_WITHOUT_TUNING),
    ({'personalization': {'epochs': 40}}, _ONLY_WITHOUT_TUNING),
    ({'personalization': {'split_unit': 'sequences'}}, _NOWHERE),
    ({'personalization': {'sequence_length': 64}}, _NOWHERE),
    ({'personalization': {'max_sequences_per_client': 16}}, _NOWHERE),
    ({'settings': {'client_work.optimizer': 'adamw'}}, _ONLY_WITHOUT_TUNING),
    (
      {'settings': {'client_work.max_gradient_norm': 0.1}},
      _ONLY_WITHOUT_TUNING,
    ),
    # The rate of fine-tuning is an evaluation's own.
    ({'settings': {'client_work.learning_rate': 0.5}}, _EVERYWHERE),
    ({'settings': {'seeds.model_seed': 9}}, _NOWHERE),
    ({'vocabulary': 'w'}, _NOWHERE),
    ({'round_num': 1}, _NOWHERE),
    ({'client_ids': tuple('abce')}, _NOWHERE),
    ({'kind': 'transfer', 'corpus': 'sotu'}, _NOWHERE),
    ({'corpus': 'other'}, _NOWHERE),
  ],
  ids=str,
)
def test_which_evaluations_are_compared(tmp_path, changes, fractions):
  runs = []
  for method, own in (('fed_avg', changes), ('fed_fish', {})):
    own = {'client_ids': tuple('abcd'), **own}
    own['personalization'] = _FINE_TUNING | own.get('personalization', {})
    runs.append(
      write_run(
        tmp_path / method, algorithm=method, settings=own.pop('settings', {})
      )
    )
    (runs[-1] / 'vocabulary').mkdir()
    path = runs[-1] / 'vocabulary' / 'tokenizer.json'
    path.write_text(own.pop('vocabulary', 'v'))
    write_evaluation(runs[-1], 'e', **own)
  found = read_report(runs).comparisons
  assert [comparison.fraction for comparison in found] == fractions


@pytest.mark.parametrize(
  'algorithm, settings, changes',
  [
    ('fed_avg', _DP, {'seeds.privacy_seed': 9}),
    (
      'fisher_merge',
      {'server.optimizer': 'sgd', 'server.learning_rate': 1.0},
      {'algorithm.keeps_uploads': True, 'seeds.model_seed': 9},
    ),
    ('fed_fish', {}, {'checkpoints.keep_last': 9, 'seeds.shuffle_seed': 9}),
  ],
)
def test_runs_that_differ_in_seeds_are_one_arm(
  tmp_path, algorithm, settings, changes
):
  paths = [
    write_run(tmp_path / 'a', algorithm=algorithm, settings=settings),
    write_run(tmp_path / 'b', algorithm=algorithm, settings=settings | changes),
  ]
  [arm] = read_report(paths).arms
  assert arm.num_seeds == 2


@pytest.mark.parametrize(
  'changes',
  [
    # Other samples of clients, while training, have no common mean.
    {'evaluation.num_clients': 64},
    {'evaluation.max_sequences_per_client': 8},
    {'seeds.split_seed': 9},
    {'algorithm.fisher_estimator': 'last_epoch'},
  ],
)
def test_other_runs_are_arms_of_their_own(tmp_path, changes):
  paths = [
    write_run(tmp_path / 'a'),
    write_run(tmp_path / 'b', settings={'seeds.model_seed': 9} | changes),
  ]
  assert [arm.num_seeds for arm in read_report(paths).arms] == [1, 1]


def test_the_sums_of_a_cohort_of_all_merged_clients(tmp_path):
  paths = [write_run(tmp_path / name) for name in 'ab']
  # By default a cohort is summed up in as many parts as it has clients, or 8.
  for path, num_parts in zip(paths, (0, 5), strict=True):
    config = json.loads((path / 'config.json').read_text())
    config['cohorts'] = {'cohort_size': None}
    config['partition'] = {'scheme': 'merge', 'num_clients': 5}
    config['engine'] = {'kind': 'ray', 'num_partial_sums': num_parts}
    (path / 'config.json').write_text(json.dumps(config))
  one, other = load_runs(paths)
  assert keys.repetition_key(one) == keys.repetition_key(other)


def test_labels_name_what_else_differs(tmp_path):
  gains = {('fed_avg', 4, 2): 1, ('fed_fish', 4, 2): 1, ('fed_fish', 4, 3): 1}
  arms = read_report(write_sweep(tmp_path, gains, num_seeds=2)).arms
  assert [arm.label for arm in arms] == [
    'FedAvg, E = 4',
    'FedFish, E = 4, 2 rounds',
    'FedFish, E = 4, 3 rounds',
  ]


def test_pairs_of_the_same_settings_say_what_they_share(tmp_path):
  gains = {
    (method, epochs, 2): 1.0
    for method in ('fed_avg', 'fed_fish', 'fed_prox')
    for epochs in (1, 4)
  }
  same = [
    pair
    for pair in _pairs(write_sweep(tmp_path, gains, num_seeds=1))
    if pair.question == SAME
  ]
  assert {(' − '.join(pair.names), pair.setting) for pair in same} == {
    (names, f'E = {epochs}')
    for names in ('FedFish − FedAvg', 'FedProx − FedAvg', 'FedProx − FedFish')
    for epochs in (1, 4)
  }
  assert [pair.is_against_baseline for pair in same].count(True) == 4


def test_a_copy_makes_no_pair(tmp_path):
  runs = [
    write_scored(tmp_path / name, (5.0,), algorithm=method)
    for name, method in (('a', 'fed_fish'), ('b', 'fed_fish'), ('c', 'fed_avg'))
  ]
  findings = read_report(runs)
  assert len(findings.arms) == 3
  assert len(list(find_pairs(findings))) == 1


def test_variants_of_one_method(tmp_path):
  runs = [
    write_scored(
      tmp_path / value, (5.0,), settings={'algorithm.fisher_estimator': value}
    )
    for value in ('extra_pass', 'last_epoch')
  ]
  [pair] = _pairs(runs)
  assert pair.names == (
    'FedFish (fisher_estimator last_epoch)',
    'FedFish (fisher_estimator extra_pass)',
  )
  assert (pair.question, pair.is_against_baseline) == (OTHER, False)


def test_rates_of_one_side_are_each_compared(tmp_path):
  runs = [
    write_scored(
      tmp_path / str(rate),
      (5.0,),
      settings={'client_work.learning_rate': rate},
    )
    for rate in (0.1, 0.2, 0.3)
  ]
  assert [
    (pair.question, pair.names, pair.trials) for pair in _pairs(runs)
  ] == [
    (
      OTHER,
      (f'FedFish (client rate {a})', f'FedFish (client rate {b})'),
      (1, 1),
    )
    for b, a in ((0.1, 0.2), (0.1, 0.3), (0.2, 0.3))
  ]


def test_of_many_sides_each_is_compared_with_the_baseline(tmp_path):
  def pairs(number, *widths):
    runs = [
      write_scored(
        tmp_path / f'{number}_{width}',
        (5.0,),
        algorithm=method,
        settings={'model.width': width},
      )
      for method, width in [
        *(('fed_fish', w) for w in widths),
        ('fed_avg', 128),
      ]
    ]
    return _pairs(runs)

  # 6 sides have 15 pairs; of 7 those with FedAvg are left.
  assert len(pairs(6, 16, 32, 48, 64, 80)) == 15
  found = pairs(7, 16, 32, 48, 64, 80, 96)
  assert len(found) == 6
  assert all(pair.arms[1].is_baseline for pair in found)


def _write_grid(root, losses, validation=None, **options):
  """Writes a run for (method, rate) -> loss, with losses of validation."""
  runs = []
  for (method, rate), loss in losses.items():
    path = root / f'{method}{rate}'
    settings = {'client_work.learning_rate': rate}
    runs.append(
      write_scored(
        path, (loss,) * 2, algorithm=method, settings=settings, **options
      )
    )
    if validation:
      values = (9.0, 8.0, validation[method, rate])
      add_metrics(runs[-1], validation__loss=values)
  return runs


_GRID = {
  ('fed_avg', 0.1): 6.5,
  ('fed_avg', 0.01): 6.0,
  ('fed_fish', 0.1): 5.95,
  ('fed_fish', 0.01): 6.2,
  ('fed_fish', 0.03): 6.3,
}


def test_the_best_of_each_grid(tmp_path):
  [pair] = [
    p for p in _pairs(_write_grid(tmp_path, _GRID)) if p.question == BEST
  ]
  assert pair.names == (
    'FedFish (client rate 0.1, best of 3)',
    'FedAvg (client rate 0.01, best of 2)',
  )
  assert pair.trials == (3, 2)
  assert str(pair.chosen_on) == 'held-out clients'


def test_validation_clients_choose_where_all_have_them(tmp_path):
  # By them the others are better.
  validation = {place: 12.0 - loss for place, loss in _GRID.items()}
  runs = _write_grid(tmp_path, _GRID, validation)
  [pair] = [p for p in _pairs(runs) if p.question == BEST]
  assert pair.names == (
    'FedFish (client rate 0.03, best of 3 on validation clients)',
    'FedAvg (client rate 0.1, best of 2 on validation clients)',
  )
  assert pair.chosen_on == 'validation clients'
  add_metrics(runs[0], validation__loss=(9.0, 8.0, ''))
  [pair] = [p for p in _pairs(runs) if p.question == BEST]
  assert str(pair.chosen_on) == 'held-out clients'


def test_a_trial_that_diverged_is_never_the_best(tmp_path):
  runs = _write_grid(tmp_path, _GRID)
  path = runs[2] / 'evaluations' / 'e' / 'per_client.csv'
  path.write_text(path.read_text().replace(',5.95,', ',nan,', 2))
  [pair] = [p for p in _pairs(runs) if p.question == BEST]
  assert pair.names[0] == 'FedFish (client rate 0.01, best of 3)'


def test_a_best_checkpoint_counts_as_its_trials(tmp_path):
  best = {'round': 1, 'best_of_rounds': 3, 'chosen_on': 'held_out_clients'}
  runs = [
    write_scored(
      tmp_path / 'fish',
      (5.0,) * 2,
      evaluation={'round_num': 1, 'facts': {'checkpoint': best}},
    ),
    write_scored(tmp_path / 'average', (6.0,) * 2, algorithm='fed_avg'),
  ]
  # At the same settings no round was scored with both.
  same, pair = _pairs(runs)
  assert (same.question, pair.question) == (SAME, BEST)
  assert pair.names == (
    'FedFish (best of 3, round 1)',
    'FedAvg (round 2)',
  )
  assert (pair.trials, pair.rounds) == ((3, 1), (1, 2))
  [comparison] = read_report(runs).comparisons
  assert comparison.has_choice and comparison.differences['loss'].mean == -1.0
  # Of validation clients' choice the scored clients know nothing.
  best['chosen_on'] = 'validation_clients'
  facts = {'facts': {'checkpoint': best}, 'round_num': 1}
  runs[0] = write_scored(tmp_path / 'v', (5.0,) * 2, evaluation=facts)
  for run in runs:
    add_metrics(run, validation__loss=(9.0, 8.0, 7.0))
  [comparison] = read_report(runs).comparisons
  assert not comparison.has_choice


def test_rounds_may_differ_between_runs_that_ended(tmp_path):
  losses = {'fed_avg': (8.0, 7.0), 'fed_fish': (8.0, 7.0, 6.0)}

  def pairs(**options):
    runs = [
      write_scored(
        tmp_path / f'{method}{len(options)}',
        (5.0,),
        algorithm=method,
        held_out_losses=own,
        evaluation={'round_num': len(own) - 1},
        **options,
      )
      for method, own in losses.items()
    ]
    return _pairs(runs)

  [pair] = pairs()
  assert pair.names == (
    'FedFish (2 rounds, round 2)',
    'FedAvg (1 round, round 1)',
  )
  # The same run is no other one for being unfinished.
  assert [pair.question for pair in pairs(num_rounds=4)] == [SAME]
