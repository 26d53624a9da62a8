"""Runs on merged clients, of steps instead of passes, with all clients."""

import dataclasses

import numpy as np
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.data import merged_clients, randomness
from tff_fedfish.run import (
  checkpoints,
  cohorts,
  tables,
)
from tff_fedfish.run.row_source import StoredRows, row_source
from tff_fedfish.training import check

_MERGE = dict(
  partition__scheme='merge',
  partition__num_clients=2,
  cohorts__cohort_size=None,
)
_STEPS = dict(
  client_work__num_local_steps=4,
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=None,
)


def _open(inputs, **settings):
  """Returns config, checked inputs and training rows of a run."""
  config = config_loading.load_config(
    small_runs.CONFIG, small_runs.overrides(*inputs, **settings)
  )
  found = check.check_run(config)
  rows = row_source(config).training_rows(found.corpus, found.tokenizer)
  return config, found, rows


def _cohort(config, found, rows, round_num):
  return cohorts.cohort(
    config,
    row_source(config).training_clients(found.split),
    rows,
    round_num,
  )


def _tensors(run, round_num):
  return checkpoints.load_checkpoint(
    run / f'checkpoints/round_{round_num:08d}'
  ).tensors


class TestInputs:
  def test_held_out_groups_are_in_no_client(self, small_tokens):
    _, own, _ = _open(small_tokens)
    config, found, rows = _open(small_tokens, **_MERGE)
    # The split is over groups, whether they are merged or not.
    assert found.split == own.split
    assert found.split.held_out
    client_ids = row_source(config).training_clients(found.split)
    assert client_ids == [b'merged-00000', b'merged-00001']
    merged = sum(map(rows.group_ids, client_ids), [])
    assert sorted(merged) == found.split.participating

  def test_worker_opens_the_same_clients(self, small_tokens):
    config, found, rows = _open(small_tokens, **_MERGE)
    stored_rows = StoredRows(source=row_source(config))
    for client in _cohort(config, found, rows, 2):
      stored = dataclasses.replace(client, client_rows=stored_rows).sequences()
      here = client.sequences()
      np.testing.assert_array_equal(stored.tokens, here.tokens)
      assert stored.num_lost_tokens == here.num_lost_tokens
    assert row_source(config).merge == merged_clients.Merge(
      num_clients=2, partition_seed=5, split_seed=3, held_out_fraction=0.3
    )

  def test_all_clients_are_a_cohort_in_their_order(self, small_tokens):
    config, found, rows = _open(
      small_tokens,
      cohorts__cohort_size=None,
      client_work__max_sequences_per_client=None,
      client_work__num_local_epochs=1,
    )
    for round_num in (1, 2):
      cohort = _cohort(config, found, rows, round_num)
      assert [c.client_id for c in cohort] == found.split.participating
      for client in cohort:
        everything = rows.sequences(client.client_id)
        assert len(client.sequences()) == len(everything)

  @pytest.mark.parametrize(
    ('settings', 'num_passes'),
    [
      (_MERGE | dict(partition__num_clients=1), 1),
      (dict(cohorts__cohort_size=None), 10),
    ],
    ids=['merged', 'groups'],
  )
  def test_rounds_see_the_first_batches_of_the_stream(
    self, settings, num_passes, small_tokens
  ):
    config, found, rows = _open(small_tokens, **settings, **_STEPS)
    client_id = row_source(config).training_clients(found.split)[0]
    everything = rows.sequences(client_id)
    batches = [
      batch
      for round_num in (1, 2, 3)
      for client in _cohort(config, found, rows, round_num)[:1]
      for batch in client.load().data
    ]
    # 3 rounds of 4 batches of 4 rows.
    assert [len(batch['y']) for batch in batches] == [4] * 12
    assert -(-48 // len(everything)) == num_passes
    passes = [
      randomness.permutation(
        len(everything), shuffle_seed=4, pass_num=n + 1, client_id=client_id
      )
      for n in range(num_passes)
    ]
    order = np.concatenate(passes)[:48]
    seen = np.concatenate([batch['x']['tokens'] for batch in batches])
    np.testing.assert_array_equal(seen, everything.tokens[order])
    # A pass of the merged client is longer than a round.
    repeats = [batch['x']['is_repeated'].numpy().any() for batch in batches]
    assert any(repeats) == (num_passes > 1)


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted(small_tokens, tmp_path):
  settings = dict(evaluation__every_num_rounds=0) | _MERGE | _STEPS
  resumed, whole = tmp_path / 'resumed', tmp_path / 'whole'
  for workdir, num_rounds in ((resumed, 2), (resumed, 3), (whole, 3)):
    code = small_runs.train(
      small_tokens, workdir, training__num_rounds=num_rounds, **settings
    )
    assert code == 0
  found, expected = _tensors(resumed, 3), _tensors(whole, 3)
  assert found.keys() == expected.keys()
  for name, tensor in expected.items():
    np.testing.assert_array_equal(found[name], tensor)
  rows = tables.read_metrics(whole / 'metrics.csv')
  for row in rows[1:]:
    # 2 clients of 4 batches of 4, whatever they have.
    assert row['train/num_clients'] == 2
    assert row['train/num_sequences'] == 32
    assert row['train/num_dropped_sequences'] == 0
  # The barrier replays round 4 with both clients, over groups otherwise.
  output = tmp_path / 'evaluation'
  arguments = ['--checkpoint', whole, '--data', small_tokens[0], '--barrier']
  arguments += ['--output', output, '--fractions', '0']
  assert main(['evaluate', *map(str, arguments)]) == 0
  barrier = (output / 'barrier.csv').read_text().splitlines()
  assert [line.split(',')[0] for line in barrier[1:]] == [
    'merged-00000',
    'merged-00001',
  ]
  clients = (output / 'per_client.csv').read_text()
  assert 'host' in clients
  assert 'merged' not in clients
