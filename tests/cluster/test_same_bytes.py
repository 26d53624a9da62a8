"""Every engine, on hosts in a box, writes what one process writes."""

import pytest
from cluster import grouping
from cluster.engines import Engine
from cluster.hosts import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope='module', params=['spark', 'dask'])
def engine(request):
  with Cluster(3) as hosts:
    yield Engine(request.param, hosts)


@pytest.mark.parametrize('kind', ['small', 'split', 'optional', 'big'])
def test_same_bytes(engine, raw, expected, tmp_path, kind):
  wanted = expected(kind)
  job = engine.group(kind, raw(kind), tmp_path / 'out')
  assert job.wait(300) == 0, job.text()
  assert grouping.digests(tmp_path / 'out') == wanted
  assert grouping.names(tmp_path) == ['out']
  parts = 3 if kind == 'split' else 1
  assert len(wanted) == parts * (8 + 2)


def test_output_that_workers_do_not_see(engine, raw, tmp_path):
  for host in engine.hosts[1:]:
    host.hide(tmp_path)
  job = engine.group('small', raw('small'), tmp_path / 'out')
  assert job.wait(300) == 2, job.text()
  assert grouping.error_line(job).startswith(
    'fedfish: error: `--output` must be a directory that all workers see, but '
    "the worker on 'host"
  )
  assert grouping.names(tmp_path) == []
