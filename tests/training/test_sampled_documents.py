"""Runs whose clients train on shuffled documents."""

import small_runs

from tff_fedfish.run import checkpoints, tables

_SETTINGS = dict(
  data__sampling='documents', client_work__max_sequences_per_client=2
)


def _train(inputs, run, num_rounds, **settings):
  settings = _SETTINGS | settings | dict(training__num_rounds=num_rounds)
  assert small_runs.train(inputs, run, **settings) == 0
  return run


def _files(run):
  state = run / 'checkpoints' / 'round_00000003' / 'state.safetensors'
  return (run / 'metrics.csv').read_bytes(), state.read_bytes()


def test_resumed_run_equals_uninterrupted_bit_for_bit(small_inputs, tmp_path):
  whole = _train(small_inputs, tmp_path / 'whole', 3)
  resumed = _train(small_inputs, tmp_path / 'resumed', 2)
  assert max(checkpoints.list_rounds(resumed / 'checkpoints')) == 2
  _train(small_inputs, resumed, 3)
  assert _files(resumed) == _files(whole)
  blocks = _train(small_inputs, tmp_path / 'blocks', 3, data__sampling='blocks')
  found, others = (
    [row['train/loss'] for row in tables.read_metrics(r / 'metrics.csv')]
    for r in (whole, blocks)
  )
  assert found != others
