"""`fedfish train` with Ray on hosts in a box, some of which fail."""

import pathlib
import sys
import time

import numpy as np
import pytest
import small_runs
from cluster.hosts import Cluster, wait_until

from tff_fedfish.run import checkpoints, tables

pytestmark = pytest.mark.cluster
_ROOT = pathlib.Path(__file__).parents[2]
_RAY = pathlib.Path(sys.executable).with_name('ray')
_ENVIRONMENT = {
  'PYTHONPATH': str(_ROOT),
  'TF_CPP_MIN_LOG_LEVEL': '3',
  # One thread: threads may divide the sums of a matrix product.
  'TF_NUM_INTRAOP_THREADS': '1',
  'TF_NUM_INTEROP_THREADS': '2',
  'RAY_USAGE_STATS_ENABLED': '0',
  # Each host's own; hosts of one temporary directory take one another's names.
  'RAY_TMPDIR': '/tmp',
}
_SETTINGS = dict(
  cohorts__cohort_size=4,
  # A round of some seconds, whose parts are seen to begin.
  client_work__num_local_epochs=400,
  evaluation__every_num_rounds=0,
  engine__num_partial_sums=4,
  engine__threads_per_worker=1,
)
_LIMIT_SECONDS = 120


@pytest.fixture(scope='module')
def inputs(tmp_path_factory):
  """A corpus and a vocabulary."""
  directory = tmp_path_factory.mktemp('inputs')
  corpus = small_runs.make_corpus(directory)
  return corpus, small_runs.make_vocabulary(directory, corpus)


@pytest.fixture(scope='module')
def expected(inputs, tmp_path_factory):
  """Tensors of each round of an uninterrupted run in one process."""
  run = tmp_path_factory.mktemp('expected') / 'run'
  with Cluster(1) as (host,):
    host.run(_command(inputs, run), _LIMIT_SECONDS, env=_ENVIRONMENT)
  return _tensors(run)


@pytest.fixture
def hosts():
  """Two hosts with a place for a worker each; the first has Ray's head."""
  with Cluster(2, own=['/tmp/ray']) as found:
    _start_ray(found)
    yield found


def _start_ray(hosts):
  """Starts Ray on all hosts, and returns when it is up."""
  processes = []
  for host in hosts:
    where = [f'--address={hosts[0].address}:6379']
    if host is hosts[0]:
      where = ['--head', '--port=6379', '--include-dashboard=false']
    processes.append(
      host.start(
        [
          *(_RAY, 'start', *where, f'--node-ip-address={host.address}'),
          *('--num-cpus=1', '--object-store-memory=100000000', '--block'),
        ],
        'ray',
        env=_ENVIRONMENT,
      )
    )
    processes[-1].wait_for('Ray runtime started', 60)
  return processes


def _command(inputs, run, **settings):
  return [
    *(sys.executable, '-W', 'ignore', '-m', 'tff_fedfish', 'train'),
    *('--config', small_runs.CONFIG, '--workdir', str(run)),
    *small_runs.overrides(*inputs, **_SETTINGS | settings),
  ]


def _train(hosts, inputs, run, **settings):
  """Starts a run with a worker on each host."""
  ray = dict(
    engine__kind='ray',
    engine__num_workers=2,
    engine__ray_address=f'{hosts[0].address}:6379',
  )
  command = _command(inputs, run, **ray | settings)
  return hosts[0].start(command, 'train', env=_ENVIRONMENT)


def _tensors(run):
  directory = run / 'checkpoints'
  return {
    number: checkpoints.load_checkpoint(
      checkpoints.path_of(directory, number)
    ).tensors
    for number in checkpoints.list_rounds(directory)
  }


def _assert_same(found, expected):
  assert found.keys() == expected.keys()
  for number, tensors in expected.items():
    for name, tensor in tensors.items():
      np.testing.assert_array_equal(found[number][name], tensor)


def _wait_for_round(process, run, number):
  """Returns when a round stands in metrics.csv."""
  path = run / 'metrics.csv'
  wait_until(
    lambda: path.exists() and number in tables.logged_rounds(path),
    _LIMIT_SECONDS,
    f'round {number}',
    process.text,
  )


