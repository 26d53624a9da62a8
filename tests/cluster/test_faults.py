"""Jobs whose hosts fail end with the same bytes, or with one line."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from cluster import grouping
from cluster.engines import ENVIRONMENT, Engine
from cluster.hosts import Cluster, wait_until

pytestmark = pytest.mark.cluster
_ENGINES = ('pool', 'spark', 'dask')
_SPARK = '--runner=pipelines.clusters.spark_runner.SparkRunner'
_DASK = '--runner=pipelines.clusters.dask_runner.DaskRunner'
_START_DASK = (
  'Start one with `python -m distributed.cli.dask_scheduler`, or name another.'
)


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


def test_killed_driver(engine, raw, expected, start, tmp_path):
  start.kill()
  (left,) = grouping.names(tmp_path)
  assert left.startswith('.out.grouping-')
  # The same command cleans up, while workers may still be at the old job.
  job = engine.group('big', raw('big'), tmp_path / 'out')
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
    assert grouping.error_line(job) == (
      'fedfish: failed: the Dask scheduler at host0:8786 was lost, and nothing '
      'was kept. Start it and its workers again, and run the job again.'
    )
    assert grouping.names(tmp_path) == []


def test_lost_pool(raw, tmp_path):
  with Cluster(3) as hosts:
    engine = Engine('pool', hosts)
    job = engine.group('big', raw('big'), tmp_path / 'out')
    grouping.wait_for_file(tmp_path / 'out', 'tasks', 120)
    hosts[2].cut()
    assert job.wait(180) == 1, job.text()
    assert grouping.error_line(job) == (
      'fedfish: failed: the worker pool at host2:50000 has not answered for 60 '
      'seconds, and nothing was kept. Start it again, or leave it out of '
      '`--worker_pools`, and run the job again.'
    )
    assert grouping.names(tmp_path) == []


def test_pool_that_was_not_started(raw, tmp_path):
  with Cluster(3) as hosts:
    engine = Engine('pool', hosts)
    engine.workers[1].kill()
    job = engine.group('small', raw('small'), tmp_path / 'out')
    assert job.wait(120) == 2, job.text()
    assert re.fullmatch(
      'fedfish: error: `--worker_pools` must name pools that answer, but '
      r'host2:50000 does not \(UNAVAILABLE\)\. Start it there with .*',
      grouping.error_line(job),
    )
    assert grouping.names(tmp_path) == []


@pytest.mark.parametrize(
  'name, flag, line',
  [
    (
      'spark',
      '--spark_master=spark://host1:7077',
      "`--spark_master` must be where a Spark master answers, but 'spark://"
      "host1:7077' does not ([Errno 111] Connection refused). Start it there "
      'with `python -m pipelines.clusters.spark_host master`, or name another.',
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
      "Spark makes no session with `--spark_master` 'spark://host0:7077', "
      "`--spark_conf` ['spark.executor.memory=much'], JAVA_HOME {home} and "
      '{java} in PATH, and says why above. Correct them, or set JAVA_HOME to a '
      'Java 17.',
    ),
    (
      'dask',
      '--dask_client_address=host1:8786',
      '`--dask_client_address` must lead to a Dask scheduler that answers, but '
      "'host1:8786' does not (Timed out trying to connect to tcp://host1:8786 "
      f'after 30 s). {_START_DASK}',
    ),
    (
      'dask',
      '--dask_client_address=foo://x',
      '`--dask_client_address` must lead to a Dask scheduler that answers, but '
      "'foo://x' does not (unknown address scheme 'foo' (known schemes: "
      f"['inproc', 'tcp', 'tls', 'ucx', 'ws', 'wss'])). {_START_DASK}",
    ),
  ],
)
def test_flags_that_fit_no_cluster(raw, tmp_path, name, flag, line):
  with Cluster(2) as hosts:
    engine = Engine(name, hosts)
    job = engine.group('small', raw('small'), tmp_path / 'out', flag)
    assert job.wait(120) == 2, job.text()
    home = os.environ.get('JAVA_HOME') or 'not set'
    line = line.format(home=home, java=shutil.which('java'))
    assert grouping.error_line(job) == f'fedfish: error: {line}'
    assert grouping.names(tmp_path) == []


@pytest.mark.parametrize(
  'text, found',
  [
    ('{"address":', 'Expecting value: line 1 column 12 (char 11)'),
    ('[1]', 'it holds no address'),
    ('{"address": 3}', 'it holds no address'),
  ],
)
def test_dask_scheduler_file(raw, tmp_path, text, found):
  file = tmp_path / 'scheduler.json'
  file.write_text(text)
  flags = _DASK, f'--dask_scheduler_file={file}'
  assert _refuse(raw, tmp_path / 'out', *flags) == (
    '`--dask_scheduler_file` must lead to a Dask scheduler that answers, but '
    f"'{file}' does not ({found}). Start one with `python -m "
    'distributed.cli.dask_scheduler --scheduler-file FILE`, or name another.'
  )


@pytest.mark.parametrize('is_begun', [False, True])
def test_dask_scheduler_file_that_comes_later(raw, tmp_path, is_begun):
  file = tmp_path / 'scheduler.json'
  if is_begun:
    file.touch()
  flags = _DASK, f'--dask_scheduler_file={file}'
  job = _start(raw, tmp_path / 'out', *flags)
  for line in job.stderr:
    if line.startswith('Waiting '):
      break
  assert line == f'Waiting for the scheduler file {file}\n'
  # With an address that Dask refuses at once, this needs no scheduler.
  file.write_text('{"address": "foo://x"}')
  _, errors = job.communicate(timeout=60)
  assert job.returncode == 2, errors
  assert f"'{file}' does not (unknown address scheme 'foo'" in errors


def test_dask_without_an_address(raw, tmp_path):
  # Dask then asks its own settings.
  environment = {'DASK_SCHEDULER_ADDRESS': 'foo://x'}
  found = _refuse(raw, tmp_path / 'out', _DASK, **environment)
  assert found.startswith(
    '`--dask_client_address` must lead to a Dask scheduler that answers, but '
    "is not given (unknown address scheme 'foo'"
  )
  assert found.endswith(_START_DASK)


@pytest.mark.parametrize(
  'home, found', [(None, 'JAVA_HOME not set'), ('/no', 'JAVA_HOME /no')]
)
def test_spark_without_java(raw, tmp_path, home, found):
  programs = tmp_path / 'bin'
  programs.mkdir()
  # What Spark's own scripts need.
  for name in 'bash dirname ps python3 uname'.split():
    (programs / name).symlink_to(shutil.which(name))
  environment = {'PATH': str(programs), 'JAVA_HOME': home}
  assert _refuse(raw, tmp_path / 'out', _SPARK, **environment) == (
    "Spark makes no session with `--spark_master` 'local[*]', `--spark_conf` "
    f'[], {found} and no java in PATH, and says why above. Correct them, or '
    'set JAVA_HOME to a Java 17.'
  )


def test_spark_finds_java_by_its_own_settings(raw, expected, tmp_path):
  home = pathlib.Path(shutil.which('java')).resolve().parents[1]
  (tmp_path / 'conf').mkdir()
  settings = tmp_path / 'conf' / 'spark-env.sh'
  settings.write_text(f'export JAVA_HOME={home}\n')
  environment = {'JAVA_HOME': '/no', 'SPARK_CONF_DIR': str(settings.parent)}
  job = _start(raw, tmp_path / 'out', _SPARK, **environment)
  _, errors = job.communicate(timeout=120)
  assert job.returncode == 0, errors
  assert grouping.digests(tmp_path / 'out') == expected('small')


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
      r'left on device.*\); nothing was kept\. Check the disk and its free '
      r'space, then run it again\.',
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
