"""Failures of a runner, each as the one line that a user needs."""

import errno
import os
import urllib.error

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from grouping_jobs import make_job, raw_records, write_lines

from pipelines.group_job import run_group_job
from pipelines.job_errors import raise_understood
from tff_fedfish.errors import FailedError, UserError

_NO_JAR = (
  r"^`--runner={0}Runner` needs the jar of Beam's job server, which was not "
  r'found\. Name it with `--{1}_job_server_jar`, or start the server '
  r'elsewhere, with `--runner=PortableRunner --job_endpoint=HOST:PORT` here\.$'
)


def test_jar_that_is_not_there(tmp_path):
  raw = write_lines(tmp_path / 'raw.json', raw_records(3))
  flags = (
    '--runner=FlinkRunner',
    '--flink_master=localhost:8081',
    f'--flink_job_server_jar={tmp_path}/none.jar',
  )
  with pytest.raises(UserError, match=_NO_JAR.format('Flink', 'flink')):
    run_group_job(make_job([raw]), tmp_path / 'out', flags)
  assert [path.name for path in tmp_path.iterdir()] == ['raw.json']


def test_jar_that_cannot_be_fetched():
  options = PipelineOptions(['--runner=SparkRunner'])
  # As Beam raises it where no network is.
  error = RuntimeError('Unable to fetch remote job server jar at https://...')
  error.__context__ = urllib.error.URLError('Name or service not known')
  with pytest.raises(UserError, match=_NO_JAR.format('Spark', 'spark')):
    raise_understood(error, 'out', options)


def test_job_server_that_does_not_answer(tmp_path):
  raw = write_lines(tmp_path / 'raw.json', raw_records(3))
  flags = (
    '--runner=PortableRunner',
    '--job_endpoint=localhost:1',
    '--job_server_timeout=1',
  )
  with pytest.raises(
    UserError,
    match=r'^`--job_endpoint` must be where a job server of Beam answers, but '
    r"there is none at 'localhost:1'\. Start it, or name the host and the port "
    r'where it runs\.$',
  ):
    run_group_job(make_job([raw]), tmp_path / 'out', flags)


def test_unknown_errors_are_left_alone():
  options = PipelineOptions(['--runner=DirectRunner'])
  assert raise_understood(KeyError('x'), 'out', options) is None


def test_line_that_is_one_already_is_left_alone():
  error = FailedError('The disk of DIR is full.')
  error.__cause__ = OSError(errno.ENOSPC, 'No space left on device')
  options = PipelineOptions(['--runner=DirectRunner'])
  assert raise_understood(error, 'out', options) is None


_MACHINES = 'the machine or, on a cluster, the machines and their network'


@pytest.mark.parametrize('as_text', [False, True])
@pytest.mark.parametrize(
  ('code', 'kind', 'remedy'),
  [
    (errno.ENOSPC, FailedError, 'the disk and its free space'),
    (errno.ECONNREFUSED, FailedError, _MACHINES),
    (errno.ESTALE, FailedError, _MACHINES),
    (errno.EMFILE, FailedError, _MACHINES),
    (errno.EINVAL, FailedError, _MACHINES),
    (errno.EIO, FailedError, 'the disk and its free space'),
    (errno.ENOENT, UserError, 'the input files'),
    (errno.EACCES, UserError, 'the input files'),
  ],
)
def test_who_is_at_fault(as_text, code, kind, remedy):
  error = OSError(code, os.strerror(code))
  shown = f'[Errno {int(code)}] {os.strerror(code)}'
  if as_text:
    # As it comes from another process.
    error = RuntimeError(
      f'Traceback:\n{type(error).__name__}: {shown} [while running x]'
    )
  options = PipelineOptions(['--runner=DirectRunner'])
  with pytest.raises((UserError, FailedError)) as raised:
    raise_understood(error, 'out', options)
  assert (type(raised.value), str(raised.value)) == (
    kind,
    f"Grouping into 'out' stopped ({shown}); nothing was kept. Check {remedy}, "
    'then run it again.',
  )


class _CommClosedError(OSError):
  """As Dask has one."""


@pytest.mark.parametrize(
  'error',
  [
    TimeoutError('timed out'),
    ConnectionResetError('Connection lost'),
    _CommClosedError('in <TCP (closed)>: Stream is closed'),
  ],
)
def test_connection_errors_without_a_number(error):
  options = PipelineOptions(['--runner=DirectRunner'])
  with pytest.raises(FailedError) as raised:
    raise_understood(error, 'out', options)
  assert str(raised.value) == (
    f"Grouping into 'out' stopped ({error}); nothing was kept. Check "
    f'{_MACHINES}, then run it again.'
  )


@pytest.mark.parametrize('words', ['KilledWorker', 'ExecutorLostFailure'])
def test_worker_that_an_engine_has_lost(words):
  options = PipelineOptions(['--runner=DirectRunner'])
  with pytest.raises(
    ChildProcessError,
    match=r"^a worker process of the grouping into 'out' ended before its work "
    r'was done, perhaps for lack of memory\. Nothing was kept\. Use fewer '
    r'workers, and run it again\.$',
  ):
    raise_understood(RuntimeError(f'4 times: {words}'), 'out', options)
