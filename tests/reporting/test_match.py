"""Who may be compared with whom."""

import json

import pytest
from report_runs import write_evaluation, write_run, write_sweep

from tff_fedfish.reporting import comparisons, keys, match, scores
from tff_fedfish.reporting.loading import load_runs

_FINGERPRINT = 'a' * 64
_FINE_TUNING = {
  'epochs': 4,
  'learning_rate': 0.1,
  'batch_size': 4,
  'sequence_length': 128,
  'split_seed': 3,
  'split_unit': 'documents',
  'max_sequences_per_client': None,
}


@pytest.fixture(name='write_one')
def _write_one(tmp_path):
  """Writes one run of two that are alike but for the method and `changes`."""

  def write(
    name,
    algorithm,
    *,
    settings=None,
    fingerprint=_FINGERPRINT,
    vocabulary='v',
    fine_tuning=None,
    facts=None,
    **changes,
  ):
    run = write_run(
      tmp_path / name, algorithm=algorithm, settings=settings, num_rounds=2
    )
    identity = {
      'schema_version': 1,
      'name': 'c4',
      'key': 'host',
      'part': None,
      'grouping': fingerprint,
      'fingerprint': fingerprint,
    }
    (run / 'corpus.json').write_text(json.dumps(identity))
    (run / 'vocabulary').mkdir()
    (run / 'vocabulary' / 'tokenizer.json').write_text(vocabulary)
    write_evaluation(
      run,
      'e',
      barriers=((4.0, 4.5, 0.2, 0.1),) * 2,
      personalization=_FINE_TUNING | (fine_tuning or {}),
      facts=facts,
      **changes,
    )
    return run

  return write


_EVERYWHERE, _ONLY_FINE_TUNED, _NOWHERE = [0.0, 0.5], [0.0], []
_NEVER_COMPARED = {
  'evaluation.barrier_every_num_rounds': 1,
  'evaluation.every_num_rounds': 1,
  'evaluation.num_clients': 3,
  'data.directory': '/elsewhere/debian',
  'data.vocabulary': '/elsewhere/vocabulary',
  'checkpoints.every_num_rounds': 1,
  'training.max_non_finite_rounds': 3,
  # Read with a partition only, with DP-SGD only.
  'seeds.partition_seed': 9,
  'seeds.privacy_seed': 9,
  # A method's own.
  'client_work.learning_rate': 0.5,
  'server.optimizer': 'sgd',
}


