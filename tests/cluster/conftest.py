"""Clusters of tests, which need root on Linux."""

import os

import pytest
from cluster import hosts


@pytest.fixture(autouse=True)
def _namespaces():
  """Skips where there are no namespaces; fails under `make test-cluster`."""
  if reason := hosts.why_not():
    if os.environ.get('CLUSTER_REQUIRED'):
      pytest.fail(reason)
    pytest.skip(reason)
