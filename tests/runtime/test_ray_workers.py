"""Worker processes give what one process gives, whatever happens to them."""

import pathlib
import re
import threading

import linear_models
import numpy as np
import psutil
import pytest
import ray_clients
import tensorflow as tf
import tensorflow_federated as tff
from waiting import LIMIT_SECONDS, wait_until

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.runtime import (
  in_process_context,
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
  with ray_workers.RayWorkers(2, threads_per_worker=1) as workers:
    workers.start()
    yield workers
  assert not ray.is_initialized()
  # No process is left behind.
  below = psutil.Process().children(recursive=True)
  assert not [p for p in below if 'ray' in ' '.join(p.cmdline())]
  ray.cloudpickle.unregister_pickle_by_value(ray_clients)


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
  for found, expected in zip(
    tf.nest.flatten(one), tf.nest.flatten(other), strict=True
  ):
    np.testing.assert_array_equal(found, expected)


def _process_ids(directory, number):
  """Returns the ids of the processes that loaded a client, in order."""
  names = [p.name.split('-') for p in pathlib.Path(directory).iterdir()]
  loads = [n for n in names if n[0] == str(number)]
  return [name[1] for name in sorted(loads, key=lambda name: int(name[2]))]


@pytest.fixture
def expected(process, tmp_path):
  (tmp_path / 'expected').mkdir()
  return _round(process, _clients(tmp_path / 'expected'))


@pytest.fixture
def loads(tmp_path):
  directory = tmp_path / 'loads'
  directory.mkdir()
  return directory


def test_same_bits_as_one_process(process, workers, expected, loads):
  output, outcome = _round(process, _clients(loads), workers)
  _assert_same(output, expected[0])
  assert outcome == expected[1]
  assert outcome.counts == {n: {'num_rows': n + 2} for n in range(_NUM_CLIENTS)}
  assert str(outcome.num_lost_workers) == '0'
  # Two processes shared the clients, neither of them this one.
  ids = {i for n in range(_NUM_CLIENTS) for i in _process_ids(loads, n)}
  assert ids == set(map(str, ray_clients.process_ids(workers)))


def test_more_gpus_than_there_are(workers):
  workers.start()
  too_many = ray_workers.RayWorkers(2, gpus_per_worker=1.0)
  with pytest.raises(
    UserError,
    match=r'2 workers \(`--config.engine.num_workers`\) need 2 GPU, but Ray '
    "at 'local' has 0. Lower `--config.engine.gpus_per_worker`, or add",
  ):
    too_many.start()
  too_many.close()


def test_others_may_use_ray_too(workers, monkeypatch):
  # Both CPUs that Ray was started with are those of `workers`.
  before = ray_clients.process_ids(workers)
  monkeypatch.setattr(ray_workers, 'RayWorker', ray_clients.LightWorker)
  with ray_workers.RayWorkers(1) as others:
    (process_id,) = ray_clients.process_ids(others)
    assert process_id not in before
  assert ray_clients.process_ids(workers) == before


def test_order_of_arrival_does_not_matter(process, workers, expected, loads):
  # The first part waits until the last client of the last one was loaded.
  clients = _clients(loads)
  clients[0].waits_for = 'last'

  def release():
    wait_until(lambda: _process_ids(loads, _NUM_CLIENTS - 1))
    (loads / 'last').touch()

  thread = threading.Thread(target=release, daemon=True)
  thread.start()
  output, _ = _round(process, clients, workers)
  thread.join()
  _assert_same(output, expected[0])


def test_worker_that_dies_has_its_clients_run_elsewhere(
  process, workers, expected, loads
):
  before = set(ray_clients.process_ids(workers))
  output, outcome = _round(process, _clients(loads, num_deaths=1), workers)
  _assert_same(output, expected[0])
  assert outcome.failures == []
  assert outcome.num_lost_workers == 1
  first, second = _process_ids(loads, 2)
  assert first != second
  # It was replaced.
  assert len(set(ray_clients.process_ids(workers)) - before) == 1


def test_client_that_raises_is_tried_elsewhere(
  process, workers, expected, loads
):
  workers._told.clear()
  clients, lines = _clients(loads, num_failures=1), []
  output, outcome = _round(process, clients, workers, on_notice=lines.append)
  _assert_same(output, expected[0])
  assert outcome.failures == []
  first, second = _process_ids(loads, 2)
  assert first != second
  (line,) = lines
  assert re.fullmatch(
    r'a client failed on host \S+ \([\d.]+\) and is tried again: OSError: '
    'client 2 is gone. This is said once per host.',
    line,
  )


def test_client_that_raises_twice_is_left_out(process, workers, loads):
  clients, lines = _clients(loads, num_failures=2), []
  output, outcome = _round(process, clients, workers, on_notice=lines.append)
  # It was said before.
  assert lines == []
  (failure,) = outcome.failures
  assert (failure.client_index, failure.reason) == (2, 'data')
  assert failure.message == 'OSError: client 2 is gone'
  without = loads / 'without'
  without.mkdir()
  # The divisions of five clients and of these four, by part: 0 | 1 3 | 4.
  clients = [c for c in _clients(without) if c.number != 2]
  same, _ = _round(process, clients)
  for found, wanted in zip(
    tf.nest.flatten(output.state), tf.nest.flatten(same.state), strict=True
  ):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_failures_that_are_not_tolerated(process, workers, loads):
  with pytest.raises(
    FailedError, match='Client 2 of the round failed: OSError: client 2 is gone'
  ):
    _round(
      process,
      _clients(loads, num_failures=1),
      workers,
      tolerates_failures=False,
    )


def test_stop_does_not_wait_for_clients(process, workers, loads):
  # Client 2 would wait for ever.
  clients = _clients(loads, waits_for='nothing')
  with pytest.raises(RoundInterrupted):
    _round(
      process,
      clients,
      workers,
      should_stop=lambda: bool(_process_ids(loads, 2)),
    )


class TestClientOutputs:
  """Clients whose models are kept, and handed over by the workers."""

  @pytest.fixture(scope='class')
  def keeping(self):
    keeps = KeptSlot(
      initial=lambda trainable: trainable,
      # Half of what it kept, so that this counts too.
      next=lambda client: tf.nest.map_structure(
        lambda new, old: new + old / 2,
        client.local.trainable,
        client.start.kept['model'],
      ),
    )
    return compose(
      linear_models.linear_model(3),
      client_optimizer=linear_models.sgd(0.1),
      server_optimizer=linear_models.sgd(1.0),
      num_local_epochs=1,
      client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
      make_update=lambda client: client.model_delta(),
      aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
      kept_slots={'model': keeps},
    )

  def _clients(self, directory, **of_client_4):
    return [
      ray_clients.KeepingClient(
        n,
        str(directory),
        kept=(n, 1.0, -n, 2.0) if n % 2 else None,
        **(of_client_4 if n == 4 else {}),
      )
      for n in range(_NUM_CLIENTS)
    ]

  def _round(self, process, clients, workers=None):
    with collect_client_outputs() as outputs:
      options, _ = round_options.current()
      receive = options.on_client_output
      output, outcome = _round(
        process, clients, workers, on_client_output=receive
      )
    return output, outputs, outcome

  def test_same_as_in_process(self, keeping, workers, tmp_path):
    clients = self._clients(tmp_path)
    output, outputs, _ = self._round(keeping, clients, workers)
    expected, expected_outputs, _ = self._round(keeping, clients)
    assert list(outputs) == list(range(_NUM_CLIENTS))
    _assert_same(output, expected)
    _assert_same(outputs, expected_outputs)
    # Handed over only where they are asked for.
    unasked, _ = _round(keeping, clients, workers)
    _assert_same(unasked, expected)

  def test_outputs_that_are_lost_with_their_worker(
    self, keeping, workers, tmp_path
  ):
    # Parts [0], [1, 2], [3, 4]. Client 0 waits, so the second part's outputs
    # still lie with the worker that client 4 ends.
    clients = self._clients(tmp_path, num_deaths=1)
    clients[0].waits_for = 'go'

    def let_go():
      wait_until(lambda: len(list(tmp_path.glob('4-*'))) == 2)
      (tmp_path / 'go').touch()

    thread = threading.Thread(target=let_go, daemon=True)
    thread.start()
    output, outputs, outcome = self._round(keeping, clients, workers)
    thread.join()
    assert outcome.num_lost_workers == 1
    # The second part was run again.
    assert len(list(tmp_path.glob('1-*'))) == 2
    expected, expected_outputs, _ = self._round(
      keeping, self._clients(tmp_path)
    )
    _assert_same(output, expected)
    _assert_same(outputs, expected_outputs)


def test_two_threads_take_turns(process, workers, expected, tmp_path):
  context = in_process_context.set_in_process_context()
  outputs = {}

  def run(name):
    (tmp_path / name).mkdir()
    with tff.framework.get_context_stack().install(context):
      outputs[name] = _round(process, _clients(tmp_path / name), workers)[0]

  threads = [threading.Thread(target=run, args=(name,)) for name in 'ab']
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(timeout=LIMIT_SECONDS)
  assert set(outputs) == {'a', 'b'}
  for output in outputs.values():
    _assert_same(output, expected[0])
