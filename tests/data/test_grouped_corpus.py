"""Access to a corpus by client, and errors where there is none.

Most corpora are written here, record by record.
"""

import hashlib
import pathlib
import pickle
from concurrent import futures

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_corpora import edit_manifest
from group_records import encode_example, encode_group_record, write_record

from tff_fedfish.data import grouped_corpus, places
from tff_fedfish.data.corpus_index import INDEX_SCHEMA, fingerprint_of_index
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import Counts, Manifest, Shard, read_manifest
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import UserError

_ROOT = pathlib.Path(__file__).parents[2]
_STORED = _ROOT / 'tests' / 'fixtures' / 'corpora'


def _write_corpus(directory, shards):
  """Writes shards, each a list of (group id, part or None, texts)."""
  directory.mkdir()
  rows, entries = [], []
  for shard_num, groups in enumerate(shards):
    name = f'groups-{shard_num:05d}-of-{len(shards):05d}.tfrecord'
    offset = 0
    with (directory / name).open('wb') as file:
      for group_id, part, texts in groups:
        examples = [encode_example({'text': text}) for text in texts]
        payload = encode_group_record(group_id, examples, part)
        num_words = sum(len(text.split()) for text in texts)
        rows.append(
          (group_id, part or 0, shard_num, offset)
          + (len(texts), len(payload), num_words)
        )
        offset += write_record(file, payload)
    entries.append(
      Shard(name=name, sha256='', num_bytes=offset, num_records=len(groups))
    )
  columns = zip(*sorted(rows), strict=True) if rows else [[]] * 7
  arrays = map(pa.array, columns, INDEX_SCHEMA.types)
  pq.write_table(
    pa.table(list(arrays), schema=INDEX_SCHEMA),
    directory / 'index.parquet',
    row_group_size=2,
  )
  num_examples = sum(row[4] for row in rows)
  manifest = Manifest(
    corpus='c4',
    key='host',
    feature_names=('text',),
    counts=Counts(
      records_in=num_examples,
      records_out=num_examples,
      num_groups=sum(row[1] == 0 for row in rows),
      num_records=len(rows),
      drops={},
    ),
    shards=tuple(entries),
    options={},
    num_input_files=0,
    inputs=(),
    drop_examples={},
  )
  (directory / 'manifest.json').write_bytes(manifest.to_bytes())
  return directory


_SHARDS = [
  [(b'd', 0, [b'1', b'2']), (b'd', 1, [b'3']), (b'd', 2, [b'4 5'])],
  [(b'a', None, [b'6']), (b'b', 0, [b'7']), (b'b', 1, [b'8'])],
  [],
  [(b'c', None, [b'9 10 11'])],
]


@pytest.fixture
def corpus(tmp_path):
  return GroupedCorpus(_write_corpus(tmp_path / 'corpus', _SHARDS))


def _change_index(directory, change):
  path = directory / 'index.parquet'
  rows = pq.read_table(path).to_pylist()
  change(rows)
  pq.write_table(pa.Table.from_pylist(rows, INDEX_SCHEMA), path)


