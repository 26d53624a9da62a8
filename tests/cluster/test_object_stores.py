"""Grouping into object stores and from them, over a network that fails."""

import collections
import io
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.aws.clients.s3 import boto3_client
from cluster import grouping, object_store
from cluster.engines import Engine
from cluster.hosts import Cluster
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import output_files, s3_files
from pipelines.input_files import find_input_files
from pipelines.job import run_group_job
from pipelines.staging import stage
from tff_fedfish.errors import FailedError, UserError

pytestmark = pytest.mark.cluster
_OUTPUT = f's3://{object_store.BUCKET}/corpora/c4'
_PREFIX = 'corpora/c4/'
_STOPPED = (
  r"^Grouping into 's3://bucket/corpora/c4' stopped \('s3://bucket/{0}': "
  r'.*{1}.*\)\. There is no manifest, so what is left is no corpus\. Check '
  r'that the store can be reached, then run it again\.$'
)


@pytest.fixture(scope='module')
def server(tmp_path_factory):
  if not object_store.PACKAGES.exists():
    pytest.skip('needs `make .venv-cluster`')
  with pytest.MonkeyPatch.context() as patch:
    # Last: it holds more than boto3.
    patch.setattr(sys, 'path', [*sys.path, str(object_store.PACKAGES)])
    # Beam has looked for it where this module's imports have loaded Beam.
    import boto3

    patch.setattr(boto3_client, 'boto3', boto3)
    log = tmp_path_factory.mktemp('store') / 'log'
    with object_store.running_store(log) as found:
      yield found


@pytest.fixture
def store(server, monkeypatch):
  for name, value in object_store.ENVIRONMENT.items():
    monkeypatch.setenv(name, value)
  # Many, so that a request that fails by chance does not end a test.
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '8')
  yield server[0]
  server[0].clear()
  assert server[0].num_uploads() == 0


@pytest.fixture
def network(server, store, monkeypatch):
  with object_store.Network(server[1]) as found:
    monkeypatch.setenv('AWS_ENDPOINT_URL', f'http://127.0.0.1:{found.port}')
    # Variables are read once, when a client is made.
    s3_files._make_client.cache_clear()
    yield found


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


