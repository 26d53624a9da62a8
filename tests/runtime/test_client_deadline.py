"""Clients that take longer than they may are left out, by a clock of tests."""

import collections
import itertools
import types

import linear_models
import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.algorithms.fed_avg import build_fed_avg
from tff_fedfish.runtime import client_deadline, in_process_context
from tff_fedfish.runtime.client_deadline import ClientTimeoutError, Deadline
from tff_fedfish.runtime.round_options import RoundOptions, use_round_options


@pytest.fixture
def clock(monkeypatch):
  """A second passes each time that somebody looks."""
  ticks = itertools.count()
  monkeypatch.setattr(
    client_deadline,
    'time',
    types.SimpleNamespace(monotonic=lambda: float(next(ticks))),
  )


def _batches(num_batches):
  return linear_models.batches(
    np.ones((num_batches, 3)), np.arange(num_batches), 1
  )


def test_clock_starts_with_the_first_batch(clock):
  deadline = Deadline(2.0)
  dataset = deadline.watch(_batches(9))
  rows = iter(dataset)
  # At 0, 1 and 2 seconds.
  assert [float(next(rows)['y'][0]) for _ in range(3)] == [0, 1, 2]
  assert not deadline.is_over
  with pytest.raises(tf.errors.OpError, match='ClientTimeoutError'):
    next(rows)
  assert deadline.is_over
  with pytest.raises(
    ClientTimeoutError,
    match=r'it took longer than 2 s \(`--config.engine.client_timeout_seconds',
  ):
    deadline.require()


def test_data_stay_as_they_are():
  numbers = np.arange(3)
  pairs = tf.data.Dataset.from_tensor_slices((numbers, numbers * 2))
  ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
  data = collections.OrderedDict(data=_batches(2), state=pairs, other=numbers)
  found = Deadline(99.0).watch(data)
  assert list(found) == ['data', 'state', 'other']
  assert found['other'] is numbers
  for name in ('data', 'state'):
    assert found[name].element_spec == data[name].element_spec
    assert found[name].cardinality() == data[name].cardinality()
  assert [*found['state'].as_numpy_iterator()] == [(0, 0), (1, 2), (2, 4)]
  (row,) = Deadline(99.0).watch(ragged)
  assert row.to_list() == [[1], [2, 3]]


def test_slow_client_is_left_out_of_a_round(clock):
  in_process_context.set_in_process_context()
  process = build_fed_avg(
    linear_models.linear_model(3),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
  )
  state = process.initialize()
  expected = process.next(state, [_batches(2), _batches(3)])
  # A client of n batches looks n times, and once in the end: it takes n s.
  options = RoundOptions(client_timeout_seconds=3.0, num_partial_sums=2)
  clients = [_batches(2), _batches(4), _batches(3)]
  with use_round_options(options) as outcome:
    found = process.next(state, clients)
  # As every other failure, but never tried again.
  (failure,) = outcome.failures
  assert (failure.client_index, failure.reason) == (1, 'timeout')
  assert failure.message.startswith('ClientTimeoutError: it took longer than 3')
  assert outcome.num_failures('error') == 1
  assert outcome.num_failures('data') == 0
  tf.nest.map_structure(
    np.testing.assert_array_equal,
    found.state.global_model_weights,
    expected.state.global_model_weights,
  )
  with use_round_options(RoundOptions()) as outcome:
    process.next(state, clients)
  assert not outcome.failures
