"""Runs as they are read, and everything that can be wrong with one."""

import dataclasses
import json
import shutil

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import tables
from tff_fedfish.reporting import loading, report
from tff_fedfish.reporting.runs import Subject


def test_labels_and_curves_of_a_pair(pair):
  average, fish = loading.load_runs(pair)
  assert [average.label, fish.label] == ['FedAvg, E = 8', 'FedFish, E = 8']
  assert [average.name, fish.name] == ['average', 'fish']
  assert fish.series('round', 'held_out/loss') == [(0, 8.0), (1, 6.5), (2, 6.0)]
  # Round 0 has no train loss; round r has 9 - r.
  assert fish.series('round', 'train/loss') == [(1, 8.0), (2, 7.0)]
  assert (fish.last_round, fish.num_rounds) == (2, 2)
  assert fish.last('communication/uplink_units') == 4


def test_timings_leave_out_round_0_and_the_slow_first_one(tmp_path, write_run):
  [run] = loading.load_runs(
    [write_run(tmp_path / 'run', held_out_losses=(8.0,) * 6)]
  )
  # Rounds 1 to 5 take 30, 2, 4, 2, 4 s: median 4 (the mean would be 8.4).
  assert run.typical('seconds') == 4.0
  # 1001 to 1005 tokens/s; round 0 is an evaluation.
  assert run.typical('tokens_per_second') == 1003.0
  assert run.typical('peak_memory_bytes') == 2 * 2**30


def test_equal_labels_get_the_directory_names(tmp_path, write_run):
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


@pytest.mark.parametrize(
  'section, method',
  [
    ({'name': 'scaffold_2'}, 'scaffold_2'),
    ({'name': '_'}, '_'),
    ({}, 'unnamed'),
  ],
)
def test_methods_that_the_registry_does_not_know(
  tmp_path, write_run, section, method
):
  [run] = loading.load_runs([write_run(tmp_path / 'run')])
  config = run.config | {'algorithm': section}
  assert dataclasses.replace(run, config=config).method == method


def test_a_method_that_cannot_be_loaded(tmp_path, write_run):
  directory = write_run(
    tmp_path / 'run', algorithm='absent.gain', settings={'algorithm.gain': 3}
  )
  [run] = loading.load_runs([directory])
  assert run.label == 'absent.gain, E = 1'
  assert run.setting('algorithm.gain') == 3
  assert run.train_config is None
  assert run.remarks == (
    "the method 'absent.gain' cannot be loaded: its settings are as written",
  )


def test_other_settings_of_such_a_run_are_checked(tmp_path, write_run):
  directory = write_run(
    tmp_path / 'run',
    algorithm='absent.gain',
    settings={'cohorts.cohort_size': 0},
  )
  with pytest.raises(UserError, match=r'`config.cohorts.cohort_size` must be'):
    loading.load_runs([directory])


def test_evaluations_are_chosen_by_kind_and_latest_round(
  tmp_path, write_run, write_evaluation
):
  directory = write_run(tmp_path / 'run')
  write_evaluation(directory, 'z_early', round_num=1)
  write_evaluation(directory, 'a_late', round_num=2)
  write_evaluation(directory, 'seen', kind='participating', round_num=9)
  write_evaluation(directory, 'other', kind='transfer', corpus='sotu')
  [run] = loading.load_runs([directory])
  assert run.held_out().name == 'a_late'
  assert run.evaluation(Subject('transfer', 'sotu')).name == 'other'
  assert run.evaluation(Subject('transfer', 'shakespeare')) is None
  assert run.barrier() is None


def test_evaluation_scores(pair):
  _, fish = loading.load_runs(pair)
  evaluation = fish.held_out()
  # (5.5 + 6.5 + 5 + 6) / 4 = 5.75; accuracies are (10 - loss) / 100.
  assert evaluation.scores[0.0, 'loss'].mean == 5.75
  assert evaluation.scores[0.0, 'loss'].ci_low == 5.5
  assert evaluation.scores[0.0, 'accuracy'].mean == pytest.approx(0.0425)
  assert list(evaluation.clients_at(0.5)['loss_after']) == [
    5.0,
    6.0,
    4.5,
    4.5,
  ]
  # Barriers 5.2 - 5 = 0.2 and 4.3 - 4 = 0.3; errors 0.30 - 0.25 and 0.
  assert evaluation.barrier['loss'].mean == pytest.approx(0.25)
  assert evaluation.barrier['error'].mean == pytest.approx(0.025)


def test_non_finite_clients_are_left_out_and_counted(
  tmp_path, write_run, write_evaluation
):
  directory = write_run(tmp_path / 'run')
  write_evaluation(
    directory, 'e', losses={0.0: (6.0,) * 4, 0.5: (5.0, float('nan'), 4.0, 7.0)}
  )
  # Python's JSON writes NaN: the mean over these clients is none.
  [run] = loading.load_runs([directory])
  assert len(run.held_out().clients_at(0.5)) == 3
  assert run.held_out().num_non_finite_rows == 1
  assert run.held_out().scores[0.5, 'loss'] is None


def test_a_run_in_progress(tmp_path, write_run):
  directory = write_run(tmp_path / 'run', num_rounds=10)
  with (directory / 'metrics.csv').open('a') as file:
    file.write('3,6.0')  # Being appended; no line end yet.
  (directory / 'evaluations' / '.half.x').mkdir(parents=True)
  (directory / 'evaluations' / 'empty').mkdir()
  (directory / 'timings.csv').unlink()
  (directory / 'environment.json').unlink()
  [run] = loading.load_runs([directory])
  assert (run.last_round, run.num_rounds) == (2, 10)
  assert run.remarks == (
    'the unfinished last line of metrics.csv was left out',
    'evaluations/empty has no summary.json and was left out',
  )
  assert run.typical('seconds') is None
  assert run.environment == {}


