"""The method's mean beside the plain one, measured while a run trains."""

import csv
import json

import numpy as np
import pytest
import small_runs

from tff_fedfish.evaluation import barrier
from tff_fedfish.mathematics import directions

_NAMES = (
  'diagnostics/cosine',
  'diagnostics/norm_ratio',
  'diagnostics/num_failed_clients',
)


def _rows(run, name='metrics.csv'):
  with (run / name).open(newline='') as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope='module')
def run(small_inputs, tmp_path_factory):
  """A run of four rounds, diagnosed after the second and the last one."""
  run = tmp_path_factory.mktemp('diagnosed') / 'run'
  settings = {'evaluation__diagnostics_every_num_rounds': 3}
  assert small_runs.train(small_inputs, run, **settings) == 0
  return run


def test_rounds_themselves_are_as_without(run, small_run):
  plain, found = (r / 'metrics.csv' for r in (small_run, run))
  # The columns come last.
  rows = [line.rsplit(',', 3) for line in found.read_text().splitlines()]
  assert [row[0] for row in rows] == plain.read_text().splitlines()
  assert tuple(rows[0][1:]) == _NAMES
  # Round 0 trains nothing.
  due = [bool(row[1]) for row in rows[1:]]
  assert due == [False, False, False, True, True]
  assert _rows(run, 'timings.csv')[3]['diagnostics_seconds']


def test_same_where_the_barrier_is_measured(
  small_inputs, run, tmp_path, monkeypatch
):
  train, trained = barrier._train, []
  monkeypatch.setattr(
    barrier,
    '_train',
    lambda *arguments: trained.append(arguments[-1]) or train(*arguments),
  )
  other = tmp_path / 'run'
  settings = {
    'evaluation__diagnostics_every_num_rounds': 3,
    'evaluation__barrier_every_num_rounds': 3,
  }
  assert small_runs.train(small_inputs, other, **settings) == 0
  for row, expected in zip(_rows(other), _rows(run), strict=True):
    assert [row[name] for name in _NAMES] == [expected[name] for name in _NAMES]
  # Two rounds of a cohort; each client trained again once.
  assert len(trained) == 2 * 3


def test_failures_of_clients_are_shown_and_counted(
  small_inputs, tmp_path, monkeypatch, capsys
):
  def fail(process, state, client):
    raise OSError('no such block')

  monkeypatch.setattr(barrier, '_train', fail)
  settings = {
    'evaluation__diagnostics_every_num_rounds': 1,
    'training__num_rounds': 1,
  }
  run = tmp_path / 'run'
  assert small_runs.train(small_inputs, run, **settings) == 0
  shown = capsys.readouterr().err
  assert shown.count('was left out of the diagnostics, OSError: no such') == 3
  row = _rows(run)[-1]
  assert row['diagnostics/num_failed_clients'] == '3'
  assert not row['diagnostics/cosine']


def test_fed_fish_differs_from_the_plain_mean(run):
  for row in _rows(run)[3:]:
    assert 0 < float(row['diagnostics/cosine']) < 0.9999
    assert float(row['diagnostics/norm_ratio']) > 0


def test_fed_avg_is_the_plain_mean(small_inputs, tmp_path):
  run = tmp_path / 'run'
  settings = {
    'algorithm__name': 'fed_avg',
    'evaluation__diagnostics_every_num_rounds': 1,
    'training__num_rounds': 1,
  }
  assert small_runs.train(small_inputs, run, **settings) == 0
  row = _rows(run)[-1]
  assert [float(row[name]) for name in _NAMES] == pytest.approx([1, 1, 0])
  # Runs without it keep their columns.
  config = json.loads((run / 'config.json').read_text())
  assert config['evaluation']['diagnostics_every_num_rounds'] == 1


def test_directions_by_hand():
  first = (np.array([3.0, 0.0]), np.array(4.0))
  second = (np.array([0.0, 5.0]), np.array(12.0))
  # Norms 5 and 13; the product is 48.
  assert directions.cosine(first, second) == pytest.approx(48 / 65)
  assert directions.norm_ratio(first, second) == pytest.approx(5 / 13)
  zero = (np.zeros(2), np.array(0.0))
  assert directions.cosine(first, zero) == 0
  assert directions.norm_ratio(first, zero) == 0
