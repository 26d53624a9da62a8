"""Grouping into object stores and from them, over a network that fails."""

import io
import subprocess
import sys

import pytest
from cluster import engines, grouping, object_store
from cluster.hosts import Cluster
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import output
from pipelines.input_files import find_input_files
from pipelines.job import run_group_job
from tff_fedfish.data import places
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.errors import FailedError, UserError

pytestmark = pytest.mark.cluster
_OUTPUT = f's3://{object_store.BUCKET}/corpora/c4'
_PREFIX = 'corpora/c4/'


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  if not object_store.PACKAGES.exists():
    pytest.skip('needs `make .venv-cluster`')
  log = tmp_path_factory.mktemp('store') / 'log'
  with object_store.running_store(log) as found:
    yield found


@pytest.fixture
def store(server, monkeypatch):
  for name, value in object_store.ENVIRONMENT.items():
    monkeypatch.setenv(name, value)
  yield server[0]
  server[0].clear()


@pytest.fixture
def network(server, store, monkeypatch):
  with object_store.Network(server[1]) as found:
    monkeypatch.setenv('AWS_ENDPOINT_URL', f'http://127.0.0.1:{found.port}')
    # Variables are read once, when a store is first asked.
    places._connect.cache_clear()
    yield found
  places._connect.cache_clear()


@pytest.fixture
def once(monkeypatch, network):
  """Makes every request once, whether it fails or not."""
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
  places._connect.cache_clear()


@pytest.fixture(scope='module')
def lines(tmp_path_factory):
  """Paths of three files, and what is grouped of them, by name."""
  directory = tmp_path_factory.mktemp('lines')
  records = [
    record | {'text': f'{record["text"]} ' * 50} for record in raw_records(200)
  ]
  paths = [
    write_lines(directory / f'{i}.json', records[i::3]) for i in range(3)
  ]
  run_group_job(make_job(paths), directory / 'out')
  return paths, contents(directory / 'out')


def _command(*arguments):
  return subprocess.run(
    list(map(str, arguments)),
    cwd=grouping.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )


def _fedfish(*arguments):
  done = _command(sys.executable, '-m', 'tff_fedfish', *arguments)
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.parametrize('kind', ['small', 'split', 'optional'])
def test_same_bytes(store, network, raw, expected, tmp_path, kind):
  done = _command(*grouping.command(kind, raw(kind), _OUTPUT))
  assert done.returncode == 0, done.stderr
  assert store.digests(_PREFIX) == expected(kind)
  num_requests = len(network.requests)
  if kind != 'small':
    return
  # Of 8 shards. Reading is bounded, too: by the index, a client's records.
  assert num_requests <= 200
  assert f'{_OUTPUT}: OK (8 shards,' in _fedfish('verify', _OUTPUT)
  grouping.group_here(kind, raw(kind), tmp_path / 'out')
  shown = _fedfish('inspect', _OUTPUT), _fedfish('inspect', tmp_path / 'out')
  assert shown[0] == shown[1].replace(str(tmp_path / 'out'), _OUTPUT)
  here, there = GroupedCorpus(tmp_path / 'out'), GroupedCorpus(_OUTPUT)
  assert here.fingerprint == there.fingerprint
  for client_id in here.client_ids[:3]:
    num_requests = len(network.requests)
    assert there.examples(client_id) == here.examples(client_id)
    assert len(network.requests) - num_requests <= 3


@pytest.mark.parametrize('how, step', [('503', 1), ('cut_answer', 7)])
def test_any_request_fails_once(store, network, lines, monkeypatch, how, step):
  monkeypatch.setattr(output, '_SETTLE_SECONDS', 0.1)
  paths, wanted = lines
  for number in range(1, 41, step):
    network.fail_nth(number, how)
    run_group_job(make_job(paths), _OUTPUT)
    assert network.num_failed == 1, number
    assert store.contents(_PREFIX) == wanted, number
    store.clear()


def test_one_line_of_the_command(store, network, raw, monkeypatch):
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '2')
  network.fail('PUT .*/runs/', '503')
  done = _command(
    *grouping.command('small', raw('small'), _OUTPUT),
    *('--direct_running_mode=multi_processing', '--direct_num_workers=2'),
  )
  assert done.returncode == 1
  title, line = done.stderr.splitlines()
  assert title.startswith('Grouping 4 files')
  assert line.startswith(
    f"fedfish: failed: Grouping into '{_OUTPUT}' stopped ("
  )
  assert 'SLOW_DOWN' in line
  assert store.contents(_PREFIX) == {}


