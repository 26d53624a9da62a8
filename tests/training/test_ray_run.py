"""`fedfish train` with worker processes."""

import signal

import numpy as np
import pytest
import small_runs

from tff_fedfish.run import checkpoints, tables, tensor_files
from tff_fedfish.run.client_state import ClientStates

_SETTINGS = dict(
  training__num_rounds=2,
  evaluation__num_clients=0,
  checkpoints__every_num_rounds=0,
  engine__num_partial_sums=2,
)


def _train(inputs, workdir, **settings):
  assert small_runs.train(inputs, workdir, **_SETTINGS | settings) == 0
  path = checkpoints.latest_checkpoint(workdir / 'checkpoints')
  rows = tables.read_metrics(workdir / 'metrics.csv')
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
def test_same_run_as_in_process(small_inputs, tmp_path):
  bound = dict(client_work__max_delta_norm=0.1)
  one, one_rows = _train_with_workers(
    small_inputs, tmp_path / 'one', 1, **bound
  )
  two, two_rows = _train_with_workers(
    small_inputs, tmp_path / 'two', 2, **bound
  )
  assert one_rows == two_rows
  assert one.keys() == two.keys()
  for name, tensor in one.items():
    np.testing.assert_array_equal(tensor, two[name])
  expected, expected_rows = _train(small_inputs, tmp_path / 'here', **bound)
  # Threads may change the order of a sum within a matrix product.
  for name, tensor in expected.items():
    np.testing.assert_allclose(two[name], tensor, rtol=1e-4, atol=1e-6)
  assert len(two_rows) == 3
  for row, expected_row in zip(two_rows, expected_rows, strict=True):
    assert row == pytest.approx(expected_row, rel=1e-5)
    assert row['train/num_clipped_clients'] > 0
  # Counted by the workers, where the sequences are.
  assert sum(row['train/num_dropped_tokens'] or 0 for row in two_rows) > 0


@pytest.mark.slow
def test_clients_keep_the_same_as_in_process(small_inputs, tmp_path):
  settings = dict(algorithm__name='scaffold', training__num_rounds=3)
  runs = [tmp_path / 'ray', tmp_path / 'in_process']
  _train_with_workers(small_inputs, runs[0], 2, **settings)
  _train(small_inputs, runs[1], **settings)
  found, expected = map(ClientStates, runs)
  clients = [*expected._newest(3)]
  assert [c for c, _ in found._newest(3)] == [c for c, _ in clients]
  for client_id, version in clients:
    tensors, wanted = (
      tensor_files.read(states.path_for(client_id, 4))
      for states in (found, expected)
    )
    assert found._version(client_id, 4).round_num == version.round_num
    for name, tensor in wanted.items():
      np.testing.assert_allclose(tensors[name], tensor, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_signal_saves_the_last_whole_round(small_inputs, tmp_path):
  process = small_runs.start(
    small_inputs,
    tmp_path / 'run',
    3,
    **_SETTINGS | dict(training__num_rounds=10_000),
    engine__kind='ray',
    engine__num_workers=2,
  )
  process.send_signal(signal.SIGTERM)
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 128 + signal.SIGTERM
  assert 'finishing the client in hand' in errors
  last = checkpoints.list_rounds(tmp_path / 'run' / 'checkpoints')[-1]
  rows = tables.read_metrics(tmp_path / 'run' / 'metrics.csv')
  assert 3 <= last == rows[-1]['round']
