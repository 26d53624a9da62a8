"""Clients of a round: divided, loaded, tried again, left out, counted."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import FailedError
from tff_fedfish.runtime import in_process_context, round_options
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient
from tff_fedfish.runtime.client_runner import divide_cohort
from tff_fedfish.runtime.round_options import RoundOptions, use_round_options


class _Loader(ClientLoader):
  """Loads a number, or raises `error` the first `num_failures` times."""

  def __init__(self, number, error=None, num_failures=0):
    self.number, self.error = number, error
    self.num_failures, self.num_loads = num_failures, 0

  def load(self):
    self.num_loads += 1
    if self.num_loads <= self.num_failures:
      raise self.error
    return LoadedClient(np.float32(self.number), {'num_loads': self.num_loads})


@pytest.fixture(autouse=True)
def _in_process():
  in_process_context.set_in_process_context()


@pytest.fixture(scope='module')
def mean():
  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def mean(state, numbers):
    return state, tff.federated_mean(numbers)

  return mean


def _mean(mean, clients, **options):
  options = RoundOptions(tolerates_failures=True, **options)
  with use_round_options(options) as outcome:
    return float(mean(0.0, clients)[1]), outcome


def test_cohort_is_divided():
  assert divide_cohort(0, 4) == []
  assert divide_cohort(3, 1) == [range(3)]
  # Bounds 0, 7 // 3 = 2, 14 // 3 = 4, 7.
  assert divide_cohort(7, 3) == [range(2), range(2, 4), range(4, 7)]
  assert divide_cohort(2, 8) == [range(1), range(1, 2)]


@pytest.mark.parametrize('num_partial_sums', [1, 2])
def test_client_that_fails_once_is_tried_again(mean, num_partial_sums):
  clients = [_Loader(1), _Loader(2, OSError('gone'), 1), _Loader(6)]
  found, outcome = _mean(mean, clients, num_partial_sums=num_partial_sums)
  # (1 + 2 + 6) / 3.
  assert found == 3
  assert outcome.failures == []
  assert outcome.counts[1] == {'num_loads': 2}


@pytest.mark.parametrize(
  'error, reason',
  [
    (OSError('gone'), 'data'),
    (MemoryError(), 'out_of_memory'),
    (tf.errors.ResourceExhaustedError(None, None, 'OOM'), 'out_of_memory'),
  ],
)
def test_client_that_fails_twice_is_left_out_and_counted(mean, error, reason):
  clients = [_Loader(1), _Loader(100, error, num_failures=2), _Loader(3)]
  found, outcome = _mean(mean, clients)
  # (1 + 3) / 2.
  assert found == 2
  assert [f.client_index for f in outcome.failures] == [1]
  assert outcome.failures[0].message.startswith(f'{type(error).__name__}: ')
  assert outcome.num_failures(reason) == 1
  assert sum(map(outcome.num_failures, round_options.FAILURE_REASONS)) == 1
  assert sorted(outcome.counts) == [0, 2]


def test_value_of_another_type_is_an_error_of_the_client(mean):
  found, outcome = _mean(mean, [_Loader(4), np.zeros(2, np.float32)])
  assert found == 4
  assert outcome.num_failures('data') == 1
  assert 'found float32[2]' in outcome.failures[0].message


def test_dataset_that_raises_in_the_graph():
  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  @tf.function
  def add_up(numbers):
    total = 0.0
    for number in iter(numbers):
      total += number
    return total

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS),
  )
  def mean(state, datasets):
    return state, tff.federated_mean(tff.federated_map(add_up, datasets))

  good = tf.data.Dataset.from_tensor_slices([1.0, 3.0])
  # Fails while the graph reads it, not before.
  bad = good.map(lambda x: tf.debugging.check_numerics(x / 0, 'zero'))
  found, outcome = _mean(mean, [bad, good])
  # Of the second one alone, 1 + 3.
  assert found == 4
  assert outcome.counts.keys() == {1}
  assert outcome.num_failures('data') == 1
  assert 'zero' in outcome.failures[0].message


def test_quorum(mean):
  def clients(num_failing):
    return [
      _Loader(1, OSError('no disk'), num_failures=2 * (index < num_failing))
      for index in range(4)
    ]

  assert _mean(mean, clients(1), quorum=0.5)[0] == 1
  with pytest.raises(
    FailedError,
    match=r'Only 2 of 4 clients of the round took part, but more than 0.5 of '
    r'them are required \(`--config.engine.quorum`\). The first that failed: '
    'OSError: no disk',
  ):
    _mean(mean, clients(2), quorum=0.5)
  # An empty cohort has no failures.
  assert np.isnan(_mean(mean, [], quorum=0.5)[0])
  options = RoundOptions(tolerates_failures=True, quorum=0.5)
  with use_round_options(options) as outcome:
    # 3 of 4 each time; the failures of two rounds would leave 2 of 4.
    for _ in range(3):
      assert float(mean(0.0, clients(1))[1]) == 1
  assert [failure.client_index for failure in outcome.failures] == [0, 0, 0]


def test_failures_are_raised_unless_tolerated(mean):
  with pytest.raises(OSError, match='gone'):
    mean(0.0, [_Loader(1), _Loader(2, OSError('gone'), num_failures=1)])


def test_stops_between_clients(mean):
  clients = [_Loader(n) for n in range(5)]
  answers = iter([False, False, True])
  options = RoundOptions(should_stop=lambda: next(answers))
  with (
    use_round_options(options),
    pytest.raises(round_options.RoundInterrupted),
  ):
    mean(0.0, clients)
  # One is loaded ahead of the two that ran, and one while that was decided.
  assert clients[4].num_loads == 0


def test_one_client_is_loaded_ahead_and_no_more(mean):
  clients, seen = [_Loader(n) for n in range(6)], []

  def should_stop():
    seen.append(sum(client.num_loads for client in clients))
    return False

  with use_round_options(RoundOptions(should_stop=should_stop)):
    mean(0.0, clients)
  assert [client.num_loads for client in clients] == [1] * 6
  # Before client i works, at most it and the one after it were loaded.
  assert all(count <= index + 2 for index, count in enumerate(seen))
