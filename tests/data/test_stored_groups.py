"""Groups of one record and of several, read by client and as they are stored.

The corpora are written here, record by record.
"""

import json
import pickle
from concurrent import futures

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import Counts, Manifest, Shard
from tff_fedfish.errors import UserError


def _write_corpus(directory, shards):
  """Writes shards, each a list of (group id, part or None, texts)."""
  directory.mkdir()
  rows, entries = [], []
  for shard_num, groups in enumerate(shards):
    name = f'groups-{shard_num:05d}-of-{len(shards):05d}.tfrecord'
    offset = 0
    with (directory / name).open('wb') as file:
      for group_id, part, texts in groups:
        examples = [records.encode_example({'text': text}) for text in texts]
        payload = records.encode_group_record(group_id, examples, part)
        num_words = sum(len(text.split()) for text in texts)
        rows.append(
          (group_id, part or 0, shard_num, offset)
          + (len(texts), len(payload), num_words)
        )
        offset += records.write_record(file, payload)
    entries.append(
      Shard(name=name, sha256='', num_bytes=offset, num_records=len(groups))
    )
  _write_index(directory, sorted(rows))
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


def _write_index(directory, rows, rows_at_once=2):
  columns = zip(*rows, strict=True) if rows else [[]] * len(INDEX_SCHEMA)
  pq.write_table(
    pa.table(
      [
        pa.array(column, field.type)
        for column, field in zip(columns, INDEX_SCHEMA, strict=True)
      ],
      schema=INDEX_SCHEMA,
    ),
    directory / 'index.parquet',
    row_group_size=rows_at_once,
  )


_PARTS = [
  [(b'd', 0, [b'1', b'2']), (b'd', 1, [b'3']), (b'd', 2, [b'4 5'])],
  [(b'a', None, [b'6']), (b'b', 0, [b'7']), (b'b', 1, [b'8'])],
  [],
  [(b'c', None, [b'9 10 11'])],
]


class TestParts:
  @pytest.fixture
  def corpus(self, tmp_path):
    return GroupedCorpus(_write_corpus(tmp_path / 'corpus', _PARTS))

  def test_sizes(self, corpus):
    assert list(corpus.client_ids) == [b'a', b'b', b'c', b'd']
    assert corpus.sizes('num_examples').tolist() == [1, 2, 1, 4]
    # '9 10 11' is three words; '1', '2', '3' and '4 5' are five.
    assert corpus.sizes('num_words').tolist() == [1, 2, 3, 5]
    assert corpus.num_words(b'd') == 5
    assert corpus.num_examples(b'b') == 2

  def test_sizes_are_those_of_the_index(self, corpus):
    table = pq.read_table(corpus.directory / 'index.parquet')
    for name in ('num_examples', 'num_bytes', 'num_words'):
      sums = table.group_by('group_id').aggregate([(name, 'sum')])
      expected = [
        n for _, n in sorted(zip(*sums.to_pydict().values(), strict=True))
      ]
      sizes = corpus.sizes(name)
      assert (sizes.dtype, sizes.tolist()) == (np.int64, expected)

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
    found = list(corpus.stream())
    assert [client_id for client_id, _ in found] == [b'd', b'a', b'b', b'c']
    for client_id, examples in found:
      assert examples == corpus.examples(client_id)

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
      match=r'all parts .* at byte \d+ is part [12] of .* without those before',
    ):
      list(GroupedCorpus(directory).stream())

  def test_stream_of_a_damaged_record(self, corpus):
    for path in corpus.directory.glob('*.tfrecord'):
      path.write_bytes(path.read_bytes().replace(b'10', b'01'))
    stream = corpus.stream()
    assert [next(stream)[0] for _ in range(3)] == [b'd', b'a', b'b']
    with pytest.raises(
      UserError, match='groups-00003.* byte 0 is damaged: its content fails'
    ):
      next(stream)

  def test_no_clients(self, tmp_path):
    corpus = GroupedCorpus(_write_corpus(tmp_path / 'empty', [[]]))
    assert list(corpus.client_ids) == list(corpus.stream()) == []
    assert corpus.sizes('num_words').tolist() == []
    assert b'' not in corpus.client_ids

  def test_one_client(self, tmp_path):
    groups = [(b'', None, [b'text'])]
    corpus = GroupedCorpus(_write_corpus(tmp_path / 'one', [groups]))
    assert list(corpus.stream()) == [(b'', [{'text': b'text'}])]
    assert corpus.examples(b'') == [{'text': b'text'}]

  def test_processes_may_be_handed_one(self, corpus):
    corpus.sizes('num_words')
    copy = pickle.loads(pickle.dumps(corpus))
    assert list(copy.client_ids) == list(corpus.client_ids)
    assert list(copy.stream()) == list(corpus.stream())
    assert (
      copy.sizes('num_bytes').tolist() == corpus.sizes('num_bytes').tolist()
    )

  def test_threads_share_one(self, corpus):
    def read(client_id):
      return corpus.examples(client_id), corpus.num_words(client_id)

    ids = list(corpus.client_ids) * 25
    with futures.ThreadPoolExecutor(8) as pool:
      found = list(pool.map(read, ids))
    assert found == [read(client_id) for client_id in ids]

  @pytest.mark.parametrize(
    ('payload', 'found'),
    [
      (records.encode_example({'a': b'b'}), 'no feature list'),
      (b'\xff', 'not a SequenceExample'),
      (records.encode_group_record(b'a', [b'\xff']), 'not a tf.train.Example'),
    ],
  )
  def test_record_of_something_else(self, tmp_path, payload, found):
    directory = _write_corpus(
      tmp_path / 'c', [[(b'a', None, [b'long enough'])]]
    )
    (path,) = directory.glob('*.tfrecord')
    with path.open('wb') as file:
      num_bytes = records.write_record(file, payload)
    manifest = json.loads((directory / 'manifest.json').read_bytes())
    shard = manifest['shards'][0] | {'num_bytes': num_bytes}
    (directory / 'manifest.json').write_text(
      json.dumps(manifest | {'shards': [shard]})
    )
    corpus = GroupedCorpus(directory)
    match = rf'must hold a group at byte 0, but .*\({found}.*Run `fedfish group'
    with pytest.raises(UserError, match=match):
      corpus.examples(b'a')
    with pytest.raises(UserError, match=match):
      list(corpus.stream())
