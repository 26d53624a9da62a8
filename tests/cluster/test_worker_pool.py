"""Grouping in a worker pool on another host, which may fail."""

import sys

import pytest
from cluster import grouping
from cluster.hosts import Cluster

_FLAGS = (
  '--runner=PortableRunner',
  '--job_endpoint=embed',
  '--environment_type=EXTERNAL',
  '--environment_config=host1:50000',
)


def _start_pool(host):
  command = [sys.executable, '-m', 'pipelines.clusters.worker_pool']
  pool = host.start(
    command, 'worker_pool', cwd=grouping.ROOT, env=grouping.ENVIRONMENT
  )
  pool.wait_for('Worker pool at port 50000', 30)
  return pool


def _start_job(host, kind, pattern, output):
  return host.start(
    grouping.command(kind, pattern, output, *_FLAGS),
    'job',
    cwd=grouping.ROOT,
    env=grouping.ENVIRONMENT,
  )


@pytest.fixture(scope='module')
def hosts():
  with Cluster(2) as found:
    yield found


@pytest.fixture
def pool(hosts):
  process = _start_pool(hosts[1])
  yield process
  process.kill()


@pytest.mark.parametrize(
  'kind',
  [
    'small',
    pytest.param('split', marks=pytest.mark.cluster),
    pytest.param('optional', marks=pytest.mark.cluster),
  ],
)
def test_same_bytes(hosts, pool, raw, expected, tmp_path, kind):
  job = _start_job(hosts[0], kind, raw(kind), tmp_path / 'out')
  assert job.wait(300) == 0, job.text()
  assert grouping.digests(tmp_path / 'out') == expected(kind)
  # Not in the job's own process.
  assert 'Started worker' in pool.text()
  assert grouping.names(tmp_path) == ['out']


def test_killed_pool(hosts, pool, raw, expected, tmp_path):
  output = tmp_path / 'out'
  job = _start_job(hosts[0], 'small', raw('small'), output)
  pool.wait_for('Started worker', 60)
  grouping.wait_for_staging(output)
  pool.kill()
  assert job.wait(60) == 1, job.text()
  assert not hosts[1].processes('worker_pool')
  last = job.text().splitlines()[-1]
  assert last.startswith('fedfish: failed: a worker process of the grouping'), (
    job.text()
  )
  assert last.endswith('and run it again.')
  assert grouping.names(tmp_path) == []
