"""Runs whose clients train on full batches only."""

import pytest
import small_runs

from tff_fedfish.config import load as config_loading
from tff_fedfish.run import cohorts, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

_COLUMN = 'train/num_clients_below_one_batch'


def _rows_of_clients(inputs, settings, round_num):
  config = config_loading.load_config(
    small_runs.CONFIG, small_runs.overrides(*inputs, **settings)
  )
  found = check.check_run(config)
  rows = row_source(config).training_rows(found.corpus, found.tokenizer)
  cohort = cohorts.cohort(config, found.split.participating, rows, round_num)
  return [len(rows.sequences(client.client_id)) for client in cohort]


@pytest.mark.parametrize('batches', ['repeat_full', 'full_only'])
def test_rows_of_a_round(batches, small_inputs, tmp_path):
  settings = dict(
    data__client_batches=batches,
    # Some clients have fewer blocks than a batch.
    data__sequence_length=16,
    data__drop_short_block=True,
    client_work__local_batch_size=8,
    client_work__max_sequences_per_client=20,
    cohorts__cohort_size=4,
    training__num_rounds=2,
  )
  assert small_runs.train(small_inputs, tmp_path / 'run', **settings) == 0
  rounds = tables.read_metrics(tmp_path / 'run' / 'metrics.csv')[1:]
  num_below = 0
  for round_num, row in enumerate(rounds, 1):
    counts = _rows_of_clients(small_inputs, settings, round_num)
    if batches == 'repeat_full':
      # Of every client two batches of 8, E = 2.
      assert row['train/num_sequences'] == 16 * sum(n > 0 for n in counts) * 2
      assert _COLUMN not in row
      continue
    kept = [min(n, 20) // 8 * 8 for n in counts]
    assert row['train/num_sequences'] == 2 * sum(kept)
    assert row['train/num_dropped_sequences'] == sum(counts) - sum(kept)
    assert row[_COLUMN] == sum(n < 8 for n in counts)
    assert row['train/num_empty_clients'] == row[_COLUMN]
    num_below += row[_COLUMN]
  assert batches == 'repeat_full' or num_below
