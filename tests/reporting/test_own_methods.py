"""Methods outside the package in a report."""

import csv
import html
import io
import itertools
import sys

import pytest
from report_runs import write_evaluation, write_run

from tff_fedfish.methods import registry
from tff_fedfish.reporting import loading, page, scores, summary

# `relative_floor` is a setting of FedFish, too; so is the hue.
_MODULE = """
import dataclasses
from tff_fedfish import methods

@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain(methods.Method):
  'One line.'

  title = 'Gain {1}'
  source = 'Nobody (2024)'
  hue = '#D55E00'
  relative_floor: float = methods.number(0.5, at_least=0)
  'A floor.'

  def traffic(self, config):
    return methods.Traffic(uplink=2)

  def cost(self, config):
    return methods.ClientCost(passes_after_training=1)

  def columns(self, config):
    return (
      methods.Column('train/gain', ('client_work', 'gain')),
      methods.Column('train/num_losses', ('client_work', 'num_losses')),
    )
"""
_NAME = 'gains.gain'


@pytest.fixture(autouse=True)
def _own_method(tmp_path, monkeypatch):
  """Puts the module on the path, and takes it back out of the registry."""
  package = tmp_path / 'path' / 'gains'
  package.mkdir(parents=True)
  (package / '__init__.py').touch()
  (package / 'gain.py').write_text(_MODULE)
  monkeypatch.syspath_prepend(package.parent)
  monkeypatch.setattr(registry, '_found', {})
  registry._from_module.cache_clear()
  yield
  registry._from_module.cache_clear()
  for name in ('gains', _NAME):
    sys.modules.pop(name, None)


def test_variants_are_neither_averaged_nor_dropped(tmp_path):
  directories = []
  for floor, seed in itertools.product((0.25, 0.75), (1, 2)):
    run = write_run(
      tmp_path / f'{floor}_{seed}',
      algorithm=_NAME,
      settings={'algorithm.relative_floor': floor, 'seeds.model_seed': seed},
    )
    # The larger value gains one nat.
    write_evaluation(run, 'e', losses={0.0: (7.0 - 2 * floor,) * 4})
    directories.append(run)
  table = scores.read_scores(loading.load_runs(directories))
  assert [arm.label for arm in table.arms] == [
    f'Gain {{1}}, E = 1, algorithm.relative_floor = {floor}'
    for floor in (0.25, 0.75)
  ]
  [row, _] = table.comparisons.itertuples()
  assert row.baseline == 'Gain {1} (relative_floor 0.25)'
  assert row.method == 'Gain {1} (relative_floor 0.75)'
  assert (row.measure, row.mean, row.num_seeds) == ('loss', -1.0, 2)


def test_the_report_shows_all_of_a_method(tmp_path):
  directories = [
    write_run(tmp_path / 'average', algorithm='fed_avg'),
    write_run(tmp_path / 'gain', algorithm=_NAME, units_per_round=2),
  ]
  for directory in directories:
    write_evaluation(directory, 'e')
  metrics = directories[1] / 'metrics.csv'
  header, *rows = metrics.read_text().splitlines()
  lines = [f'{header},train/gain,train/num_losses']
  lines += [f'{row},{-r / 64},0' for r, row in enumerate(rows)]
  metrics.write_text('\n'.join(lines) + '\n')
  runs = loading.load_runs(directories)
  text = html.unescape(page.render_page(scores.read_scores(runs), {}))
  assert '<h1>Federated pretraining: FedAvg and Gain {1}</h1>' in text
  assert 'Gain {1} − FedAvg' in text
  average, gain = csv.DictReader(io.StringIO(summary.summary_csv(runs)))
  # Two rounds of two models; -2 / 64; nothing was lost in any run.
  assert gain['communication/uplink_units'] == '4'
  assert (average['train/gain'], gain['train/gain']) == ('', '-0.03125')
  assert 'train/num_losses' not in gain
