"""The whole demo, small: real corpora, all four runs, the page."""

import csv
import json

import pytest

from tff_fedfish.cli import demo as cli_demo
from tff_fedfish.sweeping import jobs

_OVERRIDES = (
  '--config.model.num_layers=1',
  '--config.model.width=16',
  '--config.model.num_heads=2',
  '--config.data.sequence_length=32',
  '--config.cohorts.cohort_size=3',
  '--config.client_work.max_sequences_per_client=4',
  '--config.training.num_rounds=3',
  '--config.evaluation.every_num_rounds=2',
  '--config.evaluation.num_clients=4',
)
_EPOCHS = {'fed_avg-E1': 1, 'fed_avg-E8': 8, 'fed_fish-E1': 1, 'fed_fish-E8': 8}


def _run(workdir):
  sizes = dict(max_clients=5, max_sequences_per_client=8)
  return cli_demo.run_demo(workdir, _OVERRIDES, **sizes)


@pytest.fixture(scope='module')
def demo(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('demo') / 'run'
  assert _run(workdir) == 0
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
  tables = {
    name: _rows(demo / 'arms' / name / 'metrics.csv') for name in _EPOCHS
  }
  assert all(len(rows) == 4 for rows in tables.values())
  # Same seeds: the same model at round 0, the same clients in every round.
  assert len({rows[0]['held_out/loss'] for rows in tables.values()}) == 1
  for index in (1, 2, 3):
    per_epoch = {
      int(tables[name][index]['train/num_sequences']) / num_epochs
      for name, num_epochs in _EPOCHS.items()
    }
    assert len(per_epoch) == 1
  # The first client steps start from the same weights on the same batches, so
  # with one local epoch both methods see the same training loss in round 1.
  fed_avg, fed_fish = tables['fed_avg-E1'], tables['fed_fish-E1']
  assert fed_avg[1]['train/loss'] == fed_fish[1]['train/loss']
  assert fed_avg[3]['held_out/loss'] != fed_fish[3]['held_out/loss']
  for name, rows in tables.items():
    units = 2 if name.startswith('fed_fish') else 1
    assert int(rows[3]['communication/uplink_units']) == 3 * units


@pytest.mark.parametrize('name', _EPOCHS)
def test_evaluations(demo, name):
  evaluations = demo / 'arms' / name / 'evaluations'
  held_out = evaluations / 'debian_descriptions'
  transfer = evaluations / 'sotu_by_president'
  for directory, kind in ((held_out, 'held_out'), (transfer, 'transfer')):
    summary = json.loads((directory / 'summary.json').read_text())
    assert summary['kind'] == kind
    assert summary['num_clients'] == 5
    assert [p['fraction'] for p in summary['fractions']] == [0, 0.25, 0.5]
    assert len(_rows(directory / 'per_client.csv')) == 15
  assert 0 < len(_rows(held_out / 'barrier.csv')) <= 3


def test_page(demo):
  page = (demo / 'report' / 'index.html').read_text()
  for label in ('FedFish', 'FedAvg', 'E = 8'):
    assert label in page
  assert 'http://' not in page.replace('http://www.w3.org', '')
  assert list((demo / 'report' / 'figures').glob('*.png'))
  assert len(_rows(demo / 'report' / 'summary.csv')) == 4


def test_second_run_does_nothing_but_the_page(demo, capsys):
  before = {
    path: path.stat().st_mtime_ns
    for path in demo.rglob('*')
    if path.is_file() and not {'report', 'sweep.json'} & {*path.parts}
  }
  assert _run(demo) == 0
  output = capsys.readouterr()
  assert 'started' not in output.err
  assert 'FedFish' in output.out
  after = {path: path.stat().st_mtime_ns for path in before}
  assert after == before


def test_a_demo_that_was_interrupted_can_be_continued(
  demo, tmp_path, capsys, monkeypatch
):
  workdir = tmp_path / 'run'
  workdir.mkdir()
  (workdir / 'corpora').symlink_to(demo / 'corpora')
  monkeypatch.setattr(jobs, 'run_jobs', lambda *arguments: 130)
  assert _run(workdir) == 130
  error = capsys.readouterr().err
  assert error.endswith('fedfish: interrupted; the same command continues.\n')
