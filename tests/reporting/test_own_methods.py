"""Methods outside the package in a report."""

import csv
import html
import io
import sys

import pytest
from report_runs import add_metrics, read_report, write_methods

from tff_fedfish.methods import registry
from tff_fedfish.reporting import page, summary

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
  runs = []
  # The larger value gains one nat.
  for floor, loss in ((0.25, 7.0), (0.75, 6.0)):
    settings = {'settings': {'algorithm.relative_floor': floor}}
    losses = {_NAME: [loss] * 2}
    runs += write_methods(tmp_path / str(floor), losses, all=settings)
  findings = read_report(runs)
  assert [arm.label for arm in findings.arms] == [
    f'Gain {{1}}, E = 1, relative_floor {floor}' for floor in (0.25, 0.75)
  ]
  [comparison] = findings.comparisons
  assert comparison.pair.names == tuple(
    f'Gain {{1}} (relative_floor {floor})' for floor in (0.75, 0.25)
  )
  assert comparison.differences['loss'].by_seed == (-1.0, -1.0)


def test_the_report_shows_all_of_a_method(tmp_path):
  runs = write_methods(tmp_path, {'fed_avg': [6.0]})
  runs += write_methods(tmp_path, {_NAME: [6.0]}, all={'units_per_round': 2})
  add_metrics(
    runs[1], train__gain=(0, -1 / 64, -2 / 64), train__num_losses=(0,) * 3
  )
  findings = read_report(runs)
  text = html.unescape(page.render_page(findings, {}))
  assert '<h1>Federated pretraining: FedAvg and Gain {1}</h1>' in text
  assert 'Gain {1} − FedAvg' in text
  rows = csv.DictReader(io.StringIO(summary.summary_csv(findings.runs)))
  average, gain = rows
  # Two rounds of two models; -2 / 64; nothing was lost in any run.
  assert gain['communication/uplink_units'] == '4'
  assert (average['train/gain'], gain['train/gain']) == ('', '-0.03125')
  assert 'train/num_losses' not in gain
