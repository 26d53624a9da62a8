"""Clusters of tests, which need root on Linux; corpora to compare with."""

import functools
import os
import shutil

import pytest
from cluster import grouping, hosts


@pytest.fixture(scope='session', autouse=True)
def _namespaces():
  if reason := hosts.why_not():
    pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
  """Takes a skipped test for a failed one under `make test-cluster`."""
  outcome = yield
  report = outcome.get_result()
  if report.skipped and os.environ.get('CLUSTER_REQUIRED'):
    report.outcome, report.longrepr = 'failed', str(report.longrepr)


@pytest.fixture(scope='session')
def raw(tmp_path_factory):
  """Returns a function from a kind of corpus to a pattern of its raw files."""
  directory = tmp_path_factory.mktemp('raw')
  return functools.cache(
    lambda kind: grouping.raw_files(kind, directory / kind)
  )


@pytest.fixture(scope='session')
def expected(raw, tmp_path_factory):
  """Returns a function from a kind of corpus to what one process makes of it.

  That is SHA-256 by file.
  """

  @functools.cache
  def group(kind):
    output = tmp_path_factory.mktemp('expected') / 'out'
    grouping.group_here(kind, raw(kind), output)
    found = grouping.digests(output)
    if kind in grouping.FIRST_WRITTEN:
      assert grouping.digest_of_all(found) == grouping.FIRST_WRITTEN[kind]
    shutil.rmtree(output)
    return found

  return group
