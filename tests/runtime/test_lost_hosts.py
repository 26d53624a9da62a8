"""Hosts that are lost with their workers, as raylets on this machine."""

import contextlib
import os
import re
import signal

import psutil
import pytest
import ray_clients

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.runtime import ray_hosts, ray_pool, ray_watch
from tff_fedfish.runtime.ray_workers import RayWorkers
from tff_fedfish.runtime.round_options import RoundOptions, RoundOutcome


@pytest.fixture
def cluster(monkeypatch):
  """A head without room, and two hosts with room for two workers each."""
  for name in ('RAY_USAGE_STATS_ENABLED', 'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO'):
    monkeypatch.setenv(name, '0')
  import ray
  from ray.cluster_utils import Cluster

  small = dict(object_store_memory=80_000_000)
  cluster = Cluster(
    initialize_head=True,
    head_node_args=dict(num_cpus=0, include_dashboard=False, **small),
  )
  ray.cloudpickle.register_pickle_by_value(ray_clients)
  monkeypatch.setattr(ray_pool, 'RayWorker', ray_clients.LightWorker)
  try:
    for _ in range(2):
      cluster.add_node(num_cpus=2, **small)
    below = _below_raylets(cluster)
    yield cluster
  finally:
    ray.cloudpickle.unregister_pickle_by_value(ray_clients)
    below += _below_raylets(cluster)
    cluster.shutdown()
    # Ray's agents wait for a while for a raylet that was killed.
    for process in below:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _below_raylets(cluster):
  """Returns the processes that raylets have started."""
  found = []
  for node in [cluster.head_node, *cluster.worker_nodes]:
    for info in node.all_processes.get('raylet', ()):
      with contextlib.suppress(psutil.NoSuchProcess):
        raylet = psutil.Process(info.process.pid)
        found += raylet.children(recursive=True)
  return found


def _kill_raylet(cluster, is_own):
  """Ends a raylet with room for workers, this process's or another's."""
  own = ray_hosts.own_node_id()
  nodes = [cluster.head_node, *cluster.worker_nodes]
  (killed, *_) = [
    node
    for node in nodes
    if (node.node_id == own) == is_own
    and (is_own or node is not cluster.head_node)
  ]
  raylet = killed.all_processes['raylet'][0].process
  os.kill(raylet.pid, signal.SIGKILL)
  raylet.wait()
  return killed.node_id


def _round(workers, num_parts=4):
  """Returns the parts' sums, the outcome, and what was said of losses."""
  outcome, lines = RoundOutcome(), []
  options = RoundOptions(num_partial_sums=num_parts, on_notice=lines.append)
  sums = workers.partial_sums('spec', [], [*'abcdefgh'], options, outcome)
  with contextlib.closing(sums):
    return [partial.accumulator[0].numpy() for partial in sums], outcome, lines


def test_lost_host_is_told_and_counted_once(cluster):
  with RayWorkers(4, address=cluster.address) as workers:
    assert _round(workers)[2] == []
    lost = _kill_raylet(cluster, is_own=False)
    sums, outcome, lines = _round(workers)
    assert sums == [2, 2, 2, 2]
    assert outcome.num_lost_workers == 2
    (line,) = lines
    assert re.fullmatch(
      r'host \S+ \([\d.]+\) was lost with 2 workers. Its clients run again; '
      r'2 of 4 workers \(`--config.engine.num_workers`\) are left.',
      line,
    )
    sums, outcome, lines = _round(workers)
    assert (sums, outcome.num_lost_workers, lines) == ([2, 2, 2, 2], 0, [])
    # Those that replace them wait for other hosts, until it is back.
    pool = workers._pool
    assert pool._gone == {lost} and len(pool.answers) == 2
    before = pool.answers
    pool._watches[lost].has_answered = True
    pool.admit()
    assert not pool._gone and not set(before) & set(pool.answers)
    assert len(pool.answers) == 2


def test_head_that_is_lost(cluster, monkeypatch):
  monkeypatch.setattr(ray_watch, 'LIMIT_SECONDS', 0.5)
  with RayWorkers(1, address=cluster.address) as workers:
    workers.start()
    head = cluster.head_node.all_processes['gcs_server'][0].process
    os.kill(head.pid, signal.SIGKILL)
    head.wait()
    with pytest.raises(
      FailedError, match="Ray's head at .* no longer answers .*same command"
    ):
      while True:
        _round(workers)


# `test_head_that_is_lost` ends a run in the same way.
@pytest.mark.slow
def test_own_raylet_that_is_lost(cluster):
  with RayWorkers(1, address=cluster.address) as workers:
    workers.start()
    _kill_raylet(cluster, is_own=True)
    with pytest.raises(
      FailedError, match="Ray's process on this machine, .* is gone"
    ):
      _round(workers)


def test_hosts_are_compared_at_the_start(cluster, tmp_path, monkeypatch):
  (tmp_path / 'shard').write_bytes(b'1')
  paths = [str(tmp_path)]
  with RayWorkers(1, address=cluster.address, paths=paths) as workers:
    assert _round(workers)[0] == [2, 2, 2, 2]
    hosts = ray_hosts.living()
    assert len(hosts) == 3
    answers = ray_hosts.ask(hosts[:1], [], timeout_seconds=0.0)
    assert answers == {hosts[0]: 'did not answer within 0 s'}
  facts = ray_hosts.facts

  def other_facts(paths):
    found = facts(paths)
    return found._replace(
      versions=found.versions | {'ray': '9'},
      contents={path: ray_hosts.Contents('1', '7 files') for path in paths},
    )

  monkeypatch.setattr(ray_hosts, 'facts', other_facts)
  # The task is the function itself, of the module.
  monkeypatch.setattr(ray_hosts, 'ask', _ask_with(facts))
  with (
    RayWorkers(1, address=cluster.address, paths=paths) as workers,
    pytest.raises(
      UserError,
      match=r'must have what this one has: host \S+ \([\d.]+\): has ray '
      "2.52.1, not 9, '.*' holds 1 files, 1 bytes, not the 7 files here"
      # And the other one, if this process is the head's.
      '(; host .*)?. Set up the Python environment of this machine there, or '
      'take the host out',
    ),
  ):
    workers.start()


def _ask_with(facts):
  ask = ray_hosts.ask

  def ask_with(*arguments, **options):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(ray_hosts, 'facts', facts)
      return ask(*arguments, **options)

  return ask_with
