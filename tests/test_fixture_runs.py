"""Stored runs load, resume, evaluate and report as when they were made.

tests/fixtures/make_runs.py made them.
"""

import json
import shutil

import pytest
import small_image_runs
from fixtures import make_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.run import run_directory

_RUNS = sorted(path.parent for path in make_runs.RUNS.glob('*/*/config.json'))
# Of the same computation on another processor, or with other threads.
_TOLERANCE = 1e-5


def _id(run):
  return f'{run.parent.name}-{run.name}'


@pytest.fixture
def copy(run, tmp_path, monkeypatch):
  """Copies a run and what it was trained on to the current directory."""
  shutil.copytree(run.parent / 'corpus', tmp_path / 'corpus')
  small_image_runs.write_corpus(tmp_path / 'images')
  monkeypatch.chdir(tmp_path)
  return shutil.copytree(run, tmp_path / run.name)


def test_there_is_a_run_of_each_kind():
  assert {run.name for run in _RUNS} == {
    f'{kind}_{method}'
    for kind in make_runs.KINDS
    for method in make_runs.METHODS
  }


def test_they_are_small():
  files = [path for path in make_runs.RUNS.rglob('*') if path.is_file()]
  assert sum(path.stat().st_size for path in files) <= 14e6


@pytest.mark.parametrize('run', _RUNS, ids=_id)
def test_config_loads(run):
  config = run_directory.read_config(run)
  again = config_loading.from_json_dict(
    config_loading.to_json_dict(config), 'again'
  )
  assert again == config


@pytest.mark.parametrize(
  'run',
  [
    pytest.param(run, marks=[pytest.mark.slow] * (run.name != 'text_fed_fish'))
    for run in _RUNS
  ],
  ids=_id,
)
def test_resumes_evaluates_and_reports(run, copy, tmp_path, capsys):
  kind, _, method = run.name.partition('_')
  config, settings, corpus = make_runs.KINDS[kind]
  evaluation = tmp_path / 'evaluation'
  arguments = make_runs.train_arguments(
    copy,
    config,
    settings | {'algorithm.name': method},
    num_rounds=make_runs.NUM_ROUNDS + 1,
  )
  assert main(arguments) == 0
  # What another version wrote is gone on with, not written again.
  rows = (run / 'metrics.csv').read_bytes()
  assert (copy / 'metrics.csv').read_bytes().startswith(rows)
  assert main(make_runs.evaluate_arguments(copy, corpus, evaluation)) == 0
  found = make_runs.facts(copy, evaluation)
  _assert_as_expected(found, run, 'expected.json', capsys)
  report = ['report', '--runs', copy.name, '--output', 'report']
  assert main(report) == 0
  assert (tmp_path / 'report' / 'index.html').is_file()


@pytest.mark.slow
@pytest.mark.parametrize('run', _RUNS, ids=_id)
def test_barrier_is_as_before(run, copy, tmp_path, capsys):
  corpus = make_runs.KINDS[run.name.partition('_')[0]][-1]
  evaluation = tmp_path / 'evaluation'
  arguments = make_runs.evaluate_arguments(copy, corpus, evaluation)
  assert main([*arguments, '--barrier']) == 0
  found = make_runs.barrier_facts(evaluation)
  _assert_as_expected(found, run, 'expected_barrier.json', capsys)


def _assert_as_expected(found, run, name, capsys):
  expected = json.loads((run / name).read_text('utf-8'))
  # Of convolutions, the last bits were seen to differ between processors of one
  # name and the same flags, too.
  is_text = run.name.startswith('text')
  is_exact = expected.pop('machine') == make_runs.machine() and is_text
  how = 'processor and threads as recorded; bytes are compared'
  with capsys.disabled():
    print(f'\n{_id(run)}: {how if is_exact else f"to {_TOLERANCE}"}', end=' ')
  _assert_same(found, expected, 0.0 if is_exact else _TOLERANCE)


def _assert_same(found, expected, tolerance):
  """Compares nested values; what was found may have names that came later."""
  if isinstance(expected, dict):
    for name in expected.keys() - ({'state_sha256'} if tolerance else set()):
      _assert_same(found[name], expected[name], tolerance)
  elif isinstance(expected, list):
    for one, other in zip(found, expected, strict=True):
      _assert_same(one, other, tolerance)
  elif tolerance and _is_number(expected):
    wanted = pytest.approx(float(expected), rel=tolerance, abs=tolerance)
    assert float(found) == wanted
  else:
    assert found == expected


def _is_number(value):
  try:
    float(value)
  except ValueError:
    return False
  return True
