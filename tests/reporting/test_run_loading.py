"""Runs as they are read, and everything that can be wrong with one."""

import json
import math

import pytest
from report_runs import (
  add_metrics,
  read_report,
  write_evaluation,
  write_run,
  write_scored,
)

from tff_fedfish.errors import UserError
from tff_fedfish.reporting import loading, notes


def test_labels_and_curves_of_a_pair(pair):
  average, fish = loading.load_runs(pair)
  assert [average.label, fish.label] == ['FedAvg, E = 8', 'FedFish, E = 8']
  assert [average.name, fish.name] == ['average', 'fish']
  assert fish.series('round', 'held_out/loss') == [(0, 8.0), (1, 6.5), (2, 6.0)]
  # Round 0 has no train loss; round r has 9 - r.
  assert fish.series('round', 'train/loss') == [(1, 8.0), (2, 7.0)]
  assert (fish.last_round, fish.num_rounds) == (2, 2)
  assert fish.last('communication/uplink_units') == 4


def test_timings_are_medians_without_round_0(tmp_path):
  [run] = loading.load_runs(
    [write_run(tmp_path / 'run', held_out_losses=(8.0,) * 6)]
  )
  # Rounds 1 to 5 take 30, 2, 4, 2, 4 s: median 4 (the mean would be 8.4).
  assert run.typical('seconds') == 4.0
  assert run.typical('peak_memory_bytes') == 2 * 2**30


def test_equal_labels_get_the_directory_names(tmp_path):
  runs = loading.load_runs(
    [
      write_run(tmp_path / 'x' / 'seed_1'),
      write_run(tmp_path / 'x' / 'seed_2'),
      write_run(tmp_path / 'y' / 'seed_2'),
      write_run(tmp_path / 'x' / 'avg', algorithm='fed_avg'),
    ]
  )
  assert [run.label for run in runs] == [
    'FedFish, E = 1 (seed_1)',
    'FedFish, E = 1 (x/seed_2)',
    'FedFish, E = 1 (y/seed_2)',
    'FedAvg, E = 1',
  ]


def test_a_run_that_diverged_says_so(tmp_path):
  run, other = (
    write_run(
      tmp_path / str(seed),
      num_rounds=9,
      settings={'training.max_non_finite_rounds': 2, 'seeds.model_seed': seed},
    )
    for seed in (1, 2)
  )
  # Both rounds: one client, and its update is not finite.
  text = (run / 'metrics.csv').read_text()
  (run / 'metrics.csv').write_text(text.replace(',0,', ',1,'))
  add_metrics(run, train__num_clients=('', 1, 1))
  [loaded] = loading.load_runs([run])
  assert loaded.label == 'FedFish, E = 1 (diverged)'
  [arm] = read_report([run, other]).arms
  assert arm.label == 'FedFish, E = 1 (1 of 2 diverged)'


def test_a_run_in_progress(tmp_path):
  directory = write_run(tmp_path / 'run', num_rounds=10)
  with (directory / 'metrics.csv').open('a') as file:
    file.write('3,6.0')  # Being appended; no line end yet.
  (directory / 'evaluations' / '.half.x').mkdir(parents=True)
  (directory / 'timings.csv').unlink()
  (directory / 'starts.jsonl').unlink()
  [run] = loading.load_runs([directory])
  assert (run.last_round, run.num_rounds) == (2, 10)
  assert (run.remarks, run.environment, run.timings) == ((), {}, ())


_CLIENTS = (
  'client_id,fraction,num_evaluation_sequences,num_evaluation_tokens,'
  'num_personalization_sequences,loss_before,accuracy_before,loss_after,'
  'accuracy_after,model\n'
)
_NUMBERS = ',0.0,4,500,0,6.0,0.1,6.0,0.1,'


@pytest.mark.parametrize(
  'file, change',
  [
    ('summary.json', '{"kind": "held'),
    ('summary.json', None),
    ('per_client.csv', 'client_id,fraction\na,much\n'),
    ('per_client.csv', f'{_CLIENTS}a{_NUMBERS}global\nb{_NUMBERS}personal\n'),
    ('per_client.csv', f'{_CLIENTS}a{_NUMBERS}mine\n'),
    ('barrier.csv', 'client_id\na\n'),
  ],
)
def test_a_damaged_evaluation_costs_a_note(tmp_path, file, change):
  run = write_run(tmp_path / 'run')
  write_evaluation(run, 'whole')
  path = write_evaluation(run, 'z', barriers=((4.0, 4.5, 0.2, 0.1),)) / file
  path.unlink() if change is None else path.write_text(change)
  findings = read_report([run])
  assert [e.name for e in findings.runs[0].evaluations] == ['whole']
  [note] = notes.notes(findings)
  assert note.startswith('FedFish, E = 1: evaluation z was left out: ')
  assert file in note
  # Neither a path of this machine nor advice to whoever evaluated.
  assert str(tmp_path) not in note and note.count('. ') == 0


def test_clients_that_are_not_finite_stay(tmp_path):
  # After personalization one loss overflowed; the file has its accuracy still.
  losses = {0.0: (6.0, 5.0), 0.5: (math.inf, 4.0)}
  [run] = loading.load_runs([write_scored(tmp_path / 'run', losses)])
  [evaluation] = run.evaluations
  found = evaluation.scores_at(0.5)
  assert found['loss_after'].tolist() == [math.inf, 4.0]
  # That of NaNs is no score.
  assert math.isnan(found['accuracy_after'].iloc[0])
  assert found['accuracy_before'].tolist() == [0.04, 0.05]


def _no_config(run):
  (run / 'config.json').unlink()
  return run


def _parent(run):
  return run.parent


