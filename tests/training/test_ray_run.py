"""`fedfish train` with worker processes."""

import signal

import numpy as np
import personal_runs
import pytest

from tff_fedfish.run import checkpoints, tables, tensor_files
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.store import RoundWriter

_SETTINGS = dict(
  algorithm__name='scaffold',
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=6,
  cohorts__cohort_size=3,
  evaluation__num_clients=0,
  evaluation__barrier_every_num_rounds=1,
  checkpoints__every_num_rounds=0,
  engine__num_partial_sums=2,
  local_privacy__clip_norm=0.5,
  local_privacy__noise_multiplier=1.0,
  local_privacy__sampling='poisson',
)
_WORKERS = dict(
  engine__kind='ray', engine__num_workers=2, engine__threads_per_worker=1
)


@pytest.mark.slow
def test_same_run_as_in_process(small_mnist, tmp_path):
  here, there = tmp_path / 'here', tmp_path / 'there'
  assert personal_runs.train(small_mnist, here, **_SETTINGS) == 0
  assert personal_runs.train(small_mnist, there, **_SETTINGS | _WORKERS) == 0
  privacy = [(run / 'privacy.csv').read_bytes() for run in (here, there)]
  assert privacy[0] == privacy[1]
  # Threads may change the order of a sum within a matrix product.
  expected, found = (
    tables.read_metrics(run / 'metrics.csv') for run in (here, there)
  )
  assert len(found) == 4
  for row, wanted in zip(found, expected, strict=True):
    assert row == pytest.approx(wanted, rel=1e-4)
  for row in found[1:]:
    assert row['barrier/num_clients'] == 3
  expected, found = (
    checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run)).tensors
    for run in (here, there)
  )
  assert found.keys() == expected.keys()
  for name, tensor in expected.items():
    np.testing.assert_allclose(found[name], tensor, rtol=1e-3, atol=1e-6)
  # Clients keep the same.
  expected, found = map(ClientStates, (here, there))
  clients = [*expected._versions_after(3)]
  assert clients and [*found._versions_after(3)] == clients
  for client_id, _ in clients:
    tensors, wanted = (
      tensor_files.read(states.path_for(client_id, 4))
      for states in (found, expected)
    )
    for name, tensor in wanted.items():
      np.testing.assert_allclose(tensors[name], tensor, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_signal_saves_the_last_whole_round(
  small_mnist, tmp_path, capfd, monkeypatch
):
  add = RoundWriter.add_client

  def add_and_interrupt(self, index, *arguments):
    add(self, index, *arguments)
    if self.path.name == 'round_00000003' and index == 0:
      signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(RoundWriter, 'add_client', add_and_interrupt)
  run = tmp_path / 'run'
  code = personal_runs.train(small_mnist, run, **_SETTINGS | _WORKERS)
  assert code == 128 + signal.SIGTERM
  assert 'finishing the client in hand' in capfd.readouterr().err
  assert checkpoints.list_rounds(run / 'checkpoints') == [0, 2]
  rows = tables.read_metrics(run / 'metrics.csv')
  assert [row['round'] for row in rows] == [0, 1, 2]
