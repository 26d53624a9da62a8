"""Files and corpora of this machine and of a store, by the same functions."""

import http.server
import socket
import threading

import buckets
import disk_calls
import pytest
from grouping_jobs import contents, group_lines, raw_records

from tff_fedfish.data import places
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import UserError


@pytest.fixture(params=['local', *buckets.KINDS])
def root(request, tmp_path, monkeypatch):
  """Returns the path of an empty directory, `tmp_path / 'b'`."""
  (tmp_path / 'b').mkdir()
  if request.param == 'local':
    return f'{tmp_path}/b'
  buckets.mount(monkeypatch, tmp_path, request.param)
  return 'bucket://b'


@pytest.fixture
def directory(tmp_path):
  return tmp_path / 'b'


def test_file_appears_whole_or_not(root, directory):
  with pytest.raises(KeyError):
    with places.write(f'{root}/x') as file:
      file.write(b'half')
      raise KeyError
  assert contents(directory) == {}
  with places.write(f'{root}/x') as file:
    file.write(b'old')
  with places.write(f'{root}/x') as file:
    file.write(b'new')
    assert contents(directory)['x'] == b'old'
  places.write_bytes(f'{root}/y', b'y')
  assert contents(directory) == {'x': b'new', 'y': b'y'}


def test_file_that_must_be_new(root, directory):
  places.create(f'{root}/x', b'1')
  with pytest.raises(FileExistsError):
    places.create(f'{root}/x', b'2')
  assert contents(directory) == {'x': b'1'}


def test_new_file_is_on_disk(tmp_path, monkeypatch):
  calls = disk_calls.record(monkeypatch, tmp_path)
  places.create(f'{tmp_path}/x', b'123')
  assert calls == [('fsync', 'x', 3)]


def test_lists(root, directory):
  (directory / 'a' / 'empty').mkdir(parents=True)
  for name in ('b', 'a/c', 'a/.written'):
    (directory / name).write_bytes(b'12')
  assert places.list_files(root) == [f'{root}/a/c', f'{root}/b']
  assert places.list_files(f'{root}/a/') == [f'{root}/a/c']
  assert places.list_files(f'{root}/none') == []
  sizes = [places.size(f'{root}/{name}') for name in ('b', 'a', 'c')]
  assert sizes == [2, None, None]


def test_names(root, directory):
  (directory / 'a').mkdir()
  for name in ('.b', 'a/c', 'd'):
    (directory / name).write_bytes(b'')
  assert places.list_names(root) == ['.b', 'a/', 'd']
  assert places.list_names(f'{root}/a') == ['c']
  assert places.list_names(f'{root}/none') == []


@pytest.mark.parametrize('path', ['s3://', 'gs:///', 's3:////'])
def test_store_without_a_bucket(path):
  for function in (places.absolute, places.directory_of):
    with pytest.raises(UserError, match=rf"^A place in .*, found '{path}'\. N"):
      function(path)


def test_patterns_of_a_store(tmp_path, monkeypatch):
  buckets.mount(monkeypatch, tmp_path)
  for name in ('r/1.json', 'r/2.json', 'r/x/1.json', 'r/[1].json', 'r/é b'):
    (tmp_path / 'b' / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'b' / name).write_bytes(b'')
  for pattern, names in {
    '*.json': ['1.json', '2.json', '[1].json'],
    '?.json': ['1.json', '2.json'],
    '[1].json': ['[1].json'],
    '[13].json': ['1.json'],
    '*/1.json': ['x/1.json'],
    'é b': ['é b'],
    '3*': [],
    'none/*': [],
  }.items():
    found = places.glob(f'bucket://b/r/{pattern}')
    assert found == [f'bucket://b/r/{name}' for name in names], pattern


def test_name_without_wildcard_lists_nothing(tmp_path, monkeypatch):
  buckets.mount(monkeypatch, tmp_path)
  (tmp_path / 'b' / 'r').mkdir(parents=True)
  (tmp_path / 'b' / 'r' / '1.json').write_bytes(b'')
  listed, select = [], places._select

  def count(directory, recursive):
    listed.append(directory)
    return select(directory, recursive)

  monkeypatch.setattr(places, '_select', count)
  for name in ('2.json', '', 'r'):
    assert places.glob(f'bucket://b/r/{name}') == []
  assert listed == []
  assert places.glob('bucket://b/r/?.json') == ['bucket://b/r/1.json']
  assert listed == ['bucket://b/r']


def test_reads_of_parts(root, directory):
  data = bytes(range(256)) * 4
  (directory / 'x').write_bytes(data)
  with places.open_file(f'{root}/x', buffer_bytes=100) as file:
    assert file.seek(-20, 2) == 1004
    assert file.read(30) == data[-20:]
    file.seek(500)
    assert file.read(300) == data[500:800]
    assert file.tell() == 800
    assert file.read() == data[800:]
  paths = [f'{root}/x'] * 3
  assert list(places.map_many(places.read_bytes, paths)) == [data] * 3