class TestContents:
  def test_sizes(self, corpus):
    assert list(corpus.client_ids) == [b'a', b'b', b'c', b'd']
    assert corpus.sizes('num_examples').tolist() == [1, 2, 1, 4]
    # '9 10 11' is three words; '1', '2', '3' and '4 5' are five.
    assert corpus.sizes('num_words').tolist() == [1, 2, 3, 5]
    assert corpus.sizes('num_bytes').dtype == np.int64
    assert corpus.manifest == read_manifest(corpus.directory)

  def test_examples(self, corpus):
    texts = {
      client_id: [example['text'] for example in corpus.examples(client_id)]
      for client_id in corpus.client_ids
    }
    assert texts == {
      b'a': [b'6'],
      b'b': [b'7', b'8'],
      b'c': [b'9 10 11'],
      b'd': [b'1', b'2', b'3', b'4 5'],
    }

  def test_stream_is_in_stored_order(self, corpus):
    clients = list(corpus.stream())
    assert [client_id for client_id, _ in clients] == [b'd', b'a', b'b', b'c']
    for client_id, examples in clients:
      assert examples == corpus.examples(client_id)

  @pytest.mark.parametrize('max_open', [3, 4])
  def test_stream_by_id(self, corpus, monkeypatch, max_open):
    monkeypatch.setattr(grouped_corpus, '_max_open', lambda: max_open)
    clients = list(corpus.stream(by_id=True))
    assert clients == [(i, corpus.examples(i)) for i in corpus.client_ids]

  @pytest.mark.parametrize('groups', [[], [(b'', None, [b'text'])]])
  def test_few_clients(self, tmp_path, groups):
    corpus = GroupedCorpus(_write_corpus(tmp_path / 'c', [groups]))
    expected = [(i, [{'text': text} for text in t]) for i, _, t in groups]
    assert list(corpus.stream()) == expected
    assert corpus.sizes('num_words').tolist() == [1] * len(groups)
    assert list(corpus.client_ids) == [group[0] for group in groups]

  def test_client_dataset(self, corpus):
    import tensorflow as tf

    dataset = corpus.client_dataset(b'd')
    assert dataset.element_spec == {'text': tf.TensorSpec([], tf.string)}
    assert int(dataset.cardinality()) == 4
    texts = [example['text'].numpy() for example in dataset]
    assert texts == [b'1', b'2', b'3', b'4 5']

  @pytest.mark.parametrize('client_id', [b'aa', 'a'])
  def test_unknown_client(self, corpus, client_id):
    with pytest.raises(KeyError, match=r'is not a client of .*/corpus'):
      corpus.examples(client_id)

  def test_fingerprint(self, corpus):
    path = corpus.directory / 'index.parquet'
    expected = fingerprint_of_index(pq.read_table(path))
    assert corpus.fingerprint == expected
    # The manifest's is taken as long as the index is the one of the manifest.
    index_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(
      corpus.directory,
      lambda m: m.update(fingerprint='own', index_sha256=index_sha256),
    )
    assert GroupedCorpus(corpus.directory).fingerprint == 'own'
    _change_index(corpus.directory, lambda rows: rows[0].update(num_bytes=0))
    assert GroupedCorpus(corpus.directory).fingerprint == expected

  def test_processes_and_threads_share_one(self, corpus):
    copy = pickle.loads(pickle.dumps(corpus))
    assert list(copy.stream()) == list(corpus.stream())

    def read(client_id):
      return corpus.examples(client_id), copy.examples(client_id)

    ids = list(corpus.client_ids) * 25
    with futures.ThreadPoolExecutor(8) as pool:
      assert list(pool.map(read, ids)) == list(map(read, ids))


def test_corpus_of_an_earlier_version():
  """Grouped by 47f4a33, whose numbers these are: no hash in the manifest."""
  from tff_fedfish.data.client_sequences import ClientSequences
  from tff_fedfish.data.tokenizers import load_tokenizer

  corpus = GroupedCorpus(_STORED / '47f4a33')
  expected = 'd06dad421decdf6af5fa025334cc7128e28cd149b2338bb2c1e12ab3a96cf021'
  assert corpus.fingerprint == corpus.manifest.fingerprint == expected
  assert corpus.manifest.order == 1
  checked = verify_corpus(corpus.directory)
  # Client d has more than is stored in one record.
  assert (checked.num_groups, checked.num_records) == (7, 9)
  assert (checked.num_examples, checked.num_words) == (17, 169)
  (vocabulary,) = _STORED.parent.glob('runs/*/corpus/vocabulary')
  tokenizer = load_tokenizer(vocabulary)
  clients = ClientSequences(corpus, tokenizer, sequence_length=16)
  hasher = hashlib.sha256()
  for client_id in corpus.client_ids:
    rows = clients.sequences(client_id)
    hasher.update(rows.tokens.tobytes() + rows.num_targets.tobytes())
  assert hasher.hexdigest() == (
    '53344d9035ebdbaf492655f2f76929777b93eeff8dae0206c6b2c24bcff3d7f4'
  )