def test_large_file(store, network, monkeypatch):
  data = bytes(range(256)) * (24 << 12)
  network.fail('PUT .*partNumber', 'cut', 1)
  network.fail('GET', 'cut_answer', 1)
  places.write_bytes(f'{_OUTPUT}/x', data)
  monkeypatch.setattr(places, '_MAX_COPIED_BYTES', 20 << 20)
  places.move(f'{_OUTPUT}/x', f'{_OUTPUT}/y')
  assert sum('partNumber' in name for name in network.requests) >= 2 * 2
  assert places.read_bytes(f'{_OUTPUT}/y') == data


def test_stopped_upload_leaves_nothing(store, network):
  with pytest.raises(KeyError):
    with places.write(f'{_OUTPUT}/x') as file:
      file.write(b'half')
      raise KeyError

  class Broken(io.BytesIO):
    def read(self, size=-1):
      if self.tell():
        raise KeyboardInterrupt
      return super().read(size)

  with pytest.raises(KeyboardInterrupt):
    places._upload(Broken(bytes(40 << 20)), f'{_OUTPUT}/x')
  assert store.contents(_PREFIX) == {}


class TestInput:
  @pytest.fixture
  def pattern(self, store, network, lines):
    for path in lines[0]:
      store.put(f'raw/{path.name}', path.read_bytes())
    store.put('raw/more/x.json', b'{')
    return f's3://{object_store.BUCKET}/raw/*.json'

  def test_same_bytes(self, network, pattern, lines, tmp_path):
    network.fail('GET', '503', 2)
    network.fail(r'GET .*/\d\.json', 'cut_answer', 1)
    paths = find_input_files([pattern])
    assert [path.rpartition('/')[2] for path in paths] == [
      path.name for path in lines[0]
    ]
    run_group_job(make_job(paths), tmp_path / 'out')
    assert network.num_failed == 3
    assert contents(tmp_path / 'out') == lines[1]

  def test_failed_read_is_no_damage(self, network, once, pattern, tmp_path):
    paths = find_input_files([pattern])
    network.fail('GET .*1.json', '503')
    with pytest.raises(FailedError, match=r"'s3://bucket/raw/1.json': "):
      run_group_job(make_job(paths), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_bucket_that_is_not_there(network):
  with pytest.raises(UserError, match=r"`--input` must match .* 's3://none/x'"):
    find_input_files(['s3://none/x'])
  with pytest.raises(
    UserError,
    match=r'^`--output` must be a directory that can be written to, but '
    r"'s3://none/c4' is not \(.*NO_SUCH_BUCKET.*\)\. Check its name and ",
  ):
    with output.work_directory(output.require_usable('s3://none/c4')):
      pass


@pytest.fixture
def hosts():
  with Cluster(3) as found:
    yield found


@pytest.mark.parametrize('name', ['spark', 'dask'])
def test_workers_on_other_hosts(
  hosts, raw, expected, server, monkeypatch, name
):
  """They know of the store by their own variables."""
  del server  # Only skips.
  variables = object_store.ENVIRONMENT | {
    'AWS_ENDPOINT_URL': 'http://host0:5000'
  }
  del variables['PYTHONPATH']
  monkeypatch.setattr(engines, 'ENVIRONMENT', engines.ENVIRONMENT | variables)
  process = hosts[0].start(
    object_store.server_command('0.0.0.0', 5000), env=object_store.ENVIRONMENT
  )
  process.wait_for('Running on', 60)
  code = (
    'from cluster import object_store\n'
    'store = object_store.Store("http://host0:5000")\n'
    'for name, digest in store.digests("corpora/c4/").items():\n'
    '  print(name, digest)'
  )
  command = [sys.executable, '-c', code]
  environment = object_store.ENVIRONMENT
  # Makes the bucket.
  assert hosts[0].run(command, env=environment) == ''
  job = engines.Engine(name, hosts).group('small', raw('small'), _OUTPUT)
  assert job.wait(300) == 0, job.text()
  lines = hosts[0].run(command, env=environment).splitlines()
  assert dict(map(str.split, lines)) == expected('small')