def test_other_names(root, directory):
  (directory / 'w').mkdir()
  places.write_bytes(f'{root}/w/x', b'1')
  places.move(f'{root}/w/x', f'{root}/y')
  assert contents(directory)['y'] == b'1'
  for _ in range(2):
    places.remove(f'{root}/y')
    places.remove_directory(f'{root}/w')
  assert contents(directory) == {}


def test_object_that_is_too_large_to_copy(tmp_path, monkeypatch):
  buckets.mount(monkeypatch, tmp_path, 'objects')
  monkeypatch.setattr(places, '_MAX_COPIED_BYTES', 3)
  for data in (b'123', b'1234'):
    places.write_bytes('bucket://b/x', data)
    places.move('bucket://b/x', 'bucket://b/y')
    assert contents(tmp_path / 'b') == {'x': data, 'y': data}


def test_what_is_not_there(root):
  with pytest.raises(FileNotFoundError, match='none'):
    places.read_bytes(f'{root}/none')


def test_errors_of_a_store_are_one_line(tmp_path, monkeypatch):
  buckets.mount(monkeypatch, tmp_path)
  (tmp_path / 'b').write_bytes(b'')
  with pytest.raises(places.StoreError, match=r"^'bucket://b/x': .+$"):
    places.write_bytes('bucket://b/x', b'')
  with pytest.raises(places.StoreError, match=r"^'none://x': .*none.*$"):
    places.read_bytes('none://x')


def test_store_that_takes_connections_and_never_answers(monkeypatch):
  monkeypatch.setattr(places, '_SILENT_SECONDS', 1)
  monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
  with socket.create_server(('127.0.0.1', 0)) as server:
    _use_server(monkeypatch, server.getsockname()[1])
    with pytest.raises(places.StoreError, match=r"^'s3://b/x': .*NETWORK_CONN"):
      places.size('s3://b/x')


class _PublicBucket(http.server.BaseHTTPRequestHandler):
  """The object `r/x` of bucket b; who shows credentials is refused."""

  def do_GET(self):
    body = b'abc'
    if 'list-type' in self.path:
      body = (
        b'<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>r/x'
        b'</Key><Size>3</Size></Contents></ListBucketResult>'
      )
    is_known = self.path.startswith(('/b/r/x', '/b?'))
    code = 200 if is_known else 404
    self.send_response(403 if 'Authorization' in self.headers else code)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    if self.command == 'GET':
      self.wfile.write(body)

  do_HEAD = do_GET

  def log_message(self, *_):
    pass


def test_public_bucket_without_credentials(monkeypatch):
  monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'somebody')
  monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'secret')
  address = '127.0.0.1', 0
  with http.server.ThreadingHTTPServer(address, _PublicBucket) as server:
    threading.Thread(target=server.serve_forever).start()
    try:
      _use_server(monkeypatch, server.server_port)
      path = 's3://anonymous@b/r/x'
      assert places.glob('s3://anonymous@b/r/*') == [path]
      assert places.size(path) == 3
      assert places.read_bytes(path) == b'abc'
      with pytest.raises(places.StoreError, match='ACCESS_DENIED'):
        places.size('s3://b/r/x')
    finally:
      server.shutdown()


def _use_server(monkeypatch, port):
  """Lets `s3://` be a server on this machine."""
  monkeypatch.setenv('AWS_ENDPOINT_URL', f'http://127.0.0.1:{port}')
  monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')
  monkeypatch.setattr(places, '_connect', places._connect.__wrapped__)


def test_corpus_of_a_store(tmp_path, monkeypatch):
  buckets.mount(monkeypatch, tmp_path)
  # Some groups have several records.
  directory = group_lines(tmp_path / 'b', raw_records(60), max_record_bytes=90)
  here, there = GroupedCorpus(directory), GroupedCorpus('bucket://b/out/')
  assert there.directory == 'bucket://b/out'
  assert there.fingerprint == here.fingerprint
  assert list(there.stream()) == list(here.stream())
  for client_id in here.client_ids:
    assert there.examples(client_id) == here.examples(client_id)
  assert verify_corpus('bucket://b/out') == verify_corpus(directory)
  (directory / 'groups-00001-of-00003.tfrecord').unlink()
  with pytest.raises(UserError, match=r"'bucket://b/out' must hold the shard "):
    GroupedCorpus('bucket://b/out')
  with pytest.raises(
    UserError,
    match=r"^'bucket://b/x' is not a grouped corpus: it has no manifest\.json",
  ):
    GroupedCorpus('bucket://b/x')