def test_a_run_before_its_first_round(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (directory / 'metrics.csv').write_text('round,train/loss\n')
  [run] = loading.load_runs([directory])
  assert run.last_round is None
  assert run.last('train/loss') is None


@pytest.mark.parametrize('missing', ['config.json', 'metrics.csv'])
def test_a_directory_that_is_no_run(tmp_path, write_run, missing):
  directory = write_run(tmp_path / 'run')
  (directory / missing).unlink()
  with pytest.raises(
    UserError, match=f"`--runs` must name run dir.*run' holds no {missing}"
  ):
    loading.load_runs([directory])


def test_a_path_that_is_no_directory(tmp_path):
  with pytest.raises(UserError, match="absent' does not exist"):
    loading.load_runs([tmp_path / 'absent'])
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match="file' is a file"):
    loading.load_runs([tmp_path / 'file'])


def test_a_parent_of_runs_is_hinted_at(tmp_path, write_run):
  write_run(tmp_path / 'fed_fish')
  with pytest.raises(
    UserError, match=r"the runs below it, such as '.*fed_fish', may be meant"
  ):
    loading.load_runs([tmp_path])


def test_a_run_named_twice(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  (tmp_path / 'link').symlink_to(directory)
  with pytest.raises(
    UserError, match=r"name each run once, but '.*run' and '.*link' are the sam"
  ):
    loading.load_runs([directory, tmp_path / 'link'])


@pytest.mark.parametrize(
  'line, found',
  [
    ('3,six,,,,,', r"line 5 .*'six'"),
    ('3,6.0', 'line 5'),
    ('2,6.0,,,,,', r'line 5, .*`round` is 2 after 2'),
    ('2.5,6.0,,,,,', r'line 5, .*`round` is 2.5 after 2'),
    (',6.0,,,,,', r'line 5, .*`round` is None after 2'),
  ],
)
def test_a_damaged_line_is_named(tmp_path, write_run, line, found):
  directory = write_run(tmp_path / 'run')
  with (directory / 'metrics.csv').open('a') as file:
    file.write(line + '\n')
  with pytest.raises(UserError, match=f'metrics.csv.*{found}') as error:
    loading.load_runs([directory])
  assert '\n' not in str(error.value)


def test_a_damaged_per_client_row_is_named(
  tmp_path, write_run, write_evaluation
):
  directory = write_run(tmp_path / 'run')
  evaluation = write_evaluation(directory, 'e')
  with (evaluation / 'per_client.csv').open('a') as file:
    file.write('e.org,0.5,4,500,4,much,0.1,6.0,0.1\n')
  # The header and 2 fractions x 4 clients come first.
  with pytest.raises(UserError, match=r'per_client\.csv.* line 10 '):
    loading.load_runs([directory])


@pytest.mark.parametrize(
  'file, text, found',
  [
    ('config.json', '{\n"a": }', r"config\.json', line 2, must be JSON"),
    ('config.json', '[1]', r'must hold a JSON object, but found a list'),
    ('config.json', b'{"a":\n"\xff"}', r'line 2, must be UTF-8 text'),
    pytest.param(
      'config.json', '[' * 100_000, 'nested too deeply', id='nested'
    ),
    ('config.json', '{"schema_version": 99}', 'found 99. Update fedfish'),
    ('config.json', '{"schema_version": "x"}', "at least 1, found 'x'"),
    ('environment.json', f'[{"9" * 5_000}]', 'cannot be parsed'),
    ('environment.json', '', r"environment\.json', line 1, must be JSON"),
  ],
)
def test_damaged_json_is_named(tmp_path, write_run, file, text, found):
  directory = write_run(tmp_path / 'run')
  data = text if isinstance(text, bytes) else text.encode()
  (directory / file).write_bytes(data)
  with pytest.raises(UserError, match=found) as error:
    loading.load_runs([directory])
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'change, found',
  [
    ({'kind': 'local'}, r"`kind` must be one of held_out, .*is 'local'"),
    ({'fractions': {}}, '`fractions` must be a list, but is {}'),
    ({'fractions': [1]}, '`fractions` must be a list of objects, but is 1'),
    ({'fractions': [{}]}, 'a list with `fraction` in each, but is {}'),
    ({'num_clients': 'x'}, "`num_clients` must be a number, but is 'x'"),
    ({'checkpoint': 3}, '`checkpoint` must be an object, but is 3'),
    ({'schema_version': 2}, 'summary.json.* schema version 2'),
  ],
)
def test_a_wrong_summary_is_named(
  tmp_path, write_run, write_evaluation, change, found
):
  directory = write_run(tmp_path / 'run')
  path = write_evaluation(directory, 'e') / 'summary.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
  with pytest.raises(UserError, match=found):
    loading.load_runs([directory])


def test_a_round_whose_barrier_has_no_clients(pair, tmp_path):
  run = tmp_path / 'run'
  shutil.copytree(pair[1], run)
  tables.write_barriers(run / 'evaluations' / 'held_out' / 'barrier.csv', [])
  (run / 'barrier').mkdir()
  tables.write_barriers(run / 'barrier' / 'round_00000001.csv', [])
  [loaded] = loading.load_runs([run])
  assert loaded.held_out().has_barrier
  assert loaded.held_out().barrier_clients.empty
  assert loaded.barriers_by_round() == {}
  page = report.write_report([loaded], tmp_path / 'report').read_text()
  assert 'no evaluation has a barrier.csv' in page