def _wait_until_busy(host, process):
  """Returns the workers of a host that are at a part of a cohort."""
  wait_until(
    lambda: host.processes('RayWorker.add_up'),
    _LIMIT_SECONDS,
    f'a part on {host.name}',
    process.text,
  )
  return host.processes('RayWorker.add_up')


def _kill(host, name):
  found = host.processes(name)
  assert found
  for process in found:
    process.kill()


def _num_lost(run):
  rows = tables.read_metrics(run / 'timings.csv')
  return [row['num_lost_workers'] or 0 for row in rows]


def test_killed_raylet(hosts, inputs, expected, tmp_path):
  run = tmp_path / 'run'
  process = _train(hosts, inputs, run)
  _wait_for_round(process, run, 1)
  _wait_until_busy(hosts[1], process)
  _kill(hosts[1], 'raylet/raylet')
  assert process.wait(_LIMIT_SECONDS) == 0, process.text()
  _assert_same(_tensors(run), expected)
  # Once: the line, and the count of the round in which it happened.
  assert process.text().count(' died. ') == 1
  assert (
    'Round 2: a worker on host host1 (10.77.0.11) died. Its clients run again; '
    '1 of 2 workers (`--config.engine.num_workers`) are left.'
  ) in process.text()
  assert _num_lost(run) == [0, 0, 1, 0, 0]


def test_killed_head(hosts, inputs, expected, tmp_path):
  run = tmp_path / 'run'
  process = _train(hosts, inputs, run)
  _wait_for_round(process, run, 2)
  _wait_until_busy(hosts[1], process)
  _kill(hosts[0], 'gcs_server')
  start = time.monotonic()
  assert process.wait(_LIMIT_SECONDS) == 1, process.text()
  assert time.monotonic() - start < 90
  (line,) = [t for t in process.text().splitlines() if 'head at' in t]
  assert line.startswith(
    "fedfish: Ray's head at 10.77.0.10:6379 does not answer ("
  )
  assert line.endswith(
    'Unless it comes back, Ray ends this process within about a minute. Start '
    'Ray again on all machines; the same command then continues from the last '
    'checkpoint.'
  )
  last = max(_tensors(run))
  # Raylets wait for their head for a minute.
  for host in hosts:
    for left in host.processes('ray'):
      left.kill()
  _start_ray(hosts)
  process = _train(hosts, inputs, run)
  assert process.wait(_LIMIT_SECONDS) == 0, process.text()
  assert f'Continuing after round {last}.' in process.text()
  _assert_same(_tensors(run), expected)


def test_host_without_the_corpus(hosts, inputs, tmp_path):
  hosts[1].hide(inputs[0])
  process = _train(hosts, inputs, tmp_path / 'run')
  assert process.wait(_LIMIT_SECONDS) == 2, process.text()
  assert (
    'fedfish: error: Host host1 (10.77.0.11) of the Ray cluster '
    '(`--config.engine.ray_address`) differs from this one: '
    f'{inputs[0]} is 0 files, 0 bytes ('
  ) in process.text()


def test_cut_link(hosts, inputs, expected, tmp_path):
  run = tmp_path / 'run'
  process = _train(hosts, inputs, run)
  _wait_for_round(process, run, 1)
  _wait_until_busy(hosts[1], process)
  hosts[1].cut()
  process.wait_for('Round 2: a worker on host host1 (10.77.0.11) died', 120)
  hosts[1].heal()
  assert process.wait(_LIMIT_SECONDS) == 0, process.text()
  _assert_same(_tensors(run), expected)
  assert _num_lost(run) == [0, 0, 1, 0, 0]


def test_short_cut_is_waited_out(hosts, inputs, expected, tmp_path):
  run = tmp_path / 'run'
  process = _train(hosts, inputs, run)
  _wait_for_round(process, run, 1)
  _wait_until_busy(hosts[1], process)
  hosts[1].cut()
  time.sleep(5)
  hosts[1].heal()
  assert process.wait(_LIMIT_SECONDS) == 0, process.text()
  assert ' died. ' not in process.text()
  _assert_same(_tensors(run), expected)
