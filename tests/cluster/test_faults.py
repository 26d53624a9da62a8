"""Jobs whose hosts fail end with the same bytes, or with one line."""

import contextlib
import os
import re
import shutil
import signal
import subprocess

import pytest
from cluster import grouping
from cluster.engines import ENVIRONMENT, Engine
from cluster.hosts import Cluster, wait_until

pytestmark = pytest.mark.cluster
_ENGINES = ('spark', 'dask')
_SPARK = '--runner=pipelines.clusters.spark_runner.SparkRunner'


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


def test_killed_worker(engine, expected, start, tmp_path):
  killed = engine.busy(engine.hosts[1])
  assert killed
  _kill(killed)
  _check_written(start, expected, tmp_path)


def test_crashed_host(engine, expected, start, tmp_path):
  engine.hosts[1].crash()
  _check_written(start, expected, tmp_path)


def test_killed_driver(engine, raw, expected, start, tmp_path):
  start.kill()
  (left,) = grouping.names(tmp_path / 'out')
  assert left.startswith('.fedfish-')
  # Workers may still be at the old job.
  job = engine.group('big', raw('big'), tmp_path / 'out')
  assert job.wait(180) == 0, job.text()
  shutil.rmtree(tmp_path / 'out' / left)
  _check_written(job, expected, tmp_path)


@pytest.mark.parametrize(
  ('name', 'process'), [('spark', 'master.Master'), ('dask', 'dask_scheduler')]
)
def test_killed_master(raw, expected, tmp_path, name, process):
  with Cluster(3) as hosts:
    job = Engine(name, hosts).group('big', raw('big'), tmp_path / 'out')
    grouping.wait_for_file(tmp_path / 'out', 'tasks', 120)
    _kill([master.pid for master in hosts[0].processes(process)])
    if name == 'spark':
      _check_written(job, expected, tmp_path)
      return
    assert job.wait(120) == 1, job.text()
    assert re.fullmatch(
      'fedfish: failed: the Dask scheduler at host0:8786 was lost; finished '
      r'work is kept in .*, [\d,]+ bytes: the same command with `--resume` '
      r'goes on, or remove it\. Start it and its workers, and run the job '
      r'again\.',
      grouping.error_line(job),
    )
    [left] = grouping.names(tmp_path / 'out')
    assert left.startswith('.fedfish-')


_SESSION = (
  '`--spark_master` {!r} and `--spark_conf` {} must lead to a Spark session, '
  'but Spark makes none and says why above. Correct them, or set JAVA_HOME to '
  'a Java 17.'
)


@pytest.mark.parametrize(
  'name, flag, line',
  [
    (
      'spark',
      '--spark_master=spark://host1:7077',
      _SESSION.format('spark://host1:7077', []),
    ),
    (
      'spark',
      '--spark_conf=spark.executor.memory',
      '`--spark_conf` must be KEY=VALUE, such as spark.executor.memory=4g, '
      "found 'spark.executor.memory'.",
    ),
    (
      'spark',
      '--spark_conf=spark.executor.memory=much',
      _SESSION.format('spark://host0:7077', ['spark.executor.memory=much']),
    ),
    (
      'dask',
      '--dask_client_address=host1:8786',
      '`--dask_client_address` must be where a Dask scheduler answers, found '
      "'host1:8786' (Timed out trying to connect to tcp://host1:8786 after 30 "
      's). Start one there, or name another.',
    ),
  ],
)
def test_flags_that_fit_no_cluster(raw, tmp_path, name, flag, line):
  with Cluster(2) as hosts:
    engine = Engine(name, hosts)
    job = engine.group('small', raw('small'), tmp_path / 'out', flag)
    assert job.wait(180) == 2, job.text()
    assert grouping.error_line(job) == f'fedfish: error: {line}'
    assert grouping.names(tmp_path) == []


def test_spark_without_java(raw, tmp_path):
  programs = tmp_path / 'bin'
  programs.mkdir()
  # What Spark's own scripts need.
  for name in 'bash dirname ps python3 uname'.split():
    (programs / name).symlink_to(shutil.which(name))
  environment = {'PATH': str(programs), 'JAVA_HOME': '/no'}
  assert _refuse(
    raw, tmp_path / 'out', _SPARK, **environment
  ) == _SESSION.format('local[*]', [])


def _start(raw, output, *flags, **environment):
  """Starts a job on this host."""
  environment = os.environ | ENVIRONMENT | environment
  return subprocess.Popen(
    grouping.command('small', raw('small'), output, *flags),
    cwd=grouping.ROOT,
    env={name: value for name, value in environment.items() if value},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _refuse(raw, output, *flags, **environment):
  """Returns the line with which a job on this host is refused."""
  job = _start(raw, output, *flags, **environment)
  _, errors = job.communicate(timeout=120)
  assert job.returncode == 2, errors
  assert not output.exists()
  (line,) = re.findall('^fedfish: error: (.*)$', errors, re.MULTILINE)
  return line


def test_cut_and_healed_link(engine, expected, start, tmp_path):
  driver, worker, _ = engine.hosts
  worker.cut()
  wait_until(lambda: not driver.reaches(worker.name), 20, 'silence')
  worker.heal()
  _check_written(start, expected, tmp_path)


@pytest.mark.parametrize('name', _ENGINES)
def test_full_shared_disk(small_disk, raw, name):
  with Cluster(3) as hosts:
    job = Engine(name, hosts).group('small', raw('small'), small_disk / 'out')
    assert job.wait(120) == 1, job.text()
    assert re.fullmatch(
      r"fedfish: failed: Grouping into '.*out' stopped \(\[Errno 28\] No space "
      r'left on device.*\); nothing was kept\. Check disk, memory '
      r'and network, then run it again\.',
      grouping.error_line(job),
    )
    assert grouping.names(small_disk) == []


def test_full_disk_of_one_host(raw, expected, tmp_path):
  # Only Spark keeps what it shuffles on the disks of its hosts.
  with Cluster(3) as hosts:
    hosts[1].hide(hosts[1].tmp, '3m')
    engine = Engine('spark', hosts)
    job = engine.group('big', raw('big'), tmp_path / 'out')
    _check_written(job, expected, tmp_path)
    assert 'No space left on device' in job.text()