@pytest.mark.parametrize(
  'changes, fractions',
  [
    ({'fingerprint': 'b' * 64}, _NOWHERE),
    ({'vocabulary': 'w'}, _NOWHERE),
    ({'settings': _NEVER_COMPARED}, _EVERYWHERE),
    (
      {
        'settings': {
          'engine.kind': 'ray',
          'engine.num_workers': 1,
          'engine.gpus_per_worker': 1,
          'engine.num_partial_sums': 1,
        }
      },
      _EVERYWHERE,
    ),
    *(
      ({'settings': {name: value}}, _NOWHERE)
      for name, value in (
        ('seeds.split_seed', 9),
        ('seeds.cohort_seed', 9),
        ('seeds.model_seed', 9),
        ('model.width', 64),
        ('client_work.num_local_epochs', 2),
        ('client_work.micro_batch_size', 2),
        ('cohorts.cohort_size', 4),
        ('data.sequence_length', 64),
        ('training.num_rounds', 3),
        ('engine.num_partial_sums', 2),
        # With Ray a cohort of 8 is summed up in 8 parts.
        ('engine.kind', 'ray'),
      )
    ),
    ({'fine_tuning': {'learning_rate': 1.0}}, _ONLY_FINE_TUNED),
    ({'fine_tuning': {'epochs': 40}}, _ONLY_FINE_TUNED),
    ({'fine_tuning': {'split_unit': 'sequences'}}, _NOWHERE),
    ({'fine_tuning': {'sequence_length': 64}}, _NOWHERE),
    ({'fine_tuning': {'max_sequences_per_client': 16}}, _NOWHERE),
    ({'round_num': 1}, _NOWHERE),
    # Of `--max_clients`.
    ({'facts': {'skipped_clients': {'beyond_max_clients': 4}}}, _NOWHERE),
    ({'facts': {'num_clients': 3}}, _NOWHERE),
    ({'kind': 'transfer', 'corpus': 'sotu'}, _NOWHERE),
    # Both held out.
    ({'corpus': 'other'}, _NOWHERE),
  ],
  ids=str,
)
def test_which_runs_are_compared(write_one, changes, fractions):
  runs = load_runs(
    [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg', **changes)]
  )
  compared = comparisons.compare_methods(match.find_arms(runs))
  assert sorted(set(compared['fraction'])) == fractions


def test_runs_are_compared_by_an_evaluation_that_both_have(write_one):
  runs = [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg')]
  # A later one, by name, of FedFish only.
  write_evaluation(
    runs[0],
    'z',
    losses={0.0: (6.0, 7.0, 5.0, 6.0), 0.5: (1.0,) * 4},
    personalization=_FINE_TUNING | {'learning_rate': 9.0},
  )
  found = scores.read_scores(load_runs(runs)).comparisons
  assert list(found['mean']) == [0.0] * 4


def test_the_last_by_number_stands_for_equal_evaluations(write_one):
  run = write_one('fish', 'fed_fish')
  for name in ('run9', 'run10'):
    write_evaluation(run, name, personalization=_FINE_TUNING)
  write_evaluation(run, 'run11', round_num=1)
  means = scores.read_scores(load_runs([run])).means
  assert set(means['evaluation'][means['is_final']]) == {'run10'}
  assert set(means['evaluation'][means['is_shown']]) == {'run10', 'e'}
  # Only it has a barrier.
  shown = means[means['is_shown'] & (means['evaluation'] == 'e')]
  assert set(shown['subject']) == {''}


def test_the_latest_of_several_evaluations_is_compared(write_one):
  runs = [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg')]
  for run in runs:
    fewer = {'max_sequences_per_client': 16}
    write_evaluation(run, 'f', personalization=_FINE_TUNING | fewer)
    write_evaluation(run, 'g', round_num=1)
  # Later, but of one arm.
  write_evaluation(runs[0], 'h', personalization={'sequence_length': 64})
  table = scores.read_scores(load_runs(runs)).comparisons
  for evaluations in table['evaluations']:
    assert [evaluation.name for evaluation in evaluations] == ['f', 'f']
  assert list(table['round']) == [2] * 4


@pytest.mark.parametrize(
  'algorithm, settings, changes',
  [
    (
      'fed_avg',
      {'local_privacy.clip_norm': 1.0, 'local_privacy.noise_multiplier': 1.0},
      {'seeds.privacy_seed': 9},
    ),
    (
      'fisher_merge',
      {'server.optimizer': 'sgd', 'server.learning_rate': 1.0},
      {'algorithm.keeps_uploads': True, 'seeds.model_seed': 9},
    ),
    ('fed_fish', {}, {'data.directory': '/moved', 'seeds.model_seed': 9}),
  ],
)
def test_what_makes_a_repetition(write_one, algorithm, settings, changes):
  paths = [
    write_one('a', algorithm, settings=settings),
    write_one('b', algorithm, settings=settings | changes),
  ]
  [arm] = match.find_arms(load_runs(paths))
  assert arm.num_seeds == 2


def test_the_sums_of_a_cohort_of_all_merged_clients(write_one):
  paths = [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg')]
  # By default a cohort is summed up in as many parts as it has clients, or 8.
  for path, num_parts in zip(paths, (0, 5), strict=True):
    config = json.loads((path / 'config.json').read_text())
    config['cohorts'] = {'cohort_size': None}
    config['partition'] = {'scheme': 'merge', 'num_clients': 5}
    config['engine'] = {'kind': 'ray', 'num_partial_sums': num_parts}
    (path / 'config.json').write_text(json.dumps(config))
  runs = load_runs(paths)
  assert keys.setting_key(runs[0]) == keys.setting_key(runs[1])


def test_labels_name_what_else_differs(tmp_path):
  directories = write_sweep(
    tmp_path,
    {('fed_avg', 4, 2): 1, ('fed_fish', 4, 2): 1, ('fed_fish', 4, 3): 1},
    num_seeds=2,
  )
  arms = match.find_arms(load_runs(directories))
  assert [arm.label for arm in arms] == [
    'FedAvg, E = 4',
    'FedFish, E = 4, rounds = 2',
    'FedFish, E = 4, rounds = 3',
  ]


def test_without_repetitions_each_run_is_an_arm(tmp_path):
  # Equal seeds: a copy. Another split holds out other clients.
  for name, settings in (
    ('a', {}),
    ('b', {}),
    ('c', {'seeds.split_seed': 9}),
  ):
    write_run(tmp_path / name, settings=settings)
  runs = load_runs(sorted(tmp_path.iterdir()))
  assert [arm.runs for arm in match.find_arms(runs)] == [(r,) for r in runs]


def test_a_setting_with_its_default_is_equal(tmp_path):
  paths = [
    write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    for seed in (1, 2, 3)
  ]
  for path, value in zip(paths, ('none', 'tensor_mean'), strict=False):
    config = json.loads((path / 'config.json').read_text())
    config['algorithm']['fisher_normalization'] = value
    (path / 'config.json').write_text(json.dumps(config))
  arms = match.find_arms(load_runs(paths))
  # The third has no such setting: its default, as the first.
  assert sorted(arm.num_seeds for arm in arms) == [1, 2]


def test_variants_of_a_method_are_compared(write_one):
  runs = load_runs(
    [
      write_one(value, 'fed_fish', settings={setting: value})
      for setting, value in (
        ('algorithm.fisher_estimator', 'extra_pass'),
        ('algorithm.fisher_estimator', 'last_epoch'),
      )
    ]
  )
  [pair] = match.find_pairs(match.find_arms(runs))
  assert pair.baseline == "FedFish (fisher_estimator 'extra_pass')"
  assert pair.method == "FedFish (fisher_estimator 'last_epoch')"
  assert not pair.is_against_baseline


def test_the_baseline_is_subtracted_from_each_method(tmp_path):
  gains = {(m, e, 2): 1 for m in ('fed_fish', 'fed_avg') for e in (1, 4)}
  arms = match.find_arms(load_runs(write_sweep(tmp_path, gains, num_seeds=1)))
  assert [
    (pair.setting, pair.method, pair.baseline)
    for pair in match.find_pairs(arms)
  ] == [('E = 1', 'FedFish', 'FedAvg'), ('E = 4', 'FedFish', 'FedAvg')]
