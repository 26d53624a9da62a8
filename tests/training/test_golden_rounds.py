"""Compares short runs of every method with the numbers of an earlier commit.

golden_rounds.csv holds the last row of metrics.csv and the SHA-256 of what each
run kept. They are equal on the same kind of processor, and to 1e-6 on another.
This writes the rows of the machine's kind again, PATH this file:

  GOLDEN_ROUNDS=write python -m pytest -m '' PATH

Do so only after a change that is meant to change numbers: a formula, a default,
the order of random draws, a version of TensorFlow. Say in the commit which
numbers changed, and why. No refactoring changes them.
"""

import csv
import hashlib
import os
import pathlib

import numpy as np
import one_shot_runs
import pytest
import small_image_runs
import tensorflow as tf
from stateful_runs import live_states

from tff_fedfish.methods import registry

_TABLE = pathlib.Path(__file__).parents[1] / 'golden_rounds.csv'
_WRITES = os.environ.get('GOLDEN_ROUNDS') == 'write'
_SHA256 = 'sha256'
_KIND = ('vendor_id', 'cpu family', 'model')
_IMAGES = dict(
  client_work__num_local_epochs=1,
  cohorts__cohort_size=3,
  evaluation__num_clients=0,
  model__preset='linear',
  training__num_rounds=2,
)
_SPLIT = _IMAGES | dict(client_splits__validation_fraction=0.2)
_SOLVED = _IMAGES | one_shot_runs.SETTINGS | dict(model__preset='linear')
_IN_PHASES = _SOLVED | dict(training__num_rounds=4)
_ADAMW = _IMAGES | dict(
  client_work__optimizer='adamw', client_work__learning_rate=1e-3
)
# Name, its first word the method; settings: without a dot, of `algorithm`.
# None: text, the run that other tests read.
_RUNS = [
  ('fed_avg', _IMAGES, ''),
  ('fed_fish', None, ''),
  ('fed_fish example_sq', _IMAGES, 'fisher_estimator=example_sq'),
  ('fed_sgd', _IMAGES, ''),
  ('fed_prox', _IMAGES, 'mu=0.1'),
  ('scaffold', _IMAGES, ''),
  ('moon', _IMAGES, 'model.preset=lenet'),
  ('local_only', _SPLIT, ''),
  ('fed_fomo', _SPLIT, 'num_downloads=2'),
  ('fed_fisher', _SOLVED, 'num_solver_steps=20'),
]
_SLOW_RUNS = [
  ('fed_fish second_moment', _ADAMW, 'fisher_estimator=second_moment'),
  ('tct', _IN_PHASES, 'num_bootstrap_rounds=1 num_convex_steps=20'),
  ('fisher_merge', _SOLVED, ''),
  ('reg_mean', _SOLVED, 'num_validation_rows=10'),
  ('ot_fusion', _SOLVED, 'model.preset=lenet'),
  ('pfnm', _SOLVED, 'model.preset=lenet'),
  ('dense', _SOLVED, 'num_outer_epochs=1 num_generator_steps=1'),
]


def _digest(run):
  """Returns the SHA-256 of the final weights, and of what clients keep."""
  digest = hashlib.sha256()
  for weight in one_shot_runs.weights(run):
    digest.update(weight.tobytes())
  for state in sorted(live_states(run).items()):
    digest.update(repr(state).encode())
  return digest.hexdigest()


def _processor():
  """Returns what the order of sums depends on: instructions and caches."""
  features = np.core._multiarray_umath.__cpu_features__
  # With AVX512VNNI, oneDNN's kernels stand for Eigen's.
  for name in ('AVX512VNNI', 'AVX512F', 'AVX2'):
    if features.get(name):
      break
  else:
    name = 'other'
  lines = pathlib.Path('/proc/cpuinfo').read_text().split('\n\n')[0]
  about = (line.partition(':') for line in lines.splitlines())
  about = {key.strip(): value.strip() for key, _, value in about}
  return '-'.join([name.lower(), *(about.get(key, '') for key in _KIND)])


@pytest.fixture(scope='module')
def table():
  """Rows of the file; written at the end if asked."""
  with open(_TABLE, newline='') as file:
    header, *rows = csv.reader(file)
  yield rows
  if _WRITES:
    with open(_TABLE, 'w', newline='') as file:
      csv.writer(file, lineterminator='\n').writerows([header, *sorted(rows)])


@pytest.mark.parametrize(
  ('name', 'shared', 'own'),
  _RUNS + [pytest.param(*run, marks=pytest.mark.slow) for run in _SLOW_RUNS],
  ids=[run[0] for run in _RUNS + _SLOW_RUNS],
)
def test_numbers(name, shared, own, small_images, request, table, tmp_path):
  run = tmp_path / 'run'
  if shared is None:
    run = request.getfixturevalue('small_run')
  else:
    settings = shared | {}
    for part in f'name={name.split()[0]} {own}'.split():
      key, _, value = part.partition('=')
      settings[key if '.' in key else f'algorithm.{key}'] = value
    assert small_image_runs.train(small_images, run, **settings) == 0
  row = one_shot_runs.rows(run)[-1]
  found = {column: cell for column, cell in row.items() if cell}
  found[_SHA256] = _digest(run)
  machine = [_processor(), tf.__version__]
  if _WRITES:
    table[:] = [row for row in table if row[:2] != [name, machine[0]]]
    table += ([name, *machine, *item] for item in found.items())
    return
  stored = [row for row in table if row[0] == name]
  here = dict(row[3:] for row in stored if row[1:3] == machine)
  # With more threads in an operation, sums are in another order.
  if here and os.environ['TF_NUM_INTRAOP_THREADS'] == '1':
    assert found == here
    return
  elsewhere = dict(row[3:] for row in stored)
  assert found.keys() == elsewhere.keys()
  for column in found.keys() - {_SHA256}:
    wanted = pytest.approx(float(elsewhere[column]), rel=1e-6, abs=1e-9)
    assert float(found[column]) == wanted, column


def test_every_method_has_a_run():
  names = {run[0].split()[0] for run in _RUNS + _SLOW_RUNS}
  assert names == set(registry.BUILT_IN)
