"""Worker processes give what one process gives, whatever happens to them."""

import contextlib
import pathlib
import re
import threading

import linear_models
import numpy as np
import psutil
import pytest
import ray_clients
import tensorflow as tf
from waiting import wait_until

from tff_fedfish import build_fed_fish, build_scaffold
from tff_fedfish.errors import FailedError
from tff_fedfish.runtime import (
  in_process_context,
  ray_watch,
  ray_workers,
  round_options,
)
from tff_fedfish.runtime.in_process_context import collect_client_outputs
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  RoundOptions,
  use_round_options,
)

_NUM_CLIENTS = 5


@pytest.fixture(autouse=True)
def _in_process():
  in_process_context.set_in_process_context()


@pytest.fixture(scope='module')
def process():
  return build_fed_fish(
    linear_models.linear_model(3),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.adam(0.1),
    num_local_epochs=2,
  )


@pytest.fixture(scope='module')
def workers():
  import ray

  ray.cloudpickle.register_pickle_by_value(ray_clients)
  others = set(psutil.Process().children(recursive=True))
  with ray_workers.RayWorkers(
    2, threads_per_worker=1, deterministic_ops=True
  ) as workers:
    workers.start()
    yield workers
    started = set(psutil.Process().children(recursive=True)) - others
  assert not ray.is_initialized()
  # No process is left behind, wherever it hangs now.
  assert len(started) >= 2 + 2
  wait_until(lambda: not any(map(_is_running, started)))
  ray.cloudpickle.unregister_pickle_by_value(ray_clients)


def _is_running(process):
  with contextlib.suppress(psutil.NoSuchProcess):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  return False


def _clients(directory, **of_client_2):
  return [
    ray_clients.Client(n, str(directory), **(of_client_2 if n == 2 else {}))
    for n in range(_NUM_CLIENTS)
  ]


def _round(process, clients, workers=None, **options):
  options = {'num_partial_sums': 3, 'tolerates_failures': True} | options
  with use_round_options(RoundOptions(workers=workers, **options)) as outcome:
    output = process.next(process.initialize(), clients)
  return output, outcome


def _assert_same(one, other):
  tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def _process_ids(directory, number):
  """Returns the ids of the processes that loaded a client, in order."""
  names = [p.name.split('-') for p in pathlib.Path(directory).iterdir()]
  loads = [n for n in names if n[0] == str(number)]
  return [name[1] for name in sorted(loads, key=lambda name: int(name[2]))]


@pytest.fixture
def expected(process, tmp_path):
  (tmp_path / 'expected').mkdir()
  return _round(process, _clients(tmp_path / 'expected'))[0]


@pytest.fixture
def loads(tmp_path):
  directory = tmp_path / 'loads'
  directory.mkdir()
  return directory


@pytest.mark.slow
def test_same_bits_as_one_process(process, workers, expected, loads):
  clients, lines = _clients(loads, num_failures=1), []
  output, outcome = _round(process, clients, workers, on_notice=lines.append)
  _assert_same(output, expected)
  assert outcome.counts == {n: {'num_rows': n + 2} for n in range(_NUM_CLIENTS)}
  assert (outcome.failures, outcome.num_lost_workers) == ([], 0)
  # Two processes shared the clients, neither of them this one.
  ids = {i for n in range(_NUM_CLIENTS) for i in _process_ids(loads, n)}
  assert ids == set(map(str, ray_clients.process_ids(workers)))
  # The client that raised was tried again, by the other one.
  first, second = _process_ids(loads, 2)
  assert first != second
  (line,) = lines
  assert re.fullmatch(
    r'a client failed on host \S+ \([\d.]+\) and is tried again: OSError: '
    'client 2 is gone. This is said once per host.',
    line,
  )
  # It was loaded twice; the next two loads fail.
  clients[2].num_failures = 4
  _, outcome = _round(process, clients, workers, on_notice=lines.append)
  assert lines == [line]
  (failure,) = outcome.failures
  assert (failure.client_index, failure.reason) == (2, 'data')
  assert failure.message == 'OSError: client 2 is gone'
  options = (1, 2, False, True)
  assert ray_clients.tensorflow_options(workers) == [options] * 2
  clients[2].num_failures = 5
  with pytest.raises(
    FailedError, match='Client 2 of the round failed: OSError: client 2 is gone'
  ):
    _round(process, clients, workers, tolerates_failures=False)


@pytest.mark.slow
def test_worker_that_dies_has_its_clients_run_elsewhere(
  process, workers, expected, loads
):
  before = set(ray_clients.process_ids(workers))
  output, outcome = _round(process, _clients(loads, num_deaths=1), workers)
  _assert_same(output, expected)
  assert outcome.failures == []
  assert outcome.num_lost_workers == 1
  first, second = _process_ids(loads, 2)
  assert first != second
  # It was replaced.
  assert len(set(ray_clients.process_ids(workers)) - before) == 1


@pytest.mark.slow
def test_stop_does_not_wait_for_clients(process, workers, loads):
  def should_stop():
    return bool(_process_ids(loads, 2))

  # Client 2 would wait for ever.
  clients = _clients(loads, waits_for='nothing')
  with pytest.raises(RoundInterrupted):
    _round(process, clients, workers, should_stop=should_stop)


@pytest.mark.slow
def test_tells_of_a_client_that_hangs(process, workers, loads, monkeypatch):
  monkeypatch.setattr(ray_watch, '_MIN_LATE_SECONDS', 0.5)
  lines = []

  def let_go(line):
    lines.append(line)
    # The second line, after twice the time.
    if len(lines) == 2:
      (loads / 'go').touch()

  clients = _clients(loads, waits_for='go')
  _round(process, clients, workers, on_notice=let_go, num_partial_sums=5)
  (process_id,) = _process_ids(loads, 2)
  pattern = r'the worker on host \S+ \(\S+\) has been busy with client 2 of .*'
  pattern += f'`kill -9 {process_id}`.*'
  assert len(lines) == 2 and all(re.fullmatch(pattern, line) for line in lines)


@pytest.mark.slow
def test_outputs_that_are_lost_with_their_worker(workers, tmp_path):
  process = build_scaffold(
    linear_models.linear_model(3),
    num_clients=_NUM_CLIENTS,
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
  )

  def run(clients, workers=None):
    with collect_client_outputs() as outputs:
      receive = round_options.current()[0].on_client_output
      output, _ = _round(process, clients, workers, on_client_output=receive)
    return output, outputs

  # Parts [0], [1, 2], [3, 4]. Client 0 waits, so the second part's outputs
  # still lie with the worker that client 4 ends.
  clients = [
    ray_clients.KeepingClient(
      n, str(tmp_path), kept=(n, 1.0, -n, 2.0, 1.0) if n % 2 else None
    )
    for n in range(_NUM_CLIENTS)
  ]
  clients[4].num_deaths, clients[0].waits_for = 1, 'go'

  def let_go():
    wait_until(lambda: len(list(tmp_path.glob('4-*'))) == 2)
    (tmp_path / 'go').touch()

  thread = threading.Thread(target=let_go, daemon=True)
  thread.start()
  output, outputs = run(clients, workers)
  thread.join()
  # The second part was run again.
  assert len(list(tmp_path.glob('1-*'))) == 2
  expected, expected_outputs = run(clients)
  _assert_same(output, expected)
  assert list(outputs) == list(range(_NUM_CLIENTS))
  _assert_same(outputs, expected_outputs)
