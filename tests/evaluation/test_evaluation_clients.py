"""The sample of clients is a prefix of one order, drawn as far as needed."""

import collections

import numpy as np

from tff_fedfish.data import cohorts
from tff_fedfish.data.sequences import ClientRows, Sequences
from tff_fedfish.evaluation import evaluation_clients


class _Ids(collections.abc.Sequence):
  """Ten million ids that exist only when asked for."""

  def __init__(self):
    self.num_reads = 0

  def __len__(self):
    return 10**7

  def __getitem__(self, index):
    self.num_reads += 1
    return b'%d' % index


class _Rows(ClientRows):
  """Clients with odd ids have 4 rows, the others 1."""

  def sequences(self, client_id):
    num_rows = 4 if int(client_id) % 2 else 1
    return Sequences(
      np.zeros([num_rows, 3], np.int32), np.full(num_rows, 2, np.int32)
    )


def _choose(client_ids, max_clients):
  return evaluation_clients.choose_clients(
    client_ids,
    _Rows(),
    split_seed=3,
    split_unit='sequences',
    max_clients=max_clients,
  )


def test_only_the_first_of_the_order_are_read():
  ids = _Ids()
  sample = _choose(ids, 5)
  num_passed = sample.skipped['too_few_sequences']
  # The next one is drawn before it is known that there are enough.
  assert ids.num_reads == 5 + num_passed + 1
  assert sample.skipped['beyond_max_clients'] == 10**7 - 5 - num_passed
  order = cohorts.draw_cohort(
    _Ids(), seed=3, round_num=0, cohort_size=5 + num_passed
  )
  expected = [client_id for client_id in order if int(client_id) % 2]
  assert [client_id for client_id, _ in sample.clients] == expected


def test_none_is_all_that_are_large_enough():
  ids = [b'%d' % i for i in range(10)]
  sample = _choose(ids, None)
  assert sorted(i for i, _ in sample.clients) == [b'1', b'3', b'5', b'7', b'9']
  assert sample.skipped == {'too_few_sequences': 5, 'beyond_max_clients': 0}
  assert _choose([], 3).skipped == {
    'too_few_sequences': 0,
    'beyond_max_clients': 0,
  }