class TestDamagedRecords:
  @pytest.mark.parametrize(
    'groups',
    [
      [(b'a', 1, [])],
      [(b'a', 0, []), (b'a', 2, [])],
      [(b'a', 0, []), (b'b', 1, [])],
    ],
  )
  def test_stream_misses_a_part(self, tmp_path, groups):
    directory = _write_corpus(tmp_path / 'c', [[(b'A', None, []), *groups]])
    with pytest.raises(
      UserError,
      match=r'all parts .* part [12] comes in place of part [01]. Copy',
    ):
      list(GroupedCorpus(directory).stream())

  def test_changed_byte(self, corpus):
    for path in corpus.directory.glob('*.tfrecord'):
      path.write_bytes(path.read_bytes().replace(b'10', b'01'))
    stream = corpus.stream()
    assert [next(stream)[0] for _ in range(3)] == [b'd', b'a', b'b']
    words = 'groups-00003.* byte 0 is damaged: its content fails the checksum'
    with pytest.raises(UserError, match=words):
      next(stream)
    with pytest.raises(UserError, match=words):
      corpus.examples(b'c')

  @pytest.mark.parametrize(
    ('payload', 'problem'),
    [
      (encode_example({'a': b'b'}), 'no feature list'),
      (b'\xff', 'not a SequenceExample'),
      (encode_group_record(b'a', [b'\xff']), 'not a tf.train.Example'),
    ],
  )
  def test_record_of_something_else(self, tmp_path, payload, problem):
    directory = _write_corpus(tmp_path / 'c', [[(b'a', None, [b'long'])]])
    (path,) = directory.glob('*.tfrecord')
    with path.open('wb') as file:
      num_bytes = write_record(file, payload)
    edit_manifest(
      directory, lambda m: m['shards'][0].update(num_bytes=num_bytes)
    )
    corpus = GroupedCorpus(directory)
    words = rf'must hold a group at byte 0, but .*\({problem}.*Run `fedfish gro'
    with pytest.raises(UserError, match=words):
      corpus.examples(b'a')
    with pytest.raises(UserError, match=words):
      list(corpus.stream())

  @pytest.mark.parametrize(
    'change', [{'shard': 4}, {'shard': -1}, {'part': 1}, {'offset': -1}]
  )
  def test_row_that_fits_no_shard(self, corpus, change):
    _change_index(corpus.directory, lambda rows: rows[0].update(change))
    with pytest.raises(
      UserError,
      match='must hold the index.parquet of its 7 records, but that names '
      'other ones: it belongs to another corpus. Copy',
    ):
      GroupedCorpus(corpus.directory)

  def test_index_replaced_while_open(self, corpus):
    _change_index(corpus.directory, lambda rows: rows.pop())
    assert len(corpus.examples(b'a')) == 1
    with pytest.raises(UserError, match='index.parquet was replaced'):
      corpus.sizes('num_words')
    with pytest.raises(UserError, match='its 7 records, but that names other'):
      GroupedCorpus(corpus.directory)


def test_a_shard_of_another_size(corpus):
  name = 'groups-00001-of-00004.tfrecord'
  (corpus.directory / name).write_bytes(b'abc')
  with pytest.raises(UserError, match=f'shard {name} of .*it has 3 bytes'):
    GroupedCorpus(corpus.directory)


def test_a_store_that_does_not_answer(monkeypatch):
  patience = []

  def connect(root, is_patient):
    patience.append(is_patient)
    raise OSError('no answer')

  monkeypatch.setattr(places, '_connect', connect)
  with pytest.raises(places.StoreError, match="'s3://b/c/manifest.json': no a"):
    GroupedCorpus('s3://b/c')
  # Seconds, not half a minute.
  assert patience == [False]


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    (
      'nowhere',
      "nowhere' is not a grouped corpus: it does not exist. Run "
      r'`fedfish group` .* \(of `train`: `--config.data.directory`\)',
    ),
    ('file', 'is not a grouped corpus: it is a file'),
  ],
)
def test_no_directory(tmp_path, name, words):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match=words):
    GroupedCorpus(tmp_path / name)
