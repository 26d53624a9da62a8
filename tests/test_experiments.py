"""The committed results are whole, and the documents say what they hold."""

import pathlib

import pytest
import result_tables

from tff_fedfish.sweeping.arms import expand_arms, with_rates
from tff_fedfish.sweeping.sweep_file import SweepFile
from tff_fedfish.training import config_loading, run_directory

_ROOT = pathlib.Path(__file__).parents[1]
_NUM_SEEDS = {
  'debian': 3,
  'debian_ablations': 1,
  'mnist_by_writer': 3,
  'mnist_by_writer_ablations': 2,
}
_NAMES = sorted(path.name for path in result_tables.RESULTS.iterdir())


@pytest.mark.parametrize('name', _NAMES)
def test_runs_are_those_of_the_shipped_sweep(name):
  file = SweepFile(_ROOT / 'configs' / f'{name}_sweep.py')
  sweep = result_tables.results(name).sweep
  chosen = {
    repr(sorted(choice['for'].items())): choice['chosen']
    for choice in sweep['learning_rates']
  }
  arms = expand_arms(file)
  assert [arm.name for arm in arms] == [
    entry['name'] for entry in sweep['arms']
  ]
  for arm in arms:
    search = file.sweep.search
    if search:
      group = search.group_of(arm.point)
      arm = with_rates(file, arm, chosen[repr(sorted(group.items()))])
    found = run_directory.read_config(
      result_tables.RESULTS / name / 'arms' / arm.name
    )
    assert config_loading.differences(found, arm.config) == []


@pytest.mark.parametrize('name', _NAMES)
def test_all_seeds_were_scored(name):
  found = result_tables.results(name)
  num_seeds = _NUM_SEEDS[name]
  assert len(found.pooled) * num_seeds == len(found.runs)
  for run in found.pooled:
    for one in (run, run.held_out(), run.barrier()):
      assert one.num_seeds == num_seeds


def test_tables_of_mnist_by_writer():
  found = result_tables.results('mnist_by_writer')
  text = (_ROOT / 'docs' / 'experiments.md').read_text()
  for fraction in (0.0, 0.25, 0.5):
    assert '\n'.join(result_tables.local_epochs(found, fraction)) in text
  assert '\n'.join(result_tables.rounds(found)) in text
  assert '\n'.join(result_tables.search(found)) in text
  readme = (_ROOT / 'README.md').read_text()
  assert '\n'.join(result_tables.local_epochs(found, 0.0)) in readme


def test_tables_of_debian():
  found = result_tables.results('debian')
  text = (_ROOT / 'docs' / 'experiments.md').read_text()
  for corpus in (None, 'sotu_by_president', 'stack_exchange'):
    for fraction in (0.0, 0.5):
      rows = result_tables.local_epochs(found, fraction, corpus)
      assert '\n'.join(rows) in text, (corpus, fraction)
  assert '\n'.join(result_tables.rounds(found)) in text
  assert '\n'.join(result_tables.search(found)) in text


@pytest.mark.parametrize(
  'name', ['debian_ablations', 'mnist_by_writer_ablations']
)
def test_tables_of_ablations(name):
  found = result_tables.results(name)
  text = (_ROOT / 'docs' / 'experiments.md').read_text()
  for fraction in (0.0, 0.5):
    assert '\n'.join(result_tables.variants(found, fraction)) in text
