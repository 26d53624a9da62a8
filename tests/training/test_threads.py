"""A run keeps the number of threads that it was started with."""

import json
import os

import planned_configs
import pytest
import small_runs

from tff_fedfish import environment
from tff_fedfish.config import load
from tff_fedfish.training import resources, train


def test_a_resumed_run_uses_the_recorded_threads(
  small_inputs, tmp_path, monkeypatch, capsys
):
  run = tmp_path / 'run'
  settings = dict(evaluation__num_clients=0)
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '1')
  monkeypatch.setenv('TF_NUM_INTEROP_THREADS', '2')
  one = dict(training__num_rounds=1, **settings)
  assert small_runs.train(small_inputs, run, **one) == 0
  assert 'thread' not in capsys.readouterr().err

  def recorded():
    return json.loads((run / 'config.json').read_text())['resolved']

  assert recorded() == {'num_threads': 1}
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  two = dict(training__num_rounds=2, **settings)
  assert small_runs.train(small_inputs, run, **two) == 0
  assert (
    'fedfish: note: the run uses 1 thread, as config.json says, not 3: its '
    'numbers depend on them.\n'
  ) in capsys.readouterr().err
  # Of a Python caller, who names the run's directory to `train` only.
  three = small_runs.overrides(
    *small_inputs, training__num_rounds=3, **settings
  )
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  assert train.train(load.load_config(small_runs.CONFIG, three), run) == 0
  assert recorded() == {'num_threads': 1}


@pytest.mark.parametrize('variable', [{}, {'TF_NUM_INTRAOP_THREADS': '0'}])
def test_without_a_number_threads_are_the_cores(
  variable, monkeypatch, tmp_path
):
  monkeypatch.setattr(os, 'environ', variable)
  monkeypatch.setattr(environment, 'num_cores', lambda: 7)
  config = resources.with_threads(planned_configs.by_hand(), tmp_path)
  assert config.resolved.num_threads == 7
