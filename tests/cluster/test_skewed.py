"""2 GB of text, of which one host has 40 %, in 2 GB of memory a worker."""

import contextlib
import time

import psutil
import pytest
from cluster import grouping
from cluster.engines import Engine
from cluster.hosts import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.skewed]
_LIMIT_SECONDS = 1800
_LIMIT_BYTES = 2 << 30


def _bytes_of_worker(host):
  """Returns the memory, without files, of a host's worker.

  That is of all its processes; Spark's are two.
  """
  found = []
  for process in host.processes():
    with contextlib.suppress(psutil.NoSuchProcess):
      memory = process.memory_info()
      found.append(memory.rss - memory.shared)
  return sum(found)


@pytest.mark.parametrize('name', ['spark', 'dask'])
def test_skewed(raw, expected, tmp_path, name):
  wanted = expected('skewed')
  with Cluster(3) as hosts:
    engine = Engine(name, hosts)
    job = engine.group('skewed', raw('skewed'), tmp_path / 'out')
    largest = [0] * len(hosts)
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not job.has_ended():
      assert time.monotonic() < deadline, job.text()
      now = [_bytes_of_worker(host) for host in hosts]
      largest = list(map(max, largest, now))
      time.sleep(0.5)
    assert job.wait(0) == 0, job.text()
  megabytes = [num >> 20 for num in largest]
  print(f'{name}: at most {megabytes} MiB on the driver and each worker')
  assert grouping.digests(tmp_path / 'out') == wanted
  assert max(largest[1:]) < _LIMIT_BYTES
