"""Clusters that workers find: none, small, busy, broken machines."""

import contextlib
import os
import re
import signal
import sys
import threading

import pytest
import ray_clients
from waiting import wait_until

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.runtime import ray_hosts, ray_pool, ray_workers
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  RoundOptions,
  RoundOutcome,
)


@pytest.fixture(scope='module')
def programs_ray():
  """Ray with 2 CPUs that the program itself has started, as a notebook may."""
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
  import ray

  handler = signal.getsignal(signal.SIGTERM)
  ray.init(
    address='local', num_cpus=2, include_dashboard=False, log_to_driver=False
  )
  signal.signal(signal.SIGTERM, handler)
  ray.cloudpickle.register_pickle_by_value(ray_clients)
  yield ray
  # No test has ended it, though each has closed its workers.
  assert ray.is_initialized()
  ray.cloudpickle.unregister_pickle_by_value(ray_clients)
  ray.shutdown()


@pytest.fixture
def light(monkeypatch):
  """Makes workers light."""
  monkeypatch.setattr(ray_workers, 'RayWorker', ray_clients.LightWorker)


def _run(workers, clients, **options):
  """Runs a round; returns the parts' sums and the outcome."""
  outcome = RoundOutcome()
  sums = workers.partial_sums(
    'spec', [], clients, RoundOptions(**options), outcome
  )
  with contextlib.closing(sums):
    return [accumulator[0].numpy() for accumulator in sums], outcome


def _fails_to_start(words, kind=FailedError, **settings):
  with (
    RayWorkers(**{'num_workers': 1} | settings) as workers,
    pytest.raises(kind, match=words),
  ):
    workers.start()


@pytest.mark.parametrize(
  'address, reason',
  [
    ('127.0.0.1:1', r'ConnectionRefusedError: .*refused'),
    ('127.0.0.1:99999', 'ValueError: not HOST:PORT'),
  ],
)
def test_address_without_ray(address, reason):
  _fails_to_start(
    '`--config.engine.ray_address` must be local, auto or the HOST:PORT of a '
    rf"running Ray cluster, found '{address}' \({reason}\). Start one with "
    "`ray start --head`, or use 'local'",
    UserError,
    address=address,
  )


def test_ray_that_is_not_installed(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  _fails_to_start(
    "`--config.engine.kind='ray'` needs the package ray, which is not "
    "installed here. Install it, or use 'in_process'",
    UserError,
  )


def test_ray_that_fails_to_start(monkeypatch):
  import ray

  def init(**_):
    raise Exception('No room\nhere.')

  monkeypatch.setattr(ray, 'init', init)
  reason = r'Exception: No room here'
  words = rf"found 'auto' \({reason}\). Start one"
  _fails_to_start(words, UserError, address='auto')
  _fails_to_start(
    f'Ray cannot start on this machine: {reason}. Look for room in /tmp and '
    'memory, set TMPDIR to a shorter path, or use '
    "`--config.engine.kind='in_process'`"
  )


# Before the tests with `programs_ray`, which stays for this module.
@pytest.mark.slow
def test_ray_that_the_program_has_shut_down(light):
  import ray

  ray.cloudpickle.register_pickle_by_value(ray_clients)
  with RayWorkers(1) as workers:
    assert _run(workers, ['a'])[0] == [1]
    ray.shutdown()
    # Another one is started.
    assert _run(workers, ['a', 'b'])[0] == [2]
  assert not ray.is_initialized()
  ray.cloudpickle.unregister_pickle_by_value(ray_clients)


@pytest.mark.slow
def test_fewer_gpus_than_workers_are_said(programs_ray, monkeypatch, capsys):
  # Logical ones: there is none here.
  resources = {'CPU': 4.0, 'GPU': 2.0}
  monkeypatch.setattr(programs_ray, 'cluster_resources', lambda: resources)
  settings = ray_pool.PoolSettings
  assert ray_pool._require_room(settings(3), 0.0) == 0
  assert 'no worker uses a GPU: there are 2 for 3 workers.' in (
    capsys.readouterr().err
  )
  shared = settings(3, gpus_per_worker=0.5)
  assert ray_pool._require_room(shared, 0.0) == 0.5
  assert ray_pool._require_room(settings(2), 0.0) == 1
  assert capsys.readouterr().err == ''


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind, settings',
  [('CPU', dict(num_workers=3)), ('GPU', dict(gpus_per_worker=3.0))],
)
def test_ray_that_is_too_small(programs_ray, kind, settings):
  found = {'CPU': 2, 'GPU': 0}[kind]
  _fails_to_start(
    rf'{settings.get("num_workers", 1)} workers '
    rf'\(`--config.engine.num_workers`\) need 3 {kind}, but Ray at '
    rf"'local' has {found}. Lower `--config.engine.{next(iter(settings))}`, or "
    'add machines',
    UserError,
    **settings,
  )