def _sweep(run):
  (run.parent / 'sweep.json').touch()
  return run.parent


@pytest.mark.parametrize(
  'directory, message',
  [
    (_no_config, r"but '.*run' holds no config.json"),
    (_parent, r"The runs below it may be meant, such as '.*run'"),
    (_sweep, 'is a sweep of which no run has begun'),
    (lambda run: run / 'absent', "absent' does not exist"),
    (lambda run: run / 'config.json', "config.json' is a file"),
  ],
)
def test_a_directory_that_is_no_run(tmp_path, directory, message):
  path = directory(write_run(tmp_path / 'run'))
  with pytest.raises(UserError, match=message):
    loading.load_runs([path])


def test_a_sweep_stands_for_its_runs(tmp_path):
  alone = write_run(tmp_path / 'alone')
  arms = [write_run(tmp_path / 'sweep' / 'arms' / name) for name in 'ba']
  (tmp_path / 'sweep' / 'sweep.json').write_text('{}')
  (arms[0].parent / 'waits').mkdir()
  runs = loading.load_runs([alone, tmp_path / 'sweep'])
  assert [run.directory for run in runs] == [alone, arms[1], arms[0]]


def test_a_search_of_learning_rates_is_read(tmp_path):
  arms = [write_run(tmp_path / 'arms' / name) for name in ('avg', 'fish')]
  groups = [{'algorithm.name': name} for name in ('fed_avg', 'fed_fish')]
  record = {
    'arms': [
      {'name': arm.name, 'settings': group | {'seeds.model_seed': 5}}
      for arm, group in zip(arms, groups, strict=True)
    ],
    # Of the first method nothing was searched.
    'learning_rates': [{'for': groups[1], 'num_validation_clients': 12}],
    'search_runs': [
      {'settings': group | {'client_work.learning_rate': rate}}
      for group, rate in ((groups[0], 1), (groups[1], 1), (groups[1], 2))
    ],
  }
  (tmp_path / 'sweep.json').write_text(json.dumps(record))
  alone = write_run(tmp_path / 'alone')
  findings = read_report([tmp_path, alone])
  searches = [run.search for run in findings.runs]
  assert searches == [None, (2, 12), None]
  words = 'learning rates are the best of 2 on 12 validation clients.'
  assert sum(words in note for note in notes.notes(findings)) == 1


def test_a_run_named_twice(tmp_path):
  directory = write_run(tmp_path / 'run')
  (tmp_path / 'link').symlink_to(directory)
  with pytest.raises(
    UserError, match=r"name each run once, but '.*run' and '.*link' are the sam"
  ):
    loading.load_runs([directory, tmp_path / 'link'])


@pytest.mark.parametrize(
  'file, text, message',
  [
    ('config.json', '{\n"a": }', 'JSON object of a run, .*line 2 column 6'),
    ('config.json', '[1]', r'must be an object, but is \[1\]'),
    ('config.json', b'{"a":\n"\xff"}', "'utf-8' codec can't decode byte 0xff"),
    pytest.param(
      'config.json', '[' * 100_000, 'nested too deeply', id='nested'
    ),
    ('config.json', '{"schema_version": 99}', 'found 99. Update fedfish'),
    ('metrics.csv', 'round,train/loss\n1,six\n', "metrics.csv.*'six'"),
    ('timings.csv', 'round\n2\n2\n', 'timings.csv.*line 3 .* 2, found 2'),
  ],
)
def test_damaged_files_are_named(tmp_path, file, text, message):
  directory = write_run(tmp_path / 'run')
  data = text if isinstance(text, bytes) else text.encode()
  (directory / file).write_bytes(data)
  with pytest.raises(UserError, match=message) as error:
    loading.load_runs([directory])
  assert '\n' not in str(error.value)


def test_a_method_that_cannot_be_loaded_is_named(tmp_path):
  run = write_run(tmp_path / 'run', algorithm='absent.gain')
  with pytest.raises(UserError, match="'absent.gain'.* put that on PYTHONPATH"):
    loading.load_runs([run])


def _identity(name, fingerprint):
  return {
    'name': name,
    'key': 'domain',
    'part': None,
    'grouping': 'g',
    'fingerprint': fingerprint,
  }


def test_corpora_are_known_by_their_fingerprints(tmp_path):
  run = write_run(tmp_path / 'run')
  own = {'schema_version': 1, **_identity('posts', 'own')}
  (run / 'corpus.json').write_text(json.dumps(own))
  for name, kind, corpus, fingerprint in (
    # Both directories are called held_out.
    ('news', 'transfer', 'held_out', 'news' * 4),
    ('plays', 'transfer', 'held_out', 'plays' * 4),
    ('own', 'held_out', 'posts, train', 'own'),
    ('part', 'held_out', 'posts, held_out', 'part'),
  ):
    facts = {'corpus_identity': _identity(name, fingerprint)}
    write_evaluation(run, name, kind=kind, corpus=corpus, facts=facts)
  [loaded] = loading.load_runs([run])
  assert [str(loaded.subject_of(e)) for e in loaded.evaluations] == [
    'clients of held_out (news, newsnews)',
    'held-out clients',
    'held-out clients of posts, held_out',
    'clients of held_out (plays, playspla)',
  ]


def test_another_part_is_held_out_where_no_own_client_was_scored(tmp_path):
  run = write_run(tmp_path / 'run')
  facts = {'corpus_identity': _identity('posts', 'part')}
  write_evaluation(run, 'part', facts=facts)
  write_evaluation(run, 'seen', kind='participating')
  [loaded] = loading.load_runs([run])
  assert [str(loaded.subject_of(e)) for e in loaded.evaluations] == [
    'held-out clients',
    'None',
  ]
