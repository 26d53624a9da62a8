"""Hosts that differ or are lost, and a head, as raylets on this machine."""

import contextlib
import os
import re
import subprocess
import sys

import psutil
import pytest


@pytest.fixture
def cluster(monkeypatch):
  """A head without room, and two hosts with room for two workers each.

  They are raylets on this machine. A program of its own joins them. Ray ends it
  some seconds after the head, not a minute.
  """
  for name in ('RAY_USAGE_STATS_ENABLED', 'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO'):
    monkeypatch.setenv(name, '0')
  monkeypatch.setenv('RAY_gcs_rpc_server_reconnect_timeout_s', '10')
  from ray.cluster_utils import Cluster

  small = dict(object_store_memory=80_000_000)
  cluster = Cluster(
    initialize_head=True,
    head_node_args=dict(num_cpus=0, include_dashboard=False, **small),
  )
  before = []
  try:
    for _ in range(2):
      cluster.add_node(num_cpus=2, **small)
    for node in [cluster.head_node, *cluster.worker_nodes]:
      before += psutil.Process(_pid(node, 'raylet')).children(recursive=True)
    yield cluster
  finally:
    cluster.shutdown()
    # Ray's agents wait for a while for a raylet that was killed.
    for process in before:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _pid(node, name):
  return node.all_processes[name][0].process.pid


def _kill(node, name):
  process = node.all_processes[name][0].process
  process.kill()
  process.wait()


_PROGRAM = """
import sys
import ray, ray_clients
from tff_fedfish.errors import UserError
from tff_fedfish.runtime import ray_pool, ray_workers
from tff_fedfish.runtime.round_options import RoundOptions, RoundOutcome

ray.cloudpickle.register_pickle_by_value(ray_clients)
ray_workers.RayWorker = ray_clients.LightWorker
if 'facts' in sys.argv:
  facts = ray_pool.host_facts
  ray_pool.host_facts = lambda paths: facts(paths) | {{'tensorflow': '1.0'}}
options = RoundOptions(num_partial_sums=4, on_notice=print)
found = dict(address='{address}', paths=['{path}'])
with ray_workers.RayWorkers(4, **found) as workers:
  try:
    workers.start()
  except UserError as error:
    sys.exit(str(error))
  print('up', ray.get_runtime_context().get_node_id(), flush=True)
  while sys.stdin.readline() == 'round\\n':
    outcome = RoundOutcome()
    sums = workers.partial_sums('spec', [], [*'abcdefgh'], options, outcome)
    print([int(s[0]) for s in sums], outcome.num_lost_workers)
    sys.stdout.flush()
"""


@contextlib.contextmanager
def _program(cluster, path, *arguments):
  """Starts a program with four workers; 'round' lets it run a round."""
  text = _PROGRAM.format(address=cluster.address, path=path)
  process = subprocess.Popen(
    [sys.executable, '-W', 'ignore', '-c', text, *arguments],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
  )
  try:
    yield process
  finally:
    process.kill()
    process.communicate()


def _read_until(process, pattern):
  """Returns the lines of standard output up to one that matches."""
  lines = []
  while not lines or not re.match(pattern, lines[-1]):
    lines.append(process.stdout.readline())
    assert lines[-1], process.stderr.read()
  return lines


def _round(process):
  """Runs a round; returns its last line, and those of ours before it."""
  process.stdin.write('round\n')
  process.stdin.flush()
  *lines, last = _read_until(process, r'\[')
  return last, [line for line in lines if line.startswith('a worker')]


@pytest.mark.slow
def test_host_and_head_that_are_lost(cluster, tmp_path):
  with _program(cluster, tmp_path, 'facts') as program:
    _, errors = program.communicate(timeout=120)
  assert re.match(
    r'Host \S+ \([\d.]+\) of the Ray cluster \(`--config.engine.ray_address`\) '
    r'differs from this one: tensorflow is [\d.]+, not 1.0. Set up the same '
    'environment there, and the same files under the same paths, or take it '
    r'out of the cluster \(`ray stop` there\).\n',
    errors,
  )
  with _program(cluster, tmp_path) as program:
    own = _read_until(program, 'up')[-1].split()[1]
    assert _round(program) == ('[2, 2, 2, 2] 0\n', [])
    lost, *_ = [n for n in cluster.worker_nodes if n.node_id != own]
    _kill(lost, 'raylet')
    last, lines = _round(program)
    assert last == '[2, 2, 2, 2] 2\n'
    assert len(lines) == 2
    assert re.fullmatch(
      r'a worker on host \S+ \([\d.]+\) died. Its clients run again; 3 of 4 '
      r'workers \(`--config.engine.num_workers`\) are left.\n',
      lines[0],
    )
    # Without room for others, rounds go on with those that are left.
    assert _round(program) == ('[2, 2, 2, 2] 0\n', [])
    _kill(cluster.head_node, 'gcs_server')
    assert program.wait(timeout=120) == 1
    errors = program.stderr.read()
  assert re.search(
    r"fedfish: Ray's head at \S+ does not answer \(ConnectionRefusedError: .*"
    r'\). Unless it comes back, Ray ends this process within about a minute. '
    'Start Ray again on all machines; the same command then continues from the '
    'last checkpoint.\n',
    errors,
  )
