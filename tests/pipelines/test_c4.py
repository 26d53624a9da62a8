"""C4 as it comes in JSON, Parquet and TFRecords, and its own split."""

import collections
import gzip
import json
import urllib.parse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import c4
from pipelines.source import Drop
from tff_fedfish.data import records
from tff_fedfish.errors import UserError

_MAX_BYTES = 1 << 20


def _read(path, max_document_bytes=_MAX_BYTES):
  return [
    (num, record.reason if isinstance(record, Drop) else record)
    for num, record in c4.SOURCE.read_records(str(path), max_document_bytes)
  ]


def test_records_and_drops_of_a_file(tmp_path):
  path = tmp_path / 'a.json'
  lines = [
    b'{"text": "a", "url": "u", "timestamp": 3, "author": "b", "x": 1}',
    b'',
    b'[]',
    b'{"text": ""}',
    b'{"text": "abcdef"}',
    b'{"text": "b", "title": "c"}',
  ]
  path.write_bytes(b'\n'.join(lines))
  assert _read(path, 5) == [
    (1, {'text': 'a', 'timestamp': '3', 'url': 'u', 'author': 'b'}),
    (2, 'empty_line'),
    (3, 'not_an_object'),
    (4, 'empty_text'),
    (5, 'document_too_large'),
    (6, {'text': 'b', 'timestamp': '', 'url': '', 'title': 'c'}),
  ]


def test_real_c4(shared_data, tmp_path):
  path = shared_data('c4_en_sample_a') / 'c4-train.00000-of-00001.json.gz'
  found = _read(path)
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    lines = [json.loads(line) for line in file]
  assert [num for num, _ in found] == [*range(1, 1001)]
  assert [record for _, record in found] == lines
  hosts = {urllib.parse.urlsplit(record['url']).netloc for _, record in found}
  assert len(hosts) == 998
  # The same as a table, and as TensorFlow Datasets stores it.
  pq.write_table(
    pa.Table.from_pylist(lines), tmp_path / 'a', row_group_size=300
  )
  assert _read(tmp_path / 'a') == found
  with open(tmp_path / 'b', 'wb') as file:
    for line in lines:
      features = {name: value.encode() for name, value in line.items()}
      features['content-length'] = b'17'
      features['content-type'] = b'text/html'
      records.write_record(file, records.encode_example(features))
  assert _read(tmp_path / 'b') == found


def test_debian_descriptions(shared_data):
  paths = sorted(shared_data('debian_descriptions').glob('c4-*.json.gz'))
  counts = collections.Counter()
  for path in paths:
    for _, record in c4.SOURCE.read_records(str(path), _MAX_BYTES):
      assert not isinstance(record, Drop)
      counts[c4.split(str(path), record)] += 1
  assert counts == {'train': 26_569, 'validation': 1_398}


def test_other_columns_of_a_table_cost_nothing(tmp_path):
  record = {
    'text': 'a',
    'timestamp': '2019-04-25T12:57:54Z',
    'url': 'http://example.com',
    'author': 'b',
    'title': 'c',
  }
  table = pa.Table.from_pylist([record]).append_column(
    'crawled_for', pa.array([1], pa.duration('ns'))
  )
  pq.write_table(table, tmp_path / 'a')
  assert _read(tmp_path / 'a') == [(1, record)]


@pytest.mark.parametrize(
  ('path', 'part'),
  [
    ('c4-train.00000-of-01024.json.gz', 'train'),
    ('/validation/c4-train.00000-of-01024.json.gz', 'train'),
    ('c4-validation.00000-of-00008.json.gz', 'validation'),
    ('gs://b/c4/en/3.1.0/c4-train.tfrecord-00003-of-01024', 'train'),
    ('Train_part-1.parquet', 'train'),
    ('c4-de-validation.json', 'validation'),
  ],
)
def test_split(path, part):
  assert c4.split(path, {'text': 'a'}) == part
  assert part in c4.SOURCE.split_names


@pytest.mark.parametrize(
  ('name', 'found'),
  [
    ('a.json', 'neither'),
    ('training.json', 'neither'),
    ('train-and-validation.json', 'both'),
  ],
)
def test_name_without_split(name, found):
  message = (
    "file names, which must hold the word 'train' or 'validation', but "
    f"'{name}' holds {found}. Rename the file, as in"
  )
  with pytest.raises(UserError, match=message):
    c4.split(f'/train/{name}', {'text': 'a'})
