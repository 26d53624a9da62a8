"""Methods compared client by client, against differences by hand."""

import csv
import io
import json

import pytest

from tff_fedfish.reporting import comparisons
from tff_fedfish.reporting.loading import load_runs


def _set(run, name, value):
  """Changes one setting of a run."""
  path = run / 'config.json'
  config = json.loads(path.read_text())
  section, key = name.split('.')
  config[section][key] = value
  path.write_text(json.dumps(config))


def _lines(runs, measure='loss'):
  """Returns the lines of one measure."""
  found = comparisons.compare_methods(load_runs(runs))
  return list(found[found['measure'] == measure].itertuples())


def test_pair_by_hand(pair):
  found = {(row.subject, row.fraction): row for row in _lines(pair)}
  assert {(row.method, row.baseline) for row in found.values()} == {
    ('FedFish', 'FedAvg')
  }
  assert set(found) == {
    ('held-out clients', 0.0),
    ('held-out clients', 0.5),
    ('clients of sotu_by_president', 0.0),
    ('clients of sotu_by_president', 0.25),
  }
  # FedFish 5.5, 6.5, 5, 6 and FedAvg 6, 7, 5, 6: -0.5, -0.5, 0, 0.
  row = found['held-out clients', 0.0]
  assert row.mean == -0.25
  assert row.share_below_zero == 0.5
  assert (row.num_clients, row.num_seeds) == (4, 1)
  assert (row.ci_low, row.ci_high) == (-0.5, 0.0)
  # An interval that ends at 0 decides nothing.
  assert comparisons.verdict(row) == 'undecided'
  # Accuracies are (10 - loss) / 100.
  accuracy, *_ = _lines(pair, 'accuracy')
  assert (accuracy.subject, accuracy.fraction) == ('held-out clients', 0.0)
  assert accuracy.mean == pytest.approx(0.0025)
  # 6.5 - 7 and 7 - 7.5 (both lost 0.5), so that all resamples are -0.5.
  row = found['clients of sotu_by_president', 0.0]
  assert (row.ci_low, row.ci_high) == (-0.5, -0.5)
  assert comparisons.verdict(row) == 'FedFish lower'
  assert row.setting == ''


def test_csv_has_both_measures_of_a_row(pair, report_of_pair):
  text = (report_of_pair / 'comparisons.csv').read_text()
  lines = list(csv.DictReader(io.StringIO(text)))
  assert len(lines) == 2 * len(_lines(pair))
  # As in test_pair_by_hand.
  assert lines[0] == {
    'setting': '',
    'method': 'FedFish',
    'baseline': 'FedAvg',
    'subject': 'held-out clients',
    'fraction': '0.0',
    'measure': 'loss',
    'mean': '-0.25',
    'ci_low': '-0.5',
    'ci_high': '0.0',
    'share_below_zero': '0.5',
    'num_seeds': '1',
    'num_clients': '4',
    'seed_means': "'-0.25",
  }
  assert lines[1]['measure'] == 'accuracy'
  assert float(lines[1]['mean']) == pytest.approx(0.0025)


def _seeds(tmp_path, write_run, write_evaluation, gains):
  """Returns runs in which a seed's FedFish is better by its gain."""
  runs = []
  for seed, gain in enumerate(gains, start=1):
    for algorithm in ('fed_avg', 'fed_fish'):
      run = write_run(tmp_path / f'{algorithm}_{seed}', algorithm=algorithm)
      _set(run, 'seeds.model_seed', seed)
      # Each method has learning rates of its own.
      _set(run, 'server.learning_rate', 0.1 if algorithm == 'fed_avg' else 0.2)
      loss = 8.0 - (gain if algorithm == 'fed_fish' else 0)
      write_evaluation(run, 'held_out', losses={0.0: (loss,) * 4})
      runs.append(run)
  return runs


def test_seeds_are_repetitions(tmp_path, write_run, write_evaluation):
  runs = _seeds(tmp_path, write_run, write_evaluation, (1.0, 3.0))
  (row,) = _lines(runs)
  assert (row.method, row.baseline, row.setting) == ('FedFish', 'FedAvg', '')
  assert row.mean == -2.0
  assert row.num_seeds == 2
  # Two seeds have no interval, but their differences.
  assert row.ci_low is row.ci_high is None
  assert comparisons.shown_interval(row, '%+.1f', 1) == '−1.0 and −3.0'
  assert comparisons.verdict(row) == 'undecided'


def test_three_seeds_are_few(tmp_path, write_run, write_evaluation):
  runs = _seeds(tmp_path, write_run, write_evaluation, (1.0, 2.0, 3.0))
  (row,) = _lines(runs)
  # The bootstrap has -3 to -1; Student's t -2 +- 4.3027 / sqrt(3).
  assert row.ci_low == pytest.approx(-4.4842, abs=1e-4)
  assert row.ci_high == pytest.approx(0.4842, abs=1e-4)
  assert comparisons.shown_interval(row, '%+.1f', 1) == '−4.5 to +0.5'
  assert comparisons.verdict(row) == 'undecided'


def test_other_settings_are_not_compared(tmp_path, write_run, write_evaluation):
  runs = []
  for num_local_epochs in (1, 8):
    for algorithm in ('fed_fish', 'fed_avg'):
      run = write_run(
        tmp_path / f'{algorithm}_{num_local_epochs}',
        algorithm=algorithm,
        num_local_epochs=num_local_epochs,
      )
      # A method of its own, not another setting.
      _set(run, 'algorithm.relative_floor', num_local_epochs * 1e-8)
      write_evaluation(run, 'held_out', losses={0.0: (6.0, 7.0, 5.0, 6.0)})
      runs.append(run)
  rows = _lines(runs)
  assert [row.setting for row in rows] == ['E = 1', 'E = 8']
  assert {row.mean for row in rows} == {0.0}
  # Alone with its setting, nothing is compared with it.
  alone = load_runs(runs[:1] + runs[3:])
  assert comparisons.compare_methods(alone).empty


def test_variants_of_a_method(tmp_path, write_run, write_evaluation):
  runs = []
  for name, estimator in (('a', 'extra_pass'), ('b', 'last_epoch')):
    run = write_run(tmp_path / name)
    _set(run, 'algorithm.fisher_estimator', estimator)
    write_evaluation(run, 'held_out', losses={0.0: (6.0, 7.0, 5.0, 6.0)})
    runs.append(run)
  (row,) = _lines(runs)
  assert row.baseline == "FedFish (fisher_estimator 'extra_pass')"
  assert row.method == "FedFish (fisher_estimator 'last_epoch')"


def test_page_shows_them(report_of_pair):
  page = (report_of_pair / 'index.html').read_text()
  assert 'Method against method, client by client' in page
  assert 'FedFish − FedAvg' in page
  assert '−0.2500' in page and '−0.5000 to +0.0000' in page
  assert 'pigeonhole bootstrap, Owen 2007; 2,000 resamples' in page
