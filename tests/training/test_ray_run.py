"""`fedfish train` with worker processes."""

import signal

import numpy as np
import pytest
import small_runs

from tff_fedfish.run import (
  checkpoints,
  client_state_files,
  metrics_files,
  run_directory,
)
from tff_fedfish.run.client_states import ClientStates
from tff_fedfish.run.stored_uploads import StoredUploads

_SETTINGS = dict(
  training__num_rounds=2,
  evaluation__num_clients=0,
  checkpoints__every_num_rounds=0,
  engine__num_partial_sums=2,
)


def _train(inputs, workdir, **settings):
  assert small_runs.train(inputs, workdir, **_SETTINGS | settings) == 0
  path = checkpoints.latest_checkpoint(workdir / 'checkpoints')
  rows = metrics_files.read_metrics(workdir / 'metrics.csv')
  return checkpoints.load_checkpoint(path).tensors, rows


def _train_with_workers(inputs, workdir, num_workers, **settings):
  return _train(
    inputs,
    workdir,
    engine__kind='ray',
    engine__num_workers=num_workers,
    engine__threads_per_worker=1,
    **settings,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    {},
    dict(client_work__max_delta_norm=0.1),
  ],
  ids=['default', 'bound'],
)
def test_same_run_as_in_process(settings, small_inputs, tmp_path):
  found, found_rows = _train_with_workers(
    small_inputs, tmp_path / 'ray', 2, **settings
  )
  expected, expected_rows = _train(
    small_inputs, tmp_path / 'in_process', **settings
  )
  # Threads may change the order of a sum within a matrix product.
  for name, tensor in expected.items():
    np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=1e-6)
  assert len(found_rows) == 3
  for one, other in zip(found_rows, expected_rows, strict=True):
    assert one == pytest.approx(other, rel=1e-5)
    if settings:
      assert one['train/num_clipped_clients'] > 0
  # Counted by the workers, where the sequences are.
  assert sum(row['train/num_dropped_tokens'] or 0 for row in found_rows) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    dict(algorithm__name='moon'),
    dict(algorithm__name='scaffold'),
    # Its weights are quotients of differences, here of large ones.
    dict(algorithm__name='fed_fomo', client_work__learning_rate=0.2),
  ],
  ids=lambda settings: settings['algorithm__name'],
)
def test_clients_keep_the_same_as_in_process(settings, small_inputs, tmp_path):
  settings = settings | {'training__num_rounds': 3}
  runs = [tmp_path / 'ray', tmp_path / 'in_process']
  _train_with_workers(small_inputs, runs[0], 2, **settings)
  _train(small_inputs, runs[1], **settings)
  found, expected = map(ClientStates, runs)
  clients = [entry for entry in expected._newest(3)]
  assert [c for c, _ in found._newest(3)] == [c for c, _ in clients]
  for client_id, version in clients:
    tensors, wanted = (
      client_state_files.read(states.path_for(client_id, 4))
      for states in (found, expected)
    )
    assert found._version(client_id, 4).round_num == version.round_num
    for tensor_name, tensor in wanted.items():
      # Of a loss of 5.5 the last bit is 5e-7.
      atol = 1e-4 if tensor_name.startswith('affinity') else 1e-6
      np.testing.assert_allclose(
        tensors[tensor_name], tensor, rtol=1e-3, atol=atol
      )


@pytest.mark.slow
def test_one_shot_uploads_are_those_in_process(small_inputs, tmp_path):
  settings = dict(
    algorithm__name='fed_fisher',
    algorithm__curvature='diagonal',
    algorithm__keeps_uploads=True,
    algorithm__num_validation_rows=20,
    client_work__micro_batch_size=2,
    server__learning_rate=1.0,
    server__optimizer='sgd',
  )
  runs = [tmp_path / 'ray', tmp_path / 'in_process']
  found, found_rows = _train_with_workers(small_inputs, runs[0], 2, **settings)
  wanted, wanted_rows = _train(small_inputs, runs[1], **settings)
  config = run_directory.read_config(runs[1])
  shape, upload = config.model_shape(), config.method.upload(config)
  for round_num in (1, 2):
    of_ray, of_process = (
      StoredUploads(
        checkpoints.path_of(run / 'uploads', round_num), shape, upload
      )
      for run in runs
    )
    assert of_ray.client_ids == of_process.client_ids
    for one, other in zip(of_ray, of_process, strict=True):
      assert one.client_weight == other.client_weight
      tensors = zip(
        [*one.weights, *one.summary.values()],
        [*other.weights, *other.summary.values()],
        strict=True,
      )
      for tensor, expected in tensors:
        np.testing.assert_allclose(tensor, expected, rtol=1e-3, atol=1e-5)
  for tensor_name, tensor in wanted.items():
    np.testing.assert_allclose(found[tensor_name], tensor, rtol=1e-3, atol=1e-4)
  for one, other in zip(found_rows, wanted_rows, strict=True):
    assert one['one_shot/num_uploads'] == other['one_shot/num_uploads']


@pytest.mark.slow
def test_number_of_workers_does_not_matter(small_inputs, tmp_path):
  one, one_rows = _train_with_workers(small_inputs, tmp_path / 'one', 1)
  two, two_rows = _train_with_workers(small_inputs, tmp_path / 'two', 2)
  assert one_rows == two_rows
  assert one.keys() == two.keys()
  for name, tensor in one.items():
    np.testing.assert_array_equal(tensor, two[name])


@pytest.mark.slow
@pytest.mark.parametrize('signal_num', [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_the_last_whole_round(small_inputs, tmp_path, signal_num):
  process = small_runs.start(
    small_inputs,
    tmp_path / 'run',
    3,
    **_SETTINGS | dict(training__num_rounds=10_000),
    engine__kind='ray',
    engine__num_workers=2,
  )
  process.send_signal(signal_num)
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 128 + signal_num
  assert 'finishing the client in hand' in errors
  last = checkpoints.list_rounds(tmp_path / 'run' / 'checkpoints')[-1]
  rows = metrics_files.read_metrics(tmp_path / 'run' / 'metrics.csv')
  assert 3 <= last == rows[-1]['round']
