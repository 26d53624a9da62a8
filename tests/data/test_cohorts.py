"""Cohorts are uniform, distinct, repeatable and cheap."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.data import cohorts, randomness

_IDS = [b'client-%d' % i for i in range(20)]


class _ManyIds(collections.abc.Sequence):
  """A billion ids that exist only when asked for."""

  def __init__(self):
    self.num_reads = 0

  def __len__(self):
    return 10**9

  def __getitem__(self, index):
    self.num_reads += 1
    return b'%d' % index


@given(
  num_clients=st.integers(1, 60),
  share=st.floats(0, 1),
  seed=st.integers(0, 2**40),
  round_num=st.integers(0, 10**6),
)
def test_equals_a_shuffle_that_is_carried_out(
  num_clients, share, seed, round_num
):
  ids = [b'%d' % i for i in range(num_clients)]
  cohort_size = max(1, round(share * num_clients))
  generator = randomness.generator('cohort', seed, round_num)
  deck = list(ids)
  for step in range(cohort_size):
    position = generator.randint(step, num_clients, dtype='int64')
    deck[step], deck[position] = deck[position], deck[step]
  cohort = cohorts.draw_cohort(
    ids, seed=seed, round_num=round_num, cohort_size=cohort_size
  )
  assert cohort == deck[:cohort_size]
  assert len(set(cohort)) == cohort_size


def test_the_stream_never_changes():
  # A run that started with an older version must resume with its cohorts.
  cohort = cohorts.draw_cohort(
    [b'%d' % i for i in range(10)], seed=1, round_num=1, cohort_size=10
  )
  assert b''.join(cohort) == b'5430716928'


def test_reads_only_the_drawn_of_a_billion_ids():
  ids = _ManyIds()
  cohort = cohorts.draw_cohort(ids, seed=1, round_num=1, cohort_size=500)
  assert len(set(cohort)) == ids.num_reads == 500


def test_an_order_is_drawn_as_far_as_it_is_read():
  ids = _ManyIds()
  order = cohorts.draw_order(ids, seed=1, round_num=0)
  first = [next(order) for _ in range(30)]
  assert ids.num_reads == 30
  assert first == cohorts.draw_cohort(ids, seed=1, round_num=0, cohort_size=30)


@pytest.mark.parametrize(('cohort_size', 'num_clients'), [(21, 20), (0, 20)])
def test_impossible_sizes(cohort_size, num_clients):
  words = f'must be between 1 and {num_clients}.* found {cohort_size}'
  with pytest.raises(ValueError, match=words):
    cohorts.draw_cohort(
      _IDS[:num_clients], seed=1, round_num=1, cohort_size=cohort_size
    )
