"""Rows that clients train on: full batches, and shuffled documents."""

import personal_runs
import pytest
import small_runs
from stateful_runs import assert_same_run

from tff_fedfish.run import tables


@pytest.mark.parametrize(
  ('batches', 'expected'),
  [
    # Of five clients a batch of 8 each, in two epochs.
    ('repeat_full', (80, 4 + 7 + 5 + 7, 0, None)),
    # The client of 5 images has none; the others leave out 4, 7, 5 and 7.
    ('full_only', (64, 4 + 7 + 5 + 5 + 7, 1, 1)),
  ],
)
def test_full_batches(batches, expected, small_mnist, tmp_path):
  run = tmp_path / 'run'
  code = personal_runs.train(
    small_mnist,
    run,
    algorithm__name='fed_avg',
    client_splits__validation_fraction=0.0,
    client_work__local_batch_size=8,
    client_work__max_sequences_per_client=14,
    data__client_batches=batches,
    # Clients of 12, 15, 5, 13 and 15 images.
    partition__scheme='per_class_over_clients',
    partition__shards_per_client=None,
    partition__alpha=0.3,
    partition__min_examples=1,
    training__num_rounds=1,
  )
  assert code == 0
  row = tables.read_metrics(run / 'metrics.csv')[1]
  names = ('sequences', 'dropped_sequences', 'empty_clients')
  names += ('clients_below_one_batch',)
  assert tuple(row.get(f'train/num_{name}') for name in names) == expected


def test_a_resumed_run_on_documents_is_an_uninterrupted_one(
  small_inputs, small_run, tmp_path
):
  def train(run, num_rounds):
    settings = dict(data__sampling='documents', training__num_rounds=num_rounds)
    assert small_runs.train(small_inputs, run, **settings) == 0
    return run

  whole = train(tmp_path / 'whole', 3)
  train(tmp_path / 'resumed', 2)
  assert_same_run(train(tmp_path / 'resumed', 3), whole)
  found, blocks = (
    [row['train/loss'] for row in tables.read_metrics(run / 'metrics.csv')]
    for run in (whole, small_run)
  )
  assert found != blocks[:4]