@pytest.mark.parametrize('kind', ['small', 'split', 'optional'])
def test_same_bytes(store, network, raw, expected, tmp_path, kind):
  flags = [f'--s3_endpoint_url=http://127.0.0.1:{network.port}']
  done = subprocess.run(
    grouping.command(kind, raw(kind), _OUTPUT, *flags),
    cwd=grouping.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  wanted = expected(kind)
  assert store.digests(_PREFIX) == wanted
  assert store.contents().keys() == {f'{_PREFIX}{name}' for name in wanted}
  if kind != 'small':
    return
  methods = collections.Counter(name.split()[0] for name in network.requests)
  # A task report, 8 pieces, 8 shards with 8 reports, index, manifest, marker
  # and probe are 29 files. The 10 that stay are copied, which is a PUT, too.
  assert methods['PUT'] == 29 + 10
  # 8 pieces and 9 reports are read, and their sizes asked for; so are those of
  # what is copied, and whether the marker is there. 7 lists of objects, 2 of
  # uploads.
  assert methods['HEAD'] == 8 + 9 + 10 + 1
  assert methods['GET'] == 8 + 9 + 7 + 2
  # The probe's and the job's directory.
  assert methods['POST'] == 2
  for name, data in store.contents(_PREFIX).items():
    (tmp_path / name).write_bytes(data)
  done = subprocess.run(
    [sys.executable, '-m', 'tff_fedfish', 'verify', tmp_path],
    cwd=grouping.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert ': OK (8 shards,' in done.stdout


@pytest.mark.parametrize(
  'pattern, how, times',
  [
    ('PUT .*/(tasks|pieces|shards)/', '503', 3),
    ('GET', '503', 2),
    ('HEAD', '503', 2),
    ('POST .*delete', '503', 1),
    # The copy with which the corpus is complete.
    ('PUT .*/manifest.json$', '503', 2),
    ('.', 'delay', 3),
    ('PUT .*tfrecord', 'cut', 2),
    ('PUT .*arrow', 'cut', 1),
    ('GET .*arrow', 'cut_answer', 2),
    ('GET .*parquet', 'cut_answer', 2),
  ],
)
def test_faults_that_pass(store, network, lines, pattern, how, times):
  paths, wanted = lines
  network.fail(pattern, how, times)
  run_group_job(make_job(paths), _OUTPUT)
  assert network.num_failed == times
  assert store.contents() == {
    f'{_PREFIX}{name}': data for name, data in wanted.items()
  }


@pytest.mark.parametrize(
  'pattern, how, found',
  [
    ('PUT .*/tasks/', '503', r'SlowDown.*PutObject'),
    ('PUT .*arrow', 'cut', 'Connection'),
    ('PUT .*tfrecord', 'cut', 'Connection'),
    ('GET .*arrow', 'cut_answer', ''),
    ('PUT .*c4/groups-00001', '503', r'SlowDown.*CopyObject'),
    ('PUT .*c4/manifest', '503', r'SlowDown.*CopyObject'),
    ('GET .*list-type.*shards', '503', r'SlowDown.*ListObjectsV2'),
  ],
)
def test_faults_that_stay(
  store, network, lines, monkeypatch, pattern, how, found
):
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
  paths, wanted = lines
  network.fail(pattern, how)
  words = _STOPPED.format('corpora/c4/.*', found)
  with pytest.raises(FailedError, match=words):
    run_group_job(make_job(paths), _OUTPUT)
  assert all(map(output_files.is_staged, store.contents(_PREFIX)))
  network.heal()
  output_files.require_usable(_OUTPUT)
  run_group_job(make_job(paths), _OUTPUT)
  found = store.contents(_PREFIX)
  assert {name: found[name] for name in wanted} == wanted
  assert all(map(output_files.is_staged, found.keys() - wanted.keys()))


def test_store_that_is_gone(store, network, lines, monkeypatch):
  """Not even what there is of the job can be removed then."""
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
  paths, wanted = lines
  network.fail('PUT .*/shards/', '503')
  network.fail('POST|GET .*(list-type|uploads)', '503')
  with pytest.raises(FailedError, match='then run it again'):
    run_group_job(make_job(paths), _OUTPUT)
  left = store.contents(_PREFIX)
  assert left and all(name.startswith('grouping-') for name in left)
  network.heal()
  (name,) = {name.partition('/')[0] for name in left}
  output_files.require_usable(_OUTPUT)
  assert output_files.find_staging(_OUTPUT) == [f'{_OUTPUT}/{name}']
  run_group_job(make_job(paths), _OUTPUT)
  assert store.contents(_PREFIX) == wanted | left


def test_one_line_of_the_command(store, network, raw, monkeypatch):
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '2')
  network.fail('PUT .*/pieces/', '503')
  done = subprocess.run(
    [
      *grouping.command('small', raw('small'), _OUTPUT),
      *('--direct_running_mode=multi_processing', '--direct_num_workers=2'),
    ],
    cwd=grouping.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 1
  title, line = done.stderr.splitlines()
  assert title.startswith('Grouping 4 files')
  assert line.startswith(
    f"fedfish: failed: Grouping into '{_OUTPUT}' stopped ("
  )
  assert 'SlowDown' in line
  assert store.contents() == {}


def test_filled_meanwhile(store, network):
  with pytest.raises(
    UserError,
    match="must stay empty while it is written, but 's3://bucket/corpora/c4' "
    'was filled meanwhile',
  ):
    with stage(_OUTPUT) as staging:
      staging.make_directories([])
      store.put(f'{_PREFIX}manifest.json', b'theirs')
  assert store.contents(_PREFIX) == {'manifest.json': b'theirs'}


def test_large_file(store, network, monkeypatch):
  monkeypatch.setattr('pipelines.s3_files._PART_BYTES', 5 << 20)
  monkeypatch.setattr('pipelines.s3_files._COPIED_PART_BYTES', 5 << 20)
  monkeypatch.setattr('pipelines.s3_files._READ_BYTES', 4 << 20)
  data = bytes(range(256)) * (12 << 12)
  network.fail('PUT .*partNumber', 'cut', 1)
  network.fail('GET', 'cut_answer', 1)
  output_files.write_bytes(f'{_OUTPUT}/x', data)
  # 12 MiB are three parts of 5 MiB, of which one was sent twice.
  assert sum('partNumber' in name for name in network.requests) == 3 + 1
  with output_files.open_local_copy(f'{_OUTPUT}/x') as file:
    assert file.read() == data
  (found,) = output_files.read_all([f'{_OUTPUT}/x'])
  assert found == data


class TestInput:
  @pytest.fixture
  def pattern(self, store, network, lines):
    for path in lines[0]:
      store.put(f'raw/{path.name}', path.read_bytes())
    store.put('raw/more/x.json', b'{')
    return f's3://{object_store.BUCKET}/raw/*.json'

  def test_same_bytes(self, network, pattern, lines, tmp_path):
    network.fail('GET .*json', 'cut_answer', 3)
    paths = find_input_files([pattern])
    assert [path.rpartition('/')[2] for path in paths] == [
      path.name for path in lines[0]
    ]
    run_group_job(make_job(paths), tmp_path / 'out')
    assert network.num_failed == 3
    assert contents(tmp_path / 'out') == lines[1]

  @pytest.mark.parametrize('name, num', [('1.json', 1), ('table.parquet', 3)])
  def test_failed_read_is_no_damage(
    self, store, network, pattern, tmp_path, monkeypatch, name, num
  ):
    monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(raw_records(9)), sink)
    store.put('raw/table.parquet', sink.getvalue())
    paths = find_input_files([pattern.replace('*.json', name)])
    # The first tell the file's format, and whether it is whole.
    network.fail(f'GET .*{name}', 'delay', num)
    network.fail(f'GET .*{name}', '503')
    with pytest.raises(FailedError, match=f"'s3://bucket/raw/{name}': .*Slow"):
      run_group_job(make_job(paths), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()

  def test_what_is_not_there(self, pattern):
    with pytest.raises(UserError, match="but 's3://bucket/raw/n' matches none"):
      find_input_files([pattern.replace('*.json', 'n')])
    with pytest.raises(
      UserError,
      match=r"`--input` must be a path that can be read, but 's3://none/\*' is "
      r'not \(.*NoSuchBucket.*\)\. Check the name, and how the file system is '
      r'reached, or copy the files here\.$',
    ):
      find_input_files(['s3://none/*'])


def test_output_that_cannot_be_written(store, network):
  with pytest.raises(
    UserError,
    match=r'`--output` must be a directory that can be written to, but '
    r"'s3://none/c4' is not \(.*NoSuchBucket.*\)\. Check the name, and how the "
    r'file system is reached, or name a local directory\.$',
  ):
    output_files.require_usable('s3://none/c4')


@pytest.fixture
def hosts():
  with Cluster(3) as found:
    yield found


def _digests(host, port):
  """Returns SHA-256 by key of the bucket, asked for on a host."""
  code = (
    'import boto3, hashlib\n'
    f'client = boto3.client("s3", endpoint_url="http://{host.name}:{port}")\n'
    'found = client.list_objects_v2(Bucket="bucket")\n'
    'for entry in found.get("Contents", ()):\n'
    '  data = client.get_object(Bucket="bucket", Key=entry["Key"])["Body"]\n'
    '  print(hashlib.sha256(data.read()).hexdigest(), entry["Key"])\n'
  )
  text = host.run([sys.executable, '-c', code], env=object_store.ENVIRONMENT)
  return dict(reversed(line.split()) for line in text.splitlines())


@pytest.mark.parametrize('name', ['spark', 'dask'])
def test_workers_on_other_hosts(hosts, raw, expected, server, name):
  """They know of the store by the options of the job only."""
  del server  # Only skips.
  process = hosts[0].start(
    object_store.server_command('0.0.0.0', 5000), env=object_store.ENVIRONMENT
  )
  process.wait_for('Running on', 60)
  code = (
    'import boto3\n'
    'boto3.client("s3", endpoint_url="http://host0:5000")'
    '.create_bucket(Bucket="bucket")\n'
  )
  hosts[0].run([sys.executable, '-c', code], env=object_store.ENVIRONMENT)
  engine = Engine(name, hosts)
  job = engine.group(
    'small',
    raw('small'),
    _OUTPUT,
    '--s3_endpoint_url=http://host0:5000',
    '--s3_access_key_id=tests',
    '--s3_secret_access_key=tests',
    '--s3_region_name=us-east-1',
  )
  assert job.wait(300) == 0, job.text()
  assert _digests(hosts[0], 5000) == {
    f'{_PREFIX}{name}': digest for name, digest in expected('small').items()
  }