@pytest.mark.slow
def test_room_is_waited_for(programs_ray, light, monkeypatch, capsys):
  busy = programs_ray.remote(ray_clients.BusyActor).options(num_cpus=2).remote()
  assert programs_ray.get(busy.is_up.remote())
  wait_until(lambda: not programs_ray.available_resources().get('CPU', 0))
  count = r'0 of 2 workers \(`--config.engine.num_workers`\) are up after '
  room = 'Each takes 1 CPU and 0 GPU; 0 CPU and 0 GPU are free.'
  with RayWorkers(2) as workers:
    with pytest.raises(RoundInterrupted):
      _run(workers, ['a'], should_stop=lambda: True)
    with monkeypatch.context() as patch:
      patch.setattr(ray_pool, '_LIMIT_SECONDS', 0.3)
      with pytest.raises(
        FailedError,
        match=f'Only {count}0.3 s. {room} Lower num_workers, or wait until',
      ):
        _run(workers, ['a'])
    monkeypatch.setattr(ray_pool, '_NOTICE_SECONDS', 0.1)

    def should_stop():
      programs_ray.kill(busy)
      return False

    sums, outcome = _run(
      workers, ['a', 'b', 'c'], num_partial_sums=3, should_stop=should_stop
    )
  assert sums == [1, 1, 1]
  assert outcome.num_lost_workers == 0
  # Once, though it was waited for on.
  (line,) = capsys.readouterr().err.splitlines()
  assert re.fullmatch(
    rf'fedfish: {count}\d+ s; waiting for the others. {room}', line
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'worker_class, words',
  [
    (
      ray_clients.BrokenWorker,
      r'^A worker process on [\w.:]+ could not be set up: ModuleNotFoundError: '
      "No module named 'absent_from_workers'. Every machine needs the Python "
      'environment that this one has.$',
    ),
    (
      ray_clients.DyingWorker,
      '3 worker processes died, one after the other, while they started. They '
      'may need more memory than there is: lower `--config.engine.num_workers`.'
      ' Ray says why in /tmp/ray/session_latest/logs of their hosts; hosts must'
      ' not share /tmp/ray',
    ),
  ],
)
def test_workers_that_do_not_come_up(
  programs_ray, monkeypatch, worker_class, words
):
  monkeypatch.setattr(ray_workers, 'RayWorker', worker_class)
  _fails_to_start(words)


@pytest.mark.slow
def test_what_cannot_be_run_by_workers(programs_ray, light, monkeypatch):
  def put(_):
    raise programs_ray.exceptions.ObjectStoreFullError('8 GiB do not fit.')

  with RayWorkers(1) as workers:
    with pytest.raises(
      TypeError,
      match='Clients that workers run must be picklable, as a ClientLoader is, '
      'found lock, str',
    ):
      _run(workers, ['a', threading.Lock()])
    with monkeypatch.context() as patch:
      patch.setattr(programs_ray, 'put', put)
      with pytest.raises(
        FailedError,
        match="Ray's object store cannot take what the workers need: "
        'ObjectStoreFullError: 8 GiB do not fit. .*Free memory and disk here',
      ):
        _run(workers, ['a'])
    with pytest.raises(
      FailedError,
      match="A worker process failed: KeyError: 'a worker that is wrong'",
    ):
      _run(workers, ['wrong'])
    with pytest.raises(
      FailedError,
      match='3 worker processes died, one after the other, at clients 1 to 2 '
      'of the round. They may need more memory than there is: lower '
      '`--config.engine.num_workers`',
    ):
      _run(workers, ['a', 'fatal', 'b'], num_partial_sums=2)
    # The workers have outlived it all.
    assert _run(workers, ['a', 'b'])[0] == [2]


def test_files_are_compared(tmp_path, monkeypatch):
  path = str(tmp_path)
  (tmp_path / 'shard').write_bytes(b'abc')
  facts = ray_hosts.host_facts([path])
  assert facts[path].startswith('1 files, 3 bytes (')
  (tmp_path / '.hidden').touch()
  ray_hosts.require_same(facts)
  (tmp_path / 'shard').write_bytes(b'abd')
  assert ray_hosts.host_facts([path])[path] != facts[path]
  absent = str(tmp_path / 'absent')
  reason = 'unreadable (No such file or directory)'
  facts = ray_hosts.host_facts([absent])
  assert facts[absent] == reason
  # Here as there.
  monkeypatch.setattr(ray_hosts, 'host_name', lambda: 'here')
  with pytest.raises(UserError, match=re.escape(f'{absent} is {reason}, not ')):
    ray_hosts.require_same(facts)


def test_workers_that_cannot_be():
  with pytest.raises(ValueError, match='`num_workers` must be >= 1, found 0'):
    RayWorkers(0)
  with pytest.raises(TypeError, match='thread_per_worker'):
    RayWorkers(1, thread_per_worker=1)


def test_lost_outputs_are_taken_back_and_counted(monkeypatch):
  ray, received = pytest.importorskip('ray'), []

  def get(reference):
    if reference == 'gone':
      raise ray.exceptions.ObjectLostError('', '', '')
    return reference

  monkeypatch.setattr(ray, 'get', get)
  options = RoundOptions(on_client_output=lambda *pair: received.append(pair))
  part = ray_workers._Part([(3, None), (4, None), (5, None)])
  round_ = ray_workers._Round(None, None, [part], options, RoundOutcome())
  # The second of three is gone each time.
  outputs = [(3, ['a']), (4, 'gone'), (5, ['c'])]
  for num_lost in range(1, 4):
    round_._done[part] = ray_workers.PartResult([], RoundOutcome(), outputs)
    with (
      pytest.raises(FailedError, match='3 worker processes died')
      if (num_lost == 3)
      else contextlib.nullcontext()
    ):
      assert not round_._hand_on(part)
  assert received == 3 * [(3, ['a']), (3, None)]
