"""The next cohort is tokenized in a thread, and nobody waits for it."""

import threading

import numpy as np

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.run import cohort_data


class _Source:
  """Notes which clients are loaded; waits where it is told to."""

  def __init__(self):
    self.loaded, self.go_on = [], threading.Event()
    self.is_waiting, self.is_done = threading.Event(), threading.Event()

  def open(self):
    return self

  def training_sequences(self, client_id, **_):
    self.loaded.append(client_id)
    if client_id == b'slow':
      self.is_waiting.set()
      assert self.go_on.wait(20)
    if client_id == b'broken':
      raise OSError('gone')
    if client_id == b'last':
      self.is_done.set()


def _clients(source, *client_ids):
  return [
    cohort_data.TrainingClient(
      client_id=client_id,
      source=source,
      round_num=1,
      shuffle_seed=1,
      max_sequences=1,
      batch_size=1,
    )
    for client_id in client_ids
  ]


def test_client_that_fails_is_passed_over():
  source = _Source()
  with cohort_data.Prefetcher() as prefetcher:
    prefetcher.start(_clients(source, b'a', b'broken', b'last'))
    assert source.is_done.wait(20)
  assert source.loaded == [b'a', b'broken', b'last']


def test_what_is_no_longer_wanted_is_dropped():
  source = _Source()
  with cohort_data.Prefetcher() as prefetcher:
    prefetcher.start(_clients(source, b'slow', b'b', b'c'))
    assert source.is_waiting.wait(20)
    prefetcher.start(_clients(source, b'd', b'last'))
    source.go_on.set()
    assert source.is_done.wait(20)
    # And again, after the thread may have ended.
    source.is_done.clear()
    prefetcher.start(_clients(source, b'e', b'last'))
    assert source.is_done.wait(20)
  assert source.loaded == [b'slow', b'd', b'last', b'e', b'last']


def test_end_waits_for_the_client_in_hand_alone():
  source = _Source()
  with cohort_data.Prefetcher() as prefetcher:
    prefetcher.start(_clients(source, b'slow', b'b'))
    assert source.is_waiting.wait(20)
    thread = prefetcher._thread
    threading.Timer(0.1, source.go_on.set).start()
  assert not thread.is_alive()
  assert source.loaded == [b'slow']


class _Rows:
  """Every client has three sequences of two tokens."""

  def open(self):
    return self

  def training_sequences(self, client_id, **options):
    tokens = np.full([3, 3], options['round_num'], np.int32)
    return sequences_lib.Sequences(tokens, np.full(3, 2, np.int32))


def _batches(**settings):
  """Returns a client's batches: of two rows and of one."""
  values = dict(
    client_id=b'a',
    source=_Rows(),
    round_num=1,
    shuffle_seed=4,
    max_sequences=3,
    batch_size=2,
    samples_labels=True,
  )
  client = cohort_data.TrainingClient(**values | settings)
  return list(client.load().data)


def _loaded_seeds(**settings):
  batches = _batches(**settings)
  return np.concatenate([batch['x']['noise_seed'] for batch in batches])


def test_seeds_are_a_function_of_seed_round_and_client():
  seeds = _loaded_seeds()
  assert seeds.shape == (3, 2)
  assert len(np.unique(seeds)) == 6
  np.testing.assert_array_equal(seeds, _loaded_seeds())
  for settings in (
    {'client_id': b'b'},
    {'round_num': 2},
    {'shuffle_seed': 5},
  ):
    assert not np.any(seeds == _loaded_seeds(**settings))


def test_batches_have_seeds_where_labels_are_drawn_alone():
  first, _ = _batches()
  assert list(first['x']) == ['tokens', 'noise_seed']
  np.testing.assert_array_equal(first['x']['tokens'], np.ones([2, 3]))
  first, _ = _batches(samples_labels=False)
  np.testing.assert_array_equal(first['x'], np.ones([2, 3]))
