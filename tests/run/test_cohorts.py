"""Data of a cohort's clients: what is loaded, counted and in which order."""

import numpy as np
import pytest

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.run import cohorts


class _NumberedRows(sequences_lib.ClientRows):
  """A client's number of rows is its id; row i holds the token i."""

  def sequences(self, client_id):
    count = int(client_id)
    tokens = np.repeat(np.arange(count, dtype=np.int32)[:, np.newaxis], 3, 1)
    return sequences_lib.Sequences(tokens, np.full(count, 2, np.int32))


def _load_numbered(count, batches, max_sequences=16):
  """Returns the rows' numbers, batch by batch, and the counts."""
  loaded = cohorts.TrainingClient(
    client_id=b'%d' % count,
    client_rows=_NumberedRows(),
    round_num=1,
    shuffle_seed=4,
    max_sequences=max_sequences,
    batch_size=4,
    batches=batches,
  ).load()
  numbers = [batch['x'][:, 0].numpy().tolist() for batch in loaded.data]
  return numbers, loaded.counts


def test_rows_are_repeated_into_full_batches():
  # 3 blocks, batches of 4, cap 16: 4 batches of 4.
  found, counts = _load_numbered(3, 'repeat_full')
  assert [len(batch) for batch in found] == [4, 4, 4, 4]
  rows = sum(found, [])
  # Pass after pass: none is seen a sixth time before all are a fifth.
  assert sorted(rows[:3]) == [0, 1, 2]
  assert rows == (rows[:3] * 6)[:16]
  assert counts == {'num_dropped_sequences': 0, 'num_dropped_tokens': 0}
  # Now the last, smaller batch is what there is.
  assert _load_numbered(3, 'ragged')[0] == [rows[:3]]


@pytest.mark.parametrize('count', [1, 4, 15, 16, 40])
def test_all_clients_have_the_same_number_of_rows(count):
  # w_i is the number of rows: cap 18 holds 4 batches of 4.
  found, counts = _load_numbered(count, 'repeat_full', max_sequences=18)
  assert [len(batch) for batch in found] == [4, 4, 4, 4]
  assert len({*sum(found, [])}) == min(count, 16)
  # Three tokens each.
  dropped = max(count - 16, 0)
  assert counts == {
    'num_dropped_sequences': dropped,
    'num_dropped_tokens': 3 * dropped,
  }


def test_nothing_is_made_of_no_rows():
  for batches in ('ragged', 'repeat_full', 'full_only'):
    found, counts = _load_numbered(0, batches)
    assert not found
    assert not any(counts.values())


@pytest.mark.parametrize(
  ('count', 'num_batches', 'num_dropped', 'is_below_one_batch'),
  [(3, 0, 3, 1), (4, 1, 0, 0), (7, 1, 3, 0), (30, 4, 14, 0)],
)
def test_rows_that_fill_no_batch_are_dropped_and_counted(
  count, num_batches, num_dropped, is_below_one_batch
):
  found, counts = _load_numbered(count, 'full_only')
  assert [len(batch) for batch in found] == [4] * num_batches
  rows = sum(found, [])
  assert len({*rows}) == len(rows)
  # The rows are those of ragged batches, of which the last ones are left out.
  assert rows == sum(_load_numbered(count, 'ragged')[0], [])[: len(rows)]
  assert counts == {
    'num_dropped_sequences': num_dropped,
    'num_dropped_tokens': 3 * num_dropped,
    'num_clients_below_one_batch': is_below_one_batch,
  }
