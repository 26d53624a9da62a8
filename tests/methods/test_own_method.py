"""A method outside the package does all that a built-in one does."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import small_runs

from models.model_shapes import num_parameters
from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.planning import plan
from tff_fedfish.run import checkpoints, run_directory, tables

_ROOT = pathlib.Path(__file__).parents[2]
_NAME = 'own_methods.magnitude_mean'
_SETTINGS = dict(
  algorithm__name=_NAME,
  algorithm__magnitude_power=0.5,
  training__num_rounds=2,
)
_COLUMN = 'train/num_overflows'


@pytest.fixture(scope='module')
def own_run(small_inputs, tmp_path_factory):
  """Two rounds in process."""
  run = tmp_path_factory.mktemp('own') / 'run'
  assert small_runs.train(small_inputs, run, **_SETTINGS) == 0
  return run


@pytest.fixture
def importable(monkeypatch):
  """Makes the module importable in processes that a command starts."""
  path = os.pathsep.join([str(_ROOT), str(_ROOT / 'tests')])
  monkeypatch.setenv('PYTHONPATH', path)


def _state(run):
  path = checkpoints.latest_checkpoint(run / 'checkpoints')
  return checkpoints.load_checkpoint(path).tensors


@pytest.mark.slow
def test_config_and_metrics(own_run):
  config = json.loads((own_run / 'config.json').read_text('utf-8'))
  assert config['algorithm'] == {
    'name': _NAME,
    'client_weighting': 'num_examples',
    'magnitude_power': 0.5,
  }
  rows = tables.read_metrics(own_run / 'metrics.csv')
  assert [row[_COLUMN] for row in rows[1:]] == [0, 0]
  # 2 rounds x 3 clients x 2 models up, and as many rounds x 1 model down.
  model_bytes = 4 * num_parameters(
    run_directory.read_config(own_run).model_shape()
  )
  assert rows[-1]['communication/uplink_units'] == 4
  assert rows[-1]['communication/uplink_bytes'] == 12 * model_bytes
  assert rows[-1]['communication/total_bytes'] == 18 * model_bytes


def test_help_shows_its_settings(capsys):
  assert main(['methods', _NAME]) == 0
  assert '`algorithm.magnitude_power`' in capsys.readouterr().out


def test_dry_run_and_plan(small_inputs, capsys):
  arguments = small_runs.overrides(*small_inputs, **_SETTINGS)
  command = ['train', '--config', small_runs.CONFIG, '--dry_run']
  assert main([*command, *arguments]) == 0
  assert '2 up, 1 down (models per client)' in capsys.readouterr().out
  plans = {}
  for name in (_NAME, 'fed_avg'):
    settings = _SETTINGS | {'algorithm__name': name}
    if name != _NAME:
      del settings['algorithm__magnitude_power']
    arguments = small_runs.overrides(*small_inputs, **settings)
    config = config_loading.load_config(small_runs.CONFIG, arguments)
    plans[name] = plan.plan_round(config, timing=False)
  own, average = plans[_NAME], plans['fed_avg']
  uplinks = [p.round_sent.uplink_bytes for p in (own, average)]
  assert uplinks[0] == 2 * uplinks[1]
  # Sums of two models, where FedAvg has one.
  assert own.memory[0].peak_bytes > average.memory[0].peak_bytes
  assert own.flops.updates > average.flops.updates


@pytest.mark.slow
def test_report_and_export(own_run, tmp_path):
  page = tmp_path / 'report'
  assert main(['report', '--runs', str(own_run), '--output', str(page)]) == 0
  text = (page / 'index.html').read_text('utf-8')
  assert 'Magnitude mean' in text
  assert 'magnitude_power' in text
  model = tmp_path / 'model'
  command = ['export', '--checkpoint', str(own_run), '--output', str(model)]
  assert main([*command, '--format', 'safetensors']) == 0
  card = (model / 'README.md').read_text('utf-8')
  assert 'Magnitude mean' in card
  assert '`algorithm.magnitude_power` | 0.5' in card


def test_where_the_module_cannot_be_imported(
  own_run, small_inputs, tmp_path, capsys
):
  run = tmp_path / 'run'
  shutil.copytree(own_run, run)
  config = (run / 'config.json').read_text('utf-8')
  (run / 'config.json').write_text(config.replace(_NAME, 'gone.method'))
  for command in (
    ['evaluate', '--checkpoint', str(run), '--data', str(small_inputs[0])],
    ['export', '--checkpoint', str(run), '--output', str(tmp_path / 'model')],
    ['report', '--runs', str(run), '--output', str(tmp_path / 'report')],
  ):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    assert "importing 'gone.method' raised ModuleNotFoundError" in error
    assert 'is unknown' not in error
  settings = _SETTINGS | {'algorithm__name': 'gone.method'}
  assert small_runs.train(small_inputs, run, **settings) == 2
  error = capsys.readouterr().err
  assert "importing 'gone.method' raised" in error
  assert 'is unknown' not in error


@pytest.mark.slow
def test_ray(own_run, small_inputs, tmp_path, importable):
  settings = dict(
    engine__kind='ray', engine__num_workers=2, engine__num_partial_sums=2
  )
  run = tmp_path / 'run'
  assert small_runs.train(small_inputs, run, **_SETTINGS, **settings) == 0
  expected = _state(own_run)
  for name, tensor in _state(run).items():
    np.testing.assert_allclose(tensor, expected[name], rtol=1e-3, atol=1e-5)
  rows = tables.read_metrics(run / 'metrics.csv')
  assert rows[-1][_COLUMN] is not None
