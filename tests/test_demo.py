"""The demo with small corpora, models and a part of its sweep and scores."""

import csv
import gzip
import json

import pytest
import small_runs

from tff_fedfish import corpora
from tff_fedfish.cli import demo as cli_demo
from tff_fedfish.config import given
from tff_fedfish.evaluation import results
from tff_fedfish.run import tables
from tff_fedfish.sweeping import expand, jobs, run, sweep_file

_METHODS = ('fed_fish', 'fed_avg')
# configs/demo.py with one number of local epochs.
_CONFIG = """
import runpy

_DEMO = runpy.run_path({path!r})
get_config = _DEMO['get_config']


def get_sweep():
  sweep = _DEMO['get_sweep']()
  del sweep['grid']['client_work.num_local_epochs']
  return sweep
"""


def _run_here(run_command, runs, num_at_a_time, on_start, on_end, _):
  """Stands in for `jobs.run_jobs`: one run after the other, in this process."""
  for one in runs:
    on_start(one)
    codes = map(run_command, one.pending_commands())
    on_end(one, next(filter(None, codes), 0))
  return 0


def _documents():
  """Yields 5 documents of each of 12 hosts, which have three authors."""
  words = 'the library is a small free tool for data and text'.split()
  for number in range(60):
    yield {
      'text': ' '.join(words[number % 7 :] * 4),
      'timestamp': '2020-01-01T00:00:00Z',
      'url': f'https://host{number % 12}.org/{number}',
      'author': f'author {number % 3}',
    }


@pytest.fixture(scope='module')
def run_demo(small_inputs, tmp_path_factory):
  """Returns a function that runs the demo on two small corpora."""
  directory = tmp_path_factory.mktemp('demo')
  for name in ('c4-train.0.json.gz', 'sotu.json.gz'):
    with gzip.open(directory / name, 'wt') as file:
      for line in _documents():
        file.write(json.dumps(line) + '\n')
  shipped = directory / 'configs'
  shipped.mkdir()
  (shipped / 'demo.py').write_text(_CONFIG.format(path=small_runs.CONFIG))
  _, vocabulary = small_inputs
  settings = small_runs.overrides(
    *('', vocabulary),
    training__num_rounds=2,
    client_splits__held_out_fraction=0.5,
  )
  settings = [s for s in settings if '--config.data.directory' not in s]
  with pytest.MonkeyPatch.context() as patch:
    for name in ('debian_descriptions', 'sotu_by_president'):
      patch.setattr(corpora, name, lambda: directory)
    patch.setattr(given, 'SHIPPED', shipped)
    patch.setattr(jobs, 'run_jobs', _run_here)
    # It reads the corpora in a process of its own.
    patch.setattr(run, '_require_runs', lambda configs: None)
    # The other scores of the demo are made by graphs that take long to trace.
    sizes = dict(max_clients=3, fractions=(0.0,), barrier=False)
    yield lambda workdir: cli_demo.run_demo(workdir, settings, **sizes)


@pytest.fixture(scope='module')
def demo(run_demo, tmp_path_factory):
  """The directory of a finished demo. Tests must not change it."""
  workdir = tmp_path_factory.mktemp('demo') / 'run'
  assert run_demo(workdir) == 0
  return workdir


def test_the_whole_demo_has_four_runs():
  file = sweep_file.read_sweep_file(given.SHIPPED / 'demo.py')
  assert [arm.name for arm in expand.expand_arms(file)] == [
    *('fed_fish-E8', 'fed_fish-E1', 'fed_avg-E8', 'fed_avg-E1')
  ]
  held_out, transfer = file.evaluations
  assert held_out.barrier and not held_out.data
  assert transfer.data.endswith('/sotu_by_president')


def test_corpora_are_grouped(demo):
  counts = {}
  for path in demo.glob('corpora/*/manifest.json'):
    found = json.loads(path.read_text())['counts']
    counts[path.parent.name] = found['records_in'], found['num_groups']
  assert counts == {
    'debian_descriptions': (60, 12),
    'sotu_by_president': (60, 3),
  }


def test_runs_share_cohorts_and_start(demo):
  fish, average = (
    tables.read_metrics(demo / 'arms' / name / 'metrics.csv')
    for name in _METHODS
  )
  assert len(fish) == len(average) == 3
  # Same seeds: the same model at round 0, the same clients in every round.
  assert fish[0]['held_out/loss'] == average[0]['held_out/loss']
  for number in (1, 2):
    one, other = fish[number], average[number]
    assert one['train/num_sequences'] == other['train/num_sequences']
    # A Fisher diagonal is as large as a model.
    assert one['communication/uplink_units'] == 2 * number
    assert other['communication/uplink_units'] == number
  assert fish[1]['train/loss'] == average[1]['train/loss']
  assert fish[2]['held_out/loss'] != average[2]['held_out/loss']


@pytest.mark.parametrize('name', _METHODS)
def test_evaluations(demo, name):
  evaluations = demo / 'arms' / name / 'evaluations'
  for corpus, kind in (
    ('debian_descriptions', 'held_out'),
    ('sotu_by_president', 'transfer'),
  ):
    found = results.read_evaluation(evaluations / corpus)
    assert found.summary.kind == kind
    assert found.summary.num_clients == 3
    assert set(found.clients['fraction']) == {0}


def test_page(demo):
  page = (demo / 'report' / 'index.html').read_text()
  assert 'FedFish' in page and 'FedAvg' in page
  assert 'http://' not in page.replace('http://www.w3.org', '')
  assert list((demo / 'report' / 'figures').glob('*.png'))
  with open(demo / 'report' / 'summary.csv', newline='') as file:
    assert len(list(csv.DictReader(file))) == 2


def test_second_run_does_nothing_but_the_page(demo, run_demo, capsys):
  before = {
    path: path.stat().st_mtime_ns
    for path in demo.rglob('*')
    if path.is_file() and not {'report', 'sweep.json', '.lock'} & {*path.parts}
  }
  assert run_demo(demo) == 0
  output = capsys.readouterr()
  assert 'started' not in output.err
  assert 'FedFish' in output.out
  assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_demo_that_was_interrupted_can_be_continued(
  demo, run_demo, tmp_path, capsys, monkeypatch
):
  (tmp_path / 'corpora').symlink_to(demo / 'corpora')
  monkeypatch.setattr(jobs, 'run_jobs', lambda *arguments: 130)
  assert run_demo(tmp_path) == 130
  error = capsys.readouterr().err
  assert error.endswith('fedfish: interrupted; the same command continues.\n')
  assert not (tmp_path / 'report').exists()
