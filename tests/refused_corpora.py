"""Grouped corpora that a run refuses, and words of what is said."""

import damaged_corpora
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from group_records import encode_example
from refused_inputs import changed, damaged, edited, removed

from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.run import run_inputs


def _rewrite(corpus, payload_of, *, offset=None, damage=lambda data: data):
  """Replaces all records, and index and manifest to fit.

  Args:
    corpus: Its directory.
    payload_of: From a client id to the payload of its record.
    offset: What the index says of every record; None: what is right.
    damage: From a shard's bytes to those that are written.
  """
  rows = damaged_corpora.index_rows(corpus)
  sizes = {}
  for number in range(2):
    path = damaged_corpora.shard_path(corpus, number)
    with open(path, 'wb') as file:
      for row in rows:
        if row['shard'] == number:
          row['offset'] = file.tell() if offset is None else offset
          records.write_record(file, payload_of(row['group_id']))
    path.write_bytes(damage(path.read_bytes()))
    sizes[path.name] = path.stat().st_size
  damaged_corpora.write_index(corpus, rows)

  def edit(manifest):
    for shard in manifest['shards']:
      shard['num_bytes'] = sizes[shard['name']]

  damaged_corpora.edit_manifest(corpus, edit)


def _record(client_id, *examples):
  encoded = [encode_example(example) for example in examples]
  return records.encode_group_record(client_id, encoded)


def _change_index(corpus, change):
  path = corpus / 'index.parquet'
  pq.write_table(change(pq.read_table(path)), path)


def _replace_while_open(place):
  """Another process replaces the index once it was opened."""
  corpus, read = place.corpus, run_inputs.open_tokenizer

  def open_tokenizer(*arguments):
    _change_index(corpus, lambda table: table.slice(1))
    return read(*arguments)

  patch = place.stack.enter_context(pytest.MonkeyPatch.context())
  patch.setattr(run_inputs, 'open_tokenizer', open_tokenizer)


def _index(words, change):
  return damaged(words, lambda place: _change_index(place.corpus, change))


def _records(words, payload_of, **options):
  return damaged(
    words, lambda place: _rewrite(place.corpus, payload_of, **options)
  )


_MANIFEST = 'corpus/manifest.json'
_INDEX = 'corpus/index.parquet'
CASES = (
  edited(
    'must have schema version 1 or older, found 99. Update fedfish',
    _MANIFEST,
    schema_version=99,
  ),
  edited(
    'must hold the manifest of a grouped corpus, but cannot be read (`sha256`',
    _MANIFEST,
    lambda manifest: manifest.pop('counts'),
  ),
  removed('is not a grouped corpus: it has no manifest.json', _MANIFEST),
  changed('the manifest of a grouped corpus, but cannot be', _MANIFEST, b'{'),
  removed(
    'must hold the shard groups-00000-of-00002.tfrecord',
    'corpus/groups-00000-of-00002.tfrecord',
  ),
  removed('must hold index.parquet, but it is missing', _INDEX),
  _index(
    'must hold index.parquet, but it is unreadable',
    lambda table: table.drop_columns(['offset']),
  ),
  _index(
    'must hold index.parquet, but it is unreadable',
    lambda table: table.set_column(
      table.column_names.index('offset'),
      INDEX_SCHEMA.field('offset'),
      pa.nulls(len(table), pa.int64()),
    ),
  ),
  _index('records, but that names other ones', lambda table: table.slice(1)),
  damaged('was replaced by another one. Start again', _replace_while_open),
  _records(
    'index.parquet belongs to another corpus. Copy',
    lambda _: _record(b'nobody', {'text': b'a'}),
  ),
  _records(
    'has an example without the feature `text`',
    lambda client_id: _record(client_id, {'title': b'a'}),
  ),
  _records('is not readable as one (not a SequenceExample)', lambda _: b'\xff'),
  _records('but that names other ones', lambda _: b'', offset=10**6),
  _records(
    'the record is cut off',
    lambda _: b'',
    offset=0,
    damage=lambda data: data[:5],
  ),
  _records(
    'the record is cut off',
    lambda _: b'long',
    offset=0,
    damage=lambda data: data[:14],
  ),
  _records(
    'its length fails the checksum',
    lambda _: b'',
    offset=0,
    damage=lambda data: b'1' + data[1:],
  ),
  _records(
    'its content fails the checksum',
    lambda _: b'long',
    offset=0,
    damage=lambda data: data.replace(b'long', b'lung'),
  ),
)
