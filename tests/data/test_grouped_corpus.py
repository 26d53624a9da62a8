"""Access to a corpus by client, and what is said when it is none."""

import copy
import json
import pathlib
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.group_job import run_group_job
from pipelines.job import GroupJob
from tff_fedfish.data.grouped_corpus import ClientIds, GroupedCorpus
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]

_TEXTS = {
  'http://b/': ['one two three', 'four'],
  'http://a/': ['five'],
  'http://Ü/': ['six seven', 'eight', 'nine'],
}


@pytest.fixture(scope='module')
def _whole(tmp_path_factory):
  directory = tmp_path_factory.mktemp('corpus')
  raw = directory / 'raw.json'
  lines = [
    {'text': text, 'url': url, 'timestamp': str(i)}
    for url, texts in _TEXTS.items()
    for i, text in enumerate(texts)
  ]
  raw.write_text('\n'.join(map(json.dumps, lines)))
  job = GroupJob(
    source_name='c4',
    paths=(str(raw),),
    key='host',
    num_shards=2,
    max_record_bytes=1 << 20,
  )
  run_group_job(job, directory / 'out')
  return directory / 'out'


@pytest.fixture
def directory(_whole, tmp_path):
  """A copy of a corpus of three clients, to be damaged at will."""
  copy = tmp_path / 'corpus'
  copy.mkdir()
  for path in _whole.iterdir():
    (copy / path.name).write_bytes(path.read_bytes())
  return copy


def _edit_manifest(directory, **changes):
  path = directory / 'manifest.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestGroupedCorpus:
  def test_clients(self, directory):
    corpus = GroupedCorpus(directory)
    assert list(corpus.client_ids) == [b'a', b'b', 'ü'.encode()]
    assert [corpus.num_examples(c) for c in corpus.client_ids] == [1, 2, 3]
    # three + one, and two + one + one words.
    assert [corpus.num_words(c) for c in corpus.client_ids] == [1, 4, 4]
    assert corpus.sizes('num_examples').tolist() == [1, 2, 3]
    assert corpus.sizes('num_words').tolist() == [1, 4, 4]
    assert corpus.directory == directory
    assert corpus.manifest == read_manifest(directory)

  def test_examples(self, directory):
    assert GroupedCorpus(str(directory)).examples(b'b') == [
      {'text': b'one two three', 'timestamp': b'0', 'url': b'http://b/'},
      {'text': b'four', 'timestamp': b'1', 'url': b'http://b/'},
    ]

  def test_client_dataset(self, directory):
    import tensorflow as tf

    corpus = GroupedCorpus(directory)
    dataset = corpus.client_dataset('ü'.encode())
    spec = tf.TensorSpec([], tf.string)
    assert dataset.element_spec == {
      'text': spec,
      'timestamp': spec,
      'url': spec,
    }
    assert int(dataset.cardinality()) == 3
    found = [
      {name: value.numpy() for name, value in example.items()}
      for example in dataset
    ]
    assert found == corpus.examples('ü'.encode())

  def test_cohort(self, directory):
    corpus = GroupedCorpus(directory)
    cohort = corpus.cohort(seed=1, round_num=2, cohort_size=2)
    assert len(set(cohort)) == 2
    assert set(cohort) < set(corpus.client_ids)
    assert corpus.cohort(seed=1, round_num=2, cohort_size=2) == cohort

  @pytest.mark.parametrize('client_id', [b'', b'aa', b'zz', 'a', 0])
  def test_unknown_client(self, directory, client_id):
    corpus = GroupedCorpus(directory)
    for method in (
      corpus.examples,
      corpus.client_dataset,
      corpus.num_examples,
      corpus.num_words,
    ):
      with pytest.raises(KeyError, match=r'is not a client of .*/corpus'):
        method(client_id)

  def test_copy_works_like_the_original(self, directory):
    corpus = copy.deepcopy(GroupedCorpus(directory))
    assert corpus.examples(b'a')[0]['text'] == b'five'

  def test_opens_without_tensorflow_and_beam(self, directory):
    code = (
      'import sys; from tff_fedfish.data.grouped_corpus import GroupedCorpus; '
      f'GroupedCorpus({str(directory)!r}).examples(b"a"); '
      'print([m for m in ("tensorflow", "apache_beam") if m in sys.modules])'
    )
    found = subprocess.run(
      [sys.executable, '-c', code], cwd=_ROOT, capture_output=True, text=True
    )
    assert (found.stdout, found.stderr) == ('[]\n', '')

  def test_damaged_record(self, directory):
    corpus = GroupedCorpus(directory)
    for path in directory.glob('*.tfrecord'):
      path.write_bytes(path.read_bytes().replace(b'five', b'FIVE'))
    with pytest.raises(UserError, match=r'groups-0000.*fails the checksum'):
      corpus.examples(b'a')

  def test_index_of_another_corpus(self, directory):
    path = directory / 'index.parquet'
    index = pq.read_table(path)
    ids = pa.array([b'B', b'b', 'ü'.encode()], pa.binary())
    pq.write_table(index.set_column(0, 'group_id', ids), path)
    with pytest.raises(UserError, match=r"must hold client b'B' at byte \d+"):
      GroupedCorpus(directory).examples(b'B')


