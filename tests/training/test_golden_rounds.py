"""Compares short runs of every method with the numbers of an earlier commit.

golden_rounds.csv has, per run, the last row of metrics.csv and two numbers of
the final weights and client states. They are compared within a tolerance. A run
without convolutions also has the SHA-256 of the weights and states: with the
same kind of processor, and nothing else that changes the order of sums, all its
numbers are compared exactly.

To write the rows of the runs that are selected, PATH this file:

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
from safetensors.numpy import load
from stateful_runs import live_states

from tff_fedfish.methods import registry

_TABLE = pathlib.Path(__file__).parents[1] / 'golden_rounds.csv'
_WRITES = os.environ.get('GOLDEN_ROUNDS') == 'write'
# Between processors 7e-6 was measured.
_RELATIVE = 1e-5
# Above rounding errors, such as tct/correction_imbalance, 4e-8.
_ABSOLUTE = 1e-6
_NORM, _PROJECTION = 'final/norm', 'final/projection'
_MACHINE = ('processor', 'tensorflow')
_KIND = ('vendor_id', 'cpu family', 'model')
_IMAGES = dict(
  client_work__num_local_epochs=1,
  cohorts__cohort_size=3,
  evaluation__num_clients=0,
  model__preset='linear',
  training__num_rounds=2,
)
_STREAM = _IMAGES | dict(
  client_work__keeps_optimizer_state=True,
  client_work__max_sequences_per_client=None,
  client_work__momentum=0.9,
  client_work__num_local_steps=3,
)
_BOUNDED = _IMAGES | dict(
  client_work__max_delta_norm=0.2, client_work__micro_batch_size=3
)
_SPLIT = _IMAGES | dict(client_splits__validation_fraction=0.2)
_SOLVED = _IMAGES | one_shot_runs.SETTINGS | dict(model__preset='linear')
_IN_PHASES = _SOLVED | dict(training__num_rounds=4)
_ADAMW = _IMAGES | dict(
  client_work__optimizer='adamw', client_work__learning_rate=1e-3
)
# Clients' models so far apart that they are not matched as they are.
_FAR = _SOLVED | dict(model__preset='lenet', client_work__max_gradient_norm=1.0)
# Without validation rows no weights are chosen by their score.
_LAST_STEP = 'num_solver_steps=20 tries_average=False num_validation_rows=0'
# Name, its first word the method; settings: without a dot, of `algorithm`.
# None: text, the run that other tests read.
_RUNS = [
  ('fed_avg', _STREAM, ''),
  ('fed_fish', None, ''),
  ('fed_sgd', _IMAGES, ''),
  ('scaffold', _IMAGES, ''),
  ('fed_fomo', _SPLIT, 'num_downloads=2'),
  ('fed_fisher', _SOLVED, _LAST_STEP),
]
_SLOW_RUNS = [
  ('fed_fish example_sq', _IMAGES, 'fisher_estimator=example_sq'),
  ('fed_prox', _BOUNDED, 'mu=0.1'),
  ('moon', _IMAGES, 'model.preset=lenet'),
  ('local_only', _SPLIT, ''),
  ('fed_fish second_moment', _ADAMW, 'fisher_estimator=second_moment'),
  ('tct', _IN_PHASES, 'num_bootstrap_rounds=1 num_convex_steps=20'),
  ('fisher_merge', _SOLVED, ''),
  ('reg_mean', _SOLVED, 'num_validation_rows=10'),
  ('ot_fusion', _FAR | dict(client_work__learning_rate=5.0), ''),
  ('pfnm', _FAR | dict(client_work__learning_rate=2.0), 'sigma=0.03'),
  ('dense', _SOLVED, 'num_outer_epochs=1 num_generator_steps=1'),
]
_NAMES = [run[0] for run in _RUNS + _SLOW_RUNS]
# Convolutions differ between processors of one kind. MOON needs a model with a
# representation, the next two one with hidden neurons; DENSE has a generator.
_CONVOLUTIONAL = {'moon', 'ot_fusion', 'pfnm', 'dense'}


def _numbers(run):
  """Returns the last row of metrics.csv, and numbers of what the run left."""
  row = one_shot_runs.rows(run)[-1]
  weights, states = one_shot_runs.weights(run), sorted(live_states(run).items())
  digest = hashlib.sha256()
  for weight in weights:
    digest.update(weight.tobytes())
  for state in states:
    digest.update(repr(state).encode())
  kept = (sorted(load(content).items()) for _, (_, content) in states)
  tensors = [*weights, *(tensor for state in kept for _, tensor in state)]
  final = np.concatenate([np.ravel(t).astype(np.float64) for t in tensors])
  direction = np.random.RandomState(0).normal(size=len(final))
  numbers = {column: cell for column, cell in row.items() if cell}
  numbers[_NORM] = repr(float(np.linalg.norm(final)))
  numbers[_PROJECTION] = repr(float(final @ direction))
  return numbers, digest.hexdigest()


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


def _sums_in_order():
  """Returns whether the environment leaves the order of sums as it is."""
  changed = {'TF_ENABLE_ONEDNN_OPTS', 'XLA_FLAGS'} & os.environ.keys()
  return os.environ['TF_NUM_INTRAOP_THREADS'] == '1' and not changed


@pytest.fixture(scope='module')
def table():
  """Numbers by run; written at the end if asked."""
  if _WRITES:
    assert 'PYTEST_XDIST_WORKER' not in os.environ, 'write in one process'
    assert _sums_in_order(), 'write with one thread and no flags'
  with open(_TABLE, newline='') as file:
    header, *rows = csv.reader(file)
  numbers = {name: {} for name in _NAMES}
  for name, column, value in rows:
    numbers.setdefault(name, {})[column] = value
  yield numbers
  if _WRITES:
    rows = [[n, *item] for n in _NAMES for item in numbers[n].items()]
    with open(_TABLE, 'w', newline='') as file:
      csv.writer(file, lineterminator='\n').writerows([header, *sorted(rows)])


@pytest.mark.parametrize(
  ('name', 'shared', 'own'),
  _RUNS + [pytest.param(*run, marks=pytest.mark.slow) for run in _SLOW_RUNS],
  ids=_NAMES,
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
  numbers, digest = _numbers(run)
  exact = {}
  if name not in _CONVOLUTIONAL:
    machine = _processor(), tf.__version__
    exact = dict(zip(_MACHINE, machine, strict=True)) | {'sha256': digest}
  if _WRITES:
    table[name] = numbers | exact
    return
  stored = table[name]
  assert stored.keys() == (numbers | exact).keys()
  is_same = exact and all(stored[key] == exact[key] for key in _MACHINE)
  if is_same and _sums_in_order():
    assert numbers | exact == stored
  for column, number in numbers.items():
    # The sum of a projection may vanish, its rounding errors do not.
    scale = float(stored[_NORM]) if column == _PROJECTION else 0
    wanted = pytest.approx(
      float(stored[column]),
      rel=_RELATIVE,
      abs=max(_ABSOLUTE, scale * _RELATIVE),
    )
    assert float(number) == wanted, column


def test_every_method_has_a_run():
  methods = {name.split()[0] for name in _NAMES}
  assert methods == set(registry.BUILT_IN)
