"""Jobs whose hosts fail end with the same bytes, or with one line."""

import contextlib
import os
import signal

import pytest
from cluster import grouping
from cluster.engines import Engine
from cluster.hosts import Cluster, wait_until

pytestmark = pytest.mark.cluster
_ENGINES = ('pool', 'spark', 'dask')


@pytest.fixture(params=_ENGINES)
def engine(request):
  with Cluster(3) as hosts:
    yield Engine(request.param, hosts)


@pytest.fixture
def start(engine, raw, tmp_path):
  """Returns a job whose workers have begun to read the corpus."""
  output = tmp_path / 'out'
  job = engine.group('big', raw('big'), output)
  grouping.wait_for_file(output, 'tasks', 120)
  return job


def _kill(pids):
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)


def _check_written(job, expected, tmp_path, timeout=300):
  assert job.wait(timeout) == 0, job.text()
  assert grouping.digests(tmp_path / 'out') == expected('big')
  assert grouping.names(tmp_path) == ['out']


def test_killed_worker(engine, expected, start, tmp_path, raw):
  killed = engine.busy(engine.hosts[1])
  assert killed
  _kill(killed)
  if engine.name != 'pool':
    _check_written(start, expected, tmp_path)
    return
  assert start.wait(60) == 1, start.text()
  line = grouping.error_line(start)
  assert 'a worker process of the grouping into' in line
  assert line.endswith('run it again.')
  assert grouping.names(tmp_path) == []
  # The pool lives, and the job can be run again.
  _check_written(
    engine.group('big', raw('big'), tmp_path / 'out'), expected, tmp_path
  )


def test_crashed_host(engine, expected, start, tmp_path):
  engine.hosts[1].crash()
  if engine.name != 'pool':
    _check_written(start, expected, tmp_path)
    return
  assert start.wait(60) == 1, start.text()
  assert 'a worker process of the grouping' in grouping.error_line(start)
  assert grouping.names(tmp_path) == []


def test_cut_and_healed_link(engine, expected, start, tmp_path):
  name, host = engine.hosts[1].name, engine.hosts[0]
  engine.hosts[1].cut()
  ask = f'ping -c 1 -W 1 {name} > /dev/null && echo there || echo silent'
  wait_until(lambda: host.run(['sh', '-c', ask]) == 'silent\n', 20, 'silence')
  engine.hosts[1].heal()
  _check_written(start, expected, tmp_path)


def test_full_shared_disk(engine, raw, expected, small_disk, tmp_path): ...
