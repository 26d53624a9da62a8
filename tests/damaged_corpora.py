"""A corpus to damage, and ways to do it."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from group_records import encode_group_record, read_group_records, write_record

from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import UserError

# By the SHA-256 of the names, the first three are of shard 0 of 2.
TEXTS = {
  'a.org': ['one two three', 'four'],
  # 1, 81 and 2 words; too long together, so that each is a record.
  'c.org': ['five', 'x ' * 80 + 'y', 'six seven'],
  'g.org': ['eight\u00a0nine'],
  'd.org': ['ten'],
  'ü.org': ['eleven', 'eleven'],
}


def index_rows(corpus):
  """Returns the rows of the index, as dicts."""
  return pq.read_table(corpus / 'index.parquet').to_pylist()


def write_index(corpus, rows):
  """Replaces the index, and its hash in the manifest."""
  path = corpus / 'index.parquet'
  pq.write_table(pa.Table.from_pylist(rows, INDEX_SCHEMA), path)
  sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
  edit_manifest(corpus, lambda manifest: manifest.update(index_sha256=sha256))


def shard_path(corpus, shard_num):
  """Returns the path of one of the two shards."""
  return corpus / f'groups-{shard_num:05d}-of-00002.tfrecord'


def rows_of_shard(corpus, shard_num):
  """Returns the index rows of a shard, in the order of its records."""
  rows = [row for row in index_rows(corpus) if row['shard'] == shard_num]
  return sorted(rows, key=lambda row: row['offset'])


def edit_manifest(corpus, edit):
  """Edits the manifest's value in place; it loses the hash of the value."""
  path = corpus / 'manifest.json'
  value = json.loads(path.read_text())
  value.pop('sha256', None)
  edit(value)
  path.write_text(json.dumps(value))


def rewrite_first_shard(corpus, change):
  """Changes the records of shard 0, and index and manifest to fit."""
  path = shard_path(corpus, 0)
  stored = read_group_records(path)
  old = list(zip(rows_of_shard(corpus, 0), stored, strict=True))
  rows = [row for row in index_rows(corpus) if row['shard'] != 0]
  with open(path, 'wb') as file:
    for row, record in change(old):
      payload = encode_group_record(
        record.group_id, record.examples, record.part
      )
      row = row | {'offset': file.tell(), 'num_bytes': len(payload)}
      rows.append(row | {'num_examples': len(record.examples)})
      write_record(file, payload)
    num_bytes = file.tell()
  rows.sort(key=lambda row: (row['group_id'], row['part']))
  write_index(corpus, rows)

  def edit(manifest):
    for shard in manifest['shards']:
      if shard['name'] == path.name:
        shard['num_bytes'] = num_bytes

  edit_manifest(corpus, edit)


def error_of(corpus):
  """Returns what `verify_corpus` complains about."""
  with pytest.raises(UserError) as raised:
    verify_corpus(corpus)
  message = str(raised.value)
  assert '\n' not in message
  assert message.endswith(('`fedfish group` again.', 'copy the file again.'))
  return message