class TestNotACorpus:
  def test_missing_directory(self, tmp_path):
    with pytest.raises(
      UserError,
      match="nowhere' is not a grouped corpus: it does not exist. "
      'Run `fedfish group`',
    ):
      GroupedCorpus(tmp_path / 'nowhere')

  def test_file(self, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='not a grouped corpus: it is a file'):
      GroupedCorpus(tmp_path / 'file')

  def test_no_manifest(self, directory):
    (directory / 'manifest.json').unlink()
    with pytest.raises(UserError, match='it has no manifest.json'):
      GroupedCorpus(directory)

  @pytest.mark.parametrize(
    'text', ['', '{', '[]', '{}', '{"schema_version": "1"}', '\xff']
  )
  def test_unreadable_manifest(self, directory, text):
    (directory / 'manifest.json').write_text(text, encoding='latin-1')
    with pytest.raises(UserError, match='it has an unreadable manifest.json'):
      GroupedCorpus(directory)

  def test_manifest_that_lacks_something(self, directory):
    _edit_manifest(directory, counts={'records_in': 3})
    with pytest.raises(UserError, match='it has an unreadable manifest.json'):
      GroupedCorpus(directory)

  def test_newer_schema(self, directory):
    _edit_manifest(directory, schema_version=2, counts='of another shape')
    with pytest.raises(
      UserError,
      match=r'version 1 or older.* newer version of fedfish '
      r'\(schema version 2\). Upgrade',
    ):
      GroupedCorpus(directory)

  def test_missing_shard(self, directory):
    (directory / 'groups-00001-of-00002.tfrecord').unlink()
    with pytest.raises(UserError, match='shard groups-00001.*it is missing'):
      GroupedCorpus(directory)

  def test_cut_shard(self, directory):
    path = directory / 'groups-00001-of-00002.tfrecord'
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
      UserError, match=f'of {size} bytes, but it has {size - 3} bytes'
    ):
      GroupedCorpus(directory)

  def test_missing_index(self, directory):
    (directory / 'index.parquet').unlink()
    with pytest.raises(UserError, match='index.parquet, but it is missing'):
      GroupedCorpus(directory)

  def test_index_of_something_else(self, directory):
    pq.write_table(pa.table({'a': [1]}), directory / 'index.parquet')
    with pytest.raises(UserError, match='index.parquet, but it is unreadable'):
      GroupedCorpus(directory)


class TestClientIds:
  _IDS = [b'', b'a', b'a\0', b'b', b'\xff']

  def _ids(self):
    return ClientIds(pa.array(self._IDS, pa.binary()))

  def test_is_a_sequence(self):
    ids = self._ids()
    assert list(ids) == self._IDS
    assert len(ids) == 5
    assert ids[-1] == b'\xff'
    assert ids[1:4:2] == [b'a', b'b']
    assert list(reversed(ids)) == self._IDS[::-1]
    assert [ids.index(client_id) for client_id in self._IDS] == [0, 1, 2, 3, 4]

  def test_finds_what_is_there_only(self):
    ids = self._ids()
    assert all(client_id in ids for client_id in self._IDS)
    absent = [b'A', b'a\1', b'aa', b'\xff\0', 'a', None]
    assert not any(client_id in ids for client_id in absent)

  @pytest.mark.parametrize('index', [5, -6])
  def test_index_out_of_range(self, index):
    with pytest.raises(IndexError, match=f'{index} is out of range for 5'):
      self._ids()[index]

  def test_index_of_an_unknown_client(self):
    with pytest.raises(ValueError, match="b'c' is not a client id"):
      self._ids().index(b'c')
    with pytest.raises(ValueError, match="b'a' is not a client id"):
      self._ids().index(b'a', 2)
