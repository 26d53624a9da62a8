"""Who may be compared with whom."""

import json

import pytest

from tff_fedfish.reporting import barriers, comparisons, findings, match
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.repetitions import pool_repetitions
from tff_fedfish.reporting.tables import build_main_table

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
def _write_one(tmp_path, write_run, write_evaluation):
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


def _fractions(runs):
  """Returns the fractions at which methods are compared."""
  found = comparisons.compare_methods(runs)
  return sorted(set(found['fraction']))


_EVERYWHERE, _ONLY_FINE_TUNED, _NOWHERE = [0.0, 0.5], [0.0], []


@pytest.mark.parametrize(
  'changes',
  [
    pytest.param({'settings': settings}, id=next(iter(settings)))
    for settings in (
      {'evaluation.barrier_every_num_rounds': 1},
      {'evaluation.every_num_rounds': 1},
      {'evaluation.num_clients': 3},
      {'data.directory': '/elsewhere/debian'},
      {'data.vocabulary': '/elsewhere/vocabulary'},
      {'checkpoints.every_num_rounds': 1},
      {'training.max_non_finite_rounds': 3},
      {'engine.kind': 'ray', 'engine.num_partial_sums': 1},
      {'engine.num_workers': 2},
      # Read with Ray only, and with a partition only.
      {'engine.threads_per_worker': 4},
      {'seeds.partition_seed': 9},
      # Read with DP-SGD only.
      {'seeds.privacy_seed': 9},
      # A method's own.
      {'client_work.learning_rate': 0.5},
      {'server.optimizer': 'sgd'},
    )
  ],
)
def test_what_changes_no_result_is_compared(write_one, changes):
  runs = load_runs(
    [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg', **changes)]
  )
  assert match.comparable(runs[0]) == match.comparable(runs[1])
  assert _fractions(runs) == _EVERYWHERE
  assert len(barriers.find_pairs(runs)) == 1
  assert not any('not measured' in note for note in findings.notes(runs))


@pytest.mark.parametrize(
  'changes',
  [
    pytest.param({'fingerprint': 'b' * 64}, id='corpus'),
    pytest.param({'vocabulary': 'w'}, id='vocabulary'),
    *(
      pytest.param({'settings': {name: value}}, id=name)
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
  ],
)
def test_other_runs_are_not_compared(write_one, changes):
  runs = load_runs(
    [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg', **changes)]
  )
  assert match.comparable(runs[0]) != match.comparable(runs[1])
  assert _fractions(runs) == _NOWHERE
  assert barriers.find_pairs(runs) == []


@pytest.mark.parametrize(
  'changes, fractions',
  [
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
  ],
)
def test_other_evaluations_are_not_compared(write_one, changes, fractions):
  runs = load_runs(
    [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg', **changes)]
  )
  assert _fractions(runs) == fractions


def test_runs_are_compared_by_an_evaluation_that_both_have(
  write_one, write_evaluation
):
  runs = [write_one('fish', 'fed_fish'), write_one('avg', 'fed_avg')]
  # A later one, by name, of FedFish only.
  write_evaluation(
    runs[0],
    'z',
    losses={0.0: (6.0, 7.0, 5.0, 6.0), 0.5: (1.0,) * 4},
    personalization=_FINE_TUNING | {'learning_rate': 9.0},
  )
  found = comparisons.compare_methods(load_runs(runs))
  assert list(found['mean']) == [0.0] * 4


def test_other_fine_tuning_is_named(write_one):
  runs = load_runs(
    [
      write_one('fish', 'fed_fish'),
      write_one('avg', 'fed_avg', fine_tuning={'learning_rate': 1.0}),
    ]
  )
  assert (
    'The evaluations on held-out clients are not alike, and only those that '
    'are are compared: they differ in learning_rate (0.1 / 1.0).'
  ) in findings.notes(runs)


def test_a_best_value_is_one_of_equal_evaluations(write_one):
  runs = load_runs(
    [
      write_one('fish', 'fed_fish'),
      write_one(
        'avg',
        'fed_avg',
        losses={0.0: (5.0,) * 4, 0.5: (3.0,) * 4},
        fine_tuning={'learning_rate': 1.0},
      ),
    ]
  )
  best = {
    column.key: [cell.is_best for cell in column.cells]
    for column in build_main_table(runs)
  }
  assert best['held_out/loss/0'] == [False, True]
  assert best['held_out/loss/0.5'] == [False, False]


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
  assert match.comparable(runs[0]) == match.comparable(runs[1])


def test_kept_uploads_make_no_other_method(write_one):
  settings = {'server.optimizer': 'sgd', 'server.learning_rate': 1.0}
  settings |= dict.fromkeys(('server.beta_1', 'server.beta_2'))
  settings['server.epsilon'] = None
  keeps = {'algorithm.keeps_uploads': True, 'seeds.model_seed': 9}
  runs = load_runs(
    [
      write_one('a', 'fisher_merge', settings=settings),
      write_one('b', 'fisher_merge', settings=settings | keeps),
    ]
  )
  [pooled] = pool_repetitions(runs)
  assert pooled.num_seeds == 2


def test_a_moved_corpus_makes_no_other_repetition(write_one):
  runs = load_runs(
    [
      write_one('a', 'fed_fish'),
      write_one(
        'b',
        'fed_fish',
        settings={'data.directory': '/moved', 'seeds.model_seed': 9},
      ),
    ]
  )
  [pooled] = pool_repetitions(runs)
  assert pooled.num_seeds == pooled.held_out().num_seeds == 2
