"""One input gives the same bytes on every runner."""

import contextlib
import os
import pathlib
import random

import pytest
from apache_beam.runners.portability import local_job_service
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines.job import run_group_job
from tff_fedfish.errors import UserError

_TESTS = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope='module')
def raw(tmp_path_factory):
  """Paths of five files with 200 records, of which some have an author."""
  directory = tmp_path_factory.mktemp('raw')
  lines = [
    record | ({'author': f'{i % 4}'} if i % 3 == 0 else {})
    for i, record in enumerate(raw_records(200))
  ]
  return [
    write_lines(directory / f'{i}.json', [*lines[i::5], b'{']) for i in range(5)
  ]


# Arguments of a shard's worker.
_OPTIONS = {
  'num_shards': 4,
  'drop_duplicates': True,
  'min_examples_per_group': 2,
}


@pytest.fixture(scope='module')
def expected(raw, tmp_path_factory):
  """Returns the result of the job in this process."""
  output = tmp_path_factory.mktemp('expected') / 'out'
  run_group_job(make_job(raw, **_OPTIONS), output)
  found = contents(output)
  assert len(found) == 4 + 2
  return found


@pytest.fixture
def worker_environment(monkeypatch):
  """Lets worker processes find the project and the tests' modules."""
  path = os.pathsep.join([str(_TESTS.parent), str(_TESTS)])
  monkeypatch.setenv('PYTHONPATH', path)


@contextlib.contextmanager
def _job_server():
  service = local_job_service.LocalJobServicer()
  port = service.start_grpc_server(0)
  try:
    yield port
  finally:
    service.stop()


_PROCESSES = (
  '--direct_num_workers=2',
  '--direct_running_mode=multi_processing',
)


@pytest.mark.slow
def test_worker_processes(raw, expected, tmp_path, worker_environment):
  paths = random.Random(3).sample(raw, k=5)
  run_group_job(make_job(paths, **_OPTIONS), tmp_path / 'out', _PROCESSES)
  assert contents(tmp_path / 'out') == expected


def test_portable_runner(raw, expected, tmp_path, worker_environment):
  with _job_server() as port:
    flags = (
      '--runner=PortableRunner',
      f'--job_endpoint=localhost:{port}',
      '--environment_type=LOOPBACK',
    )
    run_group_job(make_job(raw, **_OPTIONS), tmp_path / 'out', flags)
  assert contents(tmp_path / 'out') == expected


def test_no_job_server(raw, tmp_path):
  flags = (
    '--runner=PortableRunner',
    *('--job_endpoint=localhost:1', '--job_server_timeout=1'),
  )
  with pytest.raises(UserError, match='^`--job_endpoint` must be where a job '):
    run_group_job(make_job(raw), tmp_path / 'out', flags)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_error_of_a_worker_process(raw, tmp_path, worker_environment):
  job = make_job(raw, strict=True)
  with pytest.raises(
    UserError,
    match=r"^`--strict` accepts .* record 41 of '\d.json' has one: "
    r'malformed_json .* count such records\.$',
  ):
    run_group_job(job, tmp_path / 'out', _PROCESSES)
  assert list(tmp_path.iterdir()) == []
