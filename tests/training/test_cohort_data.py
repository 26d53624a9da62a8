"""The next cohort is tokenized in a thread, and nobody waits for it."""

import threading

from tff_fedfish.training import cohort_data


class _Source:
  """Notes which clients are loaded; waits where it is told to."""

  def __init__(self):
    self.loaded, self.go_on = [], threading.Event()
    self.is_waiting, self.is_done = threading.Event(), threading.Event()

  def open(self):
    return self

  def sequences(self, client_id):
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
