"""A pair of runs and its report, which several files read."""

import pytest
from report_runs import write_pair

from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.report import write_report


@pytest.fixture(scope='session')
def pair(tmp_path_factory):
  """Directories of FedAvg and FedFish, E = 8. Tests must not change them."""
  return write_pair(tmp_path_factory.mktemp('pair'))


@pytest.fixture(scope='session')
def report_of_pair(pair, tmp_path_factory):
  """The pair's report, to be read only: it takes seconds."""
  root = tmp_path_factory.mktemp('report_of_pair')
  return write_report(load_runs(pair), root / 'report').parent
