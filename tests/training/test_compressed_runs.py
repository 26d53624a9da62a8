"""Runs whose clients send deltas of few bits: bytes, resumption, workers."""

import numpy as np
import personal_runs
import pytest

from tff_fedfish.config import load as config_loading
from tff_fedfish.run import build, checkpoints, cohorts, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.client_data import ROUNDING_SEED
from tff_fedfish.training import check

# Three of five clients in a round; the linear model, [784, 10] and [10].
_SETTINGS = dict(
  algorithm__name='fed_fish',
  client_splits__validation_fraction=0.0,
  client_work__num_local_epochs=1,
  cohorts__cohort_size=3,
  engine__num_partial_sums=2,
  evaluation__num_clients=0,
)
_FOUR = dict(aggregation__bits=4)


def _train(corpus, run, **settings):
  """Returns the rows of metrics.csv after round 0."""
  assert personal_runs.train(corpus, run, **_SETTINGS | settings) == 0
  return tables.read_metrics(run / 'metrics.csv')[1:]


def _tensors(run):
  found = checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))
  return {name: tensor.tobytes() for name, tensor in found.tensors.items()}


def _packed_delta(tensor):
  """Returns scales and pairs of integers, from which the tensor is read."""
  rows = tensor.reshape(-1, tensor.shape[-1])
  scales = np.abs(rows).max(-1, keepdims=True)
  codes = np.rint(7 * rows / np.where(scales, scales, 1)).astype(np.int8)
  read = scales * (codes.astype(np.float32) / np.float32(7))
  # TensorFlow may multiply by 1 / 7.
  np.testing.assert_allclose(read, rows, rtol=3e-7)
  pairs = (codes + 7).astype(np.uint8).reshape(-1, 2)
  return scales.tobytes() + (16 * pairs[:, 0] + pairs[:, 1]).tobytes()


def _packed_fisher(tensor):
  """Returns scales and a byte for each weight, as `_packed_delta`."""
  rows = tensor.reshape(-1, tensor.shape[-1])
  scales = rows.max(-1, keepdims=True)
  fractions = np.where(rows > 0, rows / np.where(scales, scales, 1), 1)
  steps = np.rint(-8 * np.log2(fractions))
  assert steps.max() <= 254
  codes = np.where(rows > 0, 255 - steps, 0).astype(np.uint8)
  read = np.where(codes, scales * 2 ** (-steps / 8), 0)
  np.testing.assert_allclose(read, rows, rtol=1e-5)
  return scales.tobytes() + codes.tobytes()


def _cohorts(corpus, **settings):
  """Returns a config with 4 bits, and round -> its cohort."""
  settings = _SETTINGS | _FOUR | settings
  config = config_loading.load_config(
    personal_runs.CONFIG, personal_runs.overrides(corpus, **settings)
  )
  found = check.check_run(config)
  source = row_source(config).training_rows(found.corpus, found.tokenizer)
  return config, lambda round_num: cohorts.cohort(
    config, found.split.participating, source, round_num
  )


def test_rounding_is_of_seed_round_and_client(small_mnist):
  def drawn(shuffle_seed):
    _, cohort = _cohorts(small_mnist, seeds__shuffle_seed=shuffle_seed)
    seeds = {}
    for round_num in (1, 2):
      for client in cohort(round_num):
        (found,) = client.load().data[ROUNDING_SEED]
        key = shuffle_seed, round_num, client.client_id
        seeds[key] = tuple(found.numpy())
    return seeds

  seeds = drawn(1) | drawn(2)
  assert len(set(seeds.values())) == len(seeds) == 12
  # A resumed run draws what an uninterrupted one draws.
  assert drawn(2).items() <= seeds.items()


def test_columns_are_the_bytes_that_clients_send(small_mnist, tmp_path):
  rows = _train(small_mnist, tmp_path / 'run', **_FOUR)
  config, cohort = _cohorts(small_mnist)
  process, clients = build.build_learning_process(config), cohort(1)
  num_bytes = 0
  for client in process.trained_models(process.initialize(), clients):
    for tensor in client['update'].delta:
      num_bytes += len(_packed_delta(np.asarray(tensor)))
    for tensor in client['update'].a:
      num_bytes += len(_packed_fisher(np.asarray(tensor)))
  model_bytes = 4 * (7840 + 10)
  for row in rows:
    sent = row['round'] * num_bytes
    assert row['communication/uplink_bytes'] == sent
    received = row['round'] * 3 * model_bytes
    assert row['communication/downlink_bytes'] == received
    assert row['communication/total_bytes'] == sent + received
  # The loss of round 2 is that of the mean in round 1.
  exact = _train(small_mnist, tmp_path / 'exact')
  assert rows[0]['train/loss'] == exact[0]['train/loss']
  assert rows[1]['train/loss'] != exact[1]['train/loss']
  assert rows[1]['train/loss'] == pytest.approx(exact[1]['train/loss'], rel=0.1)


def test_a_resumed_run_is_an_uninterrupted_one(small_mnist, tmp_path):
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  _train(small_mnist, whole, **_FOUR)
  _train(small_mnist, resumed, training__num_rounds=1, **_FOUR)
  _train(small_mnist, resumed, **_FOUR)
  metrics = [(run / 'metrics.csv').read_bytes() for run in (whole, resumed)]
  assert metrics[0] == metrics[1]
  assert _tensors(whole) == _tensors(resumed)


@pytest.mark.slow
def test_workers_round_as_one_process(small_mnist, tmp_path):
  here, there = tmp_path / 'here', tmp_path / 'there'
  workers = dict(engine__kind='ray', engine__num_workers=2)
  _train(small_mnist, here, **_FOUR)
  _train(small_mnist, there, **_FOUR | workers)
  assert _tensors(here) == _tensors(there)
