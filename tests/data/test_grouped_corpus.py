"""Access to a corpus by client, and what is said when it is none."""

import copy
import hashlib
import json
import pathlib
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grouping_jobs import group_lines

from tff_fedfish.data.corpus_index import (
  INDEX_SCHEMA,
  fingerprint_of_index,
)
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import (
  read_manifest,
)
from tff_fedfish.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]

_TEXTS = {
  'http://b/': ['one two three', 'four'],
  'http://a/': ['five'],
  'http://c/': ['six seven', 'eight', 'nine'],
}


@pytest.fixture(scope='module')
def _whole(tmp_path_factory):
  directory = tmp_path_factory.mktemp('corpus')
  lines = [
    {'text': text, 'url': url, 'timestamp': str(i)}
    for url, texts in _TEXTS.items()
    for i, text in enumerate(texts)
  ]
  return group_lines(directory, lines, num_shards=2)


@pytest.fixture
def directory(_whole, tmp_path):
  """A copy of a corpus of three clients, to be damaged at will."""
  copy = tmp_path / 'corpus'
  copy.mkdir()
  for path in _whole.iterdir():
    (copy / path.name).write_bytes(path.read_bytes())
  return copy


def _change_index(directory, name, change):
  """Applies `change` to the values of a column, in place."""
  path = directory / 'index.parquet'
  table = pq.read_table(path)
  values = table.column(name).to_pylist()
  change(values)
  position = table.column_names.index(name)
  column = pa.array(values, INDEX_SCHEMA.field(name).type)
  pq.write_table(table.set_column(position, name, column), path)


def _edit_manifest(directory, **changes):
  path = directory / 'manifest.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestGroupedCorpus:
  def test_clients(self, directory):
    corpus = GroupedCorpus(directory)
    assert list(corpus.client_ids) == [b'a', b'b', b'c']
    assert [corpus.num_examples(c) for c in corpus.client_ids] == [1, 2, 3]
    # three + one, and two + one + one words.
    assert [corpus.num_words(c) for c in corpus.client_ids] == [1, 4, 4]
    assert corpus.sizes('num_examples').tolist() == [1, 2, 3]
    assert corpus.sizes('num_words').tolist() == [1, 4, 4]
    assert corpus.directory == directory
    assert corpus.manifest == read_manifest(directory)

  def test_fingerprint(self, directory):
    # Ids of a byte each, then examples and words, of a, b and c.
    numbers = (1, b'a', 1, b'b', 1, b'c', 1, 2, 3, 1, 4, 4)
    message = b''.join(
      n if isinstance(n, bytes) else n.to_bytes(8, 'big') for n in numbers
    )
    expected = hashlib.sha256(message).hexdigest()
    _edit_manifest(directory, fingerprint='')
    assert GroupedCorpus(directory).fingerprint == expected
    table = pq.read_table(directory / 'index.parquet')
    assert fingerprint_of_index(table) == expected

  def test_fingerprint_of_the_manifest(self, directory):
    _edit_manifest(directory, fingerprint='of the manifest')
    assert GroupedCorpus(directory).fingerprint == 'of the manifest'
    # It is that of another index.
    _change_index(directory, 'num_words', lambda words: words.reverse())
    found = GroupedCorpus(directory).fingerprint
    assert found == fingerprint_of_index(
      pq.read_table(directory / 'index.parquet')
    )

  def test_examples(self, directory):
    assert GroupedCorpus(str(directory)).examples(b'b') == [
      {'text': b'one two three', 'timestamp': b'0', 'url': b'http://b/'},
      {'text': b'four', 'timestamp': b'1', 'url': b'http://b/'},
    ]

  def test_client_dataset(self, directory):
    import tensorflow as tf

    corpus = GroupedCorpus(directory)
    dataset = corpus.client_dataset(b'c')
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
    assert found == corpus.examples(b'c')

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
    ids = pa.array([b'B', b'b', b'c'], pa.binary())
    pq.write_table(index.set_column(0, 'group_id', ids), path)
    with pytest.raises(UserError, match=r"must hold client b'B' at byte \d+"):
      GroupedCorpus(directory).examples(b'B')

  def test_row_into_the_middle_of_a_record(self, directory):
    def shift(offsets):
      offsets[0] += 5

    _change_index(directory, 'offset', shift)
    with pytest.raises(
      UserError, match=r'byte \d+ is damaged: its length fails the checksum'
    ):
      GroupedCorpus(directory).examples(b'a')

  def test_row_behind_the_end_of_a_shard(self, directory):
    def shift(offsets):
      offsets[0] = 1 << 40

    _change_index(directory, 'offset', shift)
    with pytest.raises(
      UserError, match=f'the one at byte {1 << 40} is damaged: the file ends'
    ):
      GroupedCorpus(directory).examples(b'a')

  @pytest.mark.parametrize(
    ('column', 'value'),
    [('shard', 2), ('shard', -1), ('offset', -1), ('part', 1)],
  )
  def test_row_that_fits_no_shard(self, directory, column, value):
    def replace(values):
      values[0] = value

    _change_index(directory, column, replace)
    with pytest.raises(
      UserError,
      match='must hold the index.parquet of its 3 records, but that names '
      'other ones: it belongs to another corpus. Copy',
    ):
      GroupedCorpus(directory)

  def test_index_of_another_number_of_records(self, directory):
    path = directory / 'index.parquet'
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(UserError, match='its 3 records, but that has 2 rows'):
      GroupedCorpus(directory)

  def test_index_replaced_while_open(self, directory):
    corpus = GroupedCorpus(directory)
    path = directory / 'index.parquet'
    pq.write_table(pq.read_table(path).slice(1), path)
    assert len(corpus.examples(b'a')) == 1
    with pytest.raises(UserError, match='index.parquet was replaced'):
      corpus.sizes('num_words')


class TestNotACorpus:
  def test_missing_directory(self, tmp_path):
    with pytest.raises(
      UserError,
      match="nowhere' is not a grouped corpus: it does not exist. "
      'Run `fedfish group`',
    ):
      GroupedCorpus(tmp_path / 'nowhere')

  @pytest.mark.parametrize(
    'path, command',
    [
      ('s3://b/x/c4', ', such as by `aws s3 cp --recursive s3://b/x/c4 c4`'),
      ('hdfs://c4/', ', such as by `hdfs dfs -get hdfs://c4 c4`'),
      ('ftp://b/c4', ' to one'),
    ],
  )
  def test_of_another_file_system(self, path, command):
    with pytest.raises(UserError) as raised:
      GroupedCorpus(path)
    url = path.rstrip('/')
    assert str(raised.value) == (
      f'A grouped corpus is read from a disk, but {url!r} is not on one. Copy '
      f'it{command}, check the copy by `fedfish verify`, and name that.'
    )

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
