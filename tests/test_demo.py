"""The whole demo, small: real corpora, all four runs, the page."""

import csv
import json

import pytest

from tff_fedfish.cli.main import main
from tff_fedfish.demo import ARMS, DemoSettings, run_demo
from tff_fedfish.sweeping import jobs

_SETTINGS = DemoSettings(
  overrides=(
    '--config.model.num_layers=1',
    '--config.model.width=16',
    '--config.model.num_heads=2',
    '--config.data.sequence_length=32',
    '--config.cohorts.cohort_size=3',
    '--config.client_work.max_sequences_per_client=4',
    '--config.training.num_rounds=3',
    '--config.evaluation.every_num_rounds=2',
    '--config.evaluation.num_clients=4',
  ),
  max_clients=5,
  max_sequences_per_client=8,
)


@pytest.fixture(scope='module')
def demo(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('demo') / 'run'
  assert run_demo(main, workdir, _SETTINGS) == 0
  return workdir


def _rows(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def test_corpora_are_grouped_whole(demo):
  counts = {}
  for name in ('debian_descriptions', 'sotu_by_president'):
    manifest = json.loads(
      (demo / 'corpora' / name / 'manifest.json').read_text()
    )
    counts[name] = manifest['counts']
  # The READMEs of the corpora: 26,569 records in the training shards; 233
  # addresses by 43 presidents.
  assert counts['debian_descriptions']['records_in'] == 26_569
  assert counts['debian_descriptions']['records_out'] == 26_569
  assert counts['sotu_by_president']['records_out'] == 233
  assert counts['sotu_by_president']['num_groups'] == 43


def test_runs_share_cohorts_and_start(demo):
  tables = {arm.name: _rows(demo / arm.name / 'metrics.csv') for arm in ARMS}
  assert all(len(rows) == 4 for rows in tables.values())
  # Same seeds: the same model at round 0, the same clients in every round.
  assert len({rows[0]['held_out/loss'] for rows in tables.values()}) == 1
  for index in (1, 2, 3):
    per_epoch = {
      int(tables[arm.name][index]['train/num_sequences']) / arm.num_local_epochs
      for arm in ARMS
    }
    assert len(per_epoch) == 1
  # The first client steps start from the same weights on the same batches, so
  # with one local epoch both methods see the same training loss in round 1.
  assert (
    tables['fed_avg_e1'][1]['train/loss']
    == tables['fed_fish_e1'][1]['train/loss']
  )
  assert (
    tables['fed_avg_e1'][3]['held_out/loss']
    != tables['fed_fish_e1'][3]['held_out/loss']
  )
  for arm in ARMS:
    units = 2 if arm.algorithm == 'fed_fish' else 1
    uplink = tables[arm.name][3]['communication/uplink_units']
    assert int(uplink) == 3 * units


@pytest.mark.parametrize('arm', ARMS, ids=lambda arm: arm.name)
def test_evaluations(demo, arm):
  held_out = demo / arm.name / 'evaluations' / 'debian_descriptions'
  transfer = demo / arm.name / 'evaluations' / 'sotu_by_president'
  for directory, kind in ((held_out, 'held_out'), (transfer, 'transfer')):
    summary = json.loads((directory / 'summary.json').read_text())
    assert summary['kind'] == kind
    assert summary['num_clients'] == 5
    assert [p['fraction'] for p in summary['fractions']] == [0, 0.25, 0.5]
    assert len(_rows(directory / 'per_client.csv')) == 15
  barrier = _rows(held_out / 'barrier.csv')
  assert 0 < len(barrier) <= 3


def test_page(demo):
  page = (demo / 'report' / 'index.html').read_text()
  for label in ('FedFish', 'FedAvg', 'E = 8'):
    assert label in page
  assert 'http://' not in page.replace('http://www.w3.org', '')
  assert list((demo / 'report' / 'figures').glob('*.png'))
  rows = _rows(demo / 'report' / 'summary.csv')
  assert len(rows) == 4


def test_second_run_does_nothing_but_the_page(demo, capsys):
  before = {
    path: path.stat().st_mtime_ns
    for path in demo.rglob('*')
    if path.is_file() and 'report' not in path.parts
  }
  assert run_demo(main, demo, _SETTINGS) == 0
  output = capsys.readouterr()
  assert 'fedfish train' not in output.err
  assert 'FedFish' in output.out
  after = {path: path.stat().st_mtime_ns for path in before}
  assert after == before


def test_failure_names_the_run_and_its_reason(demo, capsys):
  import shutil

  # A run whose config was changed cannot be continued.
  run = demo.parent / 'broken'
  shutil.copytree(demo, run)
  shutil.rmtree(run / 'fed_avg_e8' / 'evaluations')
  config = json.loads((run / 'fed_avg_e8' / 'config.json').read_text())
  config['server']['learning_rate'] = 0.99
  (run / 'fed_avg_e8' / 'config.json').write_text(json.dumps(config))
  assert run_demo(main, run, _SETTINGS) == 2
  error = capsys.readouterr().err
  assert 'the run fed_avg_e8 ended with exit code 2' in error
  assert 'different in server.learning_rate' in error


@pytest.mark.parametrize('code', [130, 143])
def test_a_run_that_was_interrupted_can_be_continued(
  code, demo, tmp_path, capsys, monkeypatch
):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  (workdir / 'corpora').symlink_to(demo / 'corpora')

  def run_jobs(run_command, jobs, num_at_a_time, on_tick, on_end):
    del run_command, num_at_a_time, on_tick
    for job in jobs:
      # A demo has failed if a run diverges.
      assert not job.evaluates_diverged
      on_end(job, code)
    return 0

  monkeypatch.setattr(jobs, 'run_jobs', run_jobs)
  assert run_demo(main, workdir, _SETTINGS) == code
  error = capsys.readouterr().err
  assert error.endswith('fedfish: interrupted; the same command continues.\n')
