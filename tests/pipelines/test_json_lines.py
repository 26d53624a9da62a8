"""Any layout of JSON lines and tables: fields by their paths, and drops."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grouping_jobs import group_lines, make_job, write_lines

from pipelines import json_lines
from pipelines.job import run_group_job
from pipelines.json_lines import KEY
from pipelines.source import TIME_NOT_READ, Drop, Fields, load_source
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.data.verify import verify_corpus

_FIELDS = Fields(key='user.name', text='body', time='created')
_OPTIONS = {'source_name': 'json_lines', 'key': 'user.name', 'fields': _FIELDS}
_MAX_BYTES = 1000


def _read(path, fields=_FIELDS):
  """Returns records, and (reason, excerpt) of what is dropped."""
  source = load_source('json_lines', fields)
  found = list(source.read_records(str(path), _MAX_BYTES))
  assert [num for num, _ in found] == [*range(1, len(found) + 1)]
  return [
    (value.reason, value.excerpt.decode('utf-8', 'replace'))
    if isinstance(value, Drop)
    else value
    for _, value in found
  ]


def _group_texts(directory):
  """Returns the texts of each group."""
  return {
    client_id.decode(): [example['text'].decode() for example in examples]
    for client_id, examples in GroupedCorpus(directory).stream()
  }


@pytest.mark.parametrize(
  ('value', 'path', 'found'),
  [
    ({'a': 1}, 'a', 1),
    ({'b': 1}, 'a', 'absent'),
    ({'a': {'b': {'c': 1}}}, 'a.b.c', 1),
    ({'a': {'b': 1}}, 'a.b.c', 'absent'),
    ({'a': None}, 'a.b', 'absent'),
    # The very name comes first, at every depth.
    ({'a.b': 1, 'a': {'b': 2}}, 'a.b', 1),
    ({'a': {'b.c': 1, 'b': {'c': 2}}}, 'a.b.c', 1),
    # Lists have no fields.
    ({'a': [{'b': 1}]}, 'a.b', 'absent'),
    ({'': {'': 1}}, '.', 1),
  ],
)
def test_find(value, path, found):
  assert json_lines.find(value, path, 'absent') == found


def test_records_and_drops(tmp_path):
  path = write_lines(
    tmp_path / 'a.jsonl',
    [
      {'body': 'one', 'user': {'name': 'é'}, 'created': '2020-01-01', 'x': [1]},
      {'body': 'two', 'user': {'name': ' b '}},
      # An integer is a key; the same as its digits.
      {'body': 'three', 'user': {'name': 7}, 'created': 1577836800},
      {'body': 'three', 'user': {'name': '7'}, 'created': [1]},
      {'user': {'name': 'a'}},
      {'body': 3, 'user': {'name': 'a'}},
      {'body': ' \n', 'user': {'name': 'a'}},
      {'body': 'four', 'user': 'a'},
      {'body': 'four', 'user': {'name': '\t'}},
      {'body': 'four', 'user': {'name': True}},
      {'body': 'four', 'user': {'name': 7.0}},
      {'body': 'x' * 1001, 'user': {'name': 'a'}},
      {'body': 'ß' * 501, 'user': {'name': 'a'}},
      {'body': 'x', 'user': {'name': '\ud800'}},
      b'{"body": "\xff", "user": {"name": "a"}}',
      b'{',
    ],
  )
  found = _read(path)
  assert found[:4] == [
    {'text': 'one', 'timestamp': '2020-01-01', 'url': '', KEY: 'é'},
    {'text': 'two', 'timestamp': '', 'url': '', KEY: ' b '},
    {'text': 'three', 'timestamp': '1577836800', 'url': '', KEY: '7'},
    {
      'text': 'three',
      'timestamp': '',
      'url': '',
      KEY: '7',
      TIME_NOT_READ: '',
    },
  ]
  assert [reason for reason, _ in found[4:]] == [
    *('missing_text', 'malformed_text', 'empty_text', 'missing_key'),
    *('empty_key', 'malformed_key', 'malformed_key'),
    *('document_too_large', 'document_too_large', 'unpaired_surrogate'),
    *('invalid_utf8', 'malformed_json'),
  ]
  # The object itself, so that it can be seen what is wrong with it.
  assert found[5] == (
    'malformed_text',
    '{"body": 3, "user": {"name": "a"}}',
  )
  assert found[7] == ('missing_key', '{"body": "four", "user": "a"}')


def test_tables(tmp_path):
  names = pa.array(['a', None, 'b'])
  table = pa.table(
    {
      'body': pa.array([b'one', b'two', b'three']),
      'user': pa.StructArray.from_arrays([names], ['name']),
      'created': pa.array([datetime.datetime(2020, 1, 2)] * 3),
      'user.id': pa.array([1, 2, None], pa.int64()),
      'other': pa.array([[1]] * 3),
    }
  )
  pq.write_table(table, tmp_path / 'a')
  first, (reason, _), last = _read(tmp_path / 'a')
  assert first == {
    'text': 'one',
    'timestamp': '2020-01-02T00:00:00Z',
    'url': '',
    KEY: 'a',
  }
  assert (reason, last[KEY]) == ('missing_key', 'b')
  # A column of the very name, beside a struct that has no such field.
  found = _read(tmp_path / 'a', Fields(key='user.id', text='body'))
  assert [record[KEY] for record in found[:2]] == ['1', '2']
  assert found[2][0] == 'missing_key'


def test_times_that_are_not_read_are_counted(tmp_path):
  # NaN is how pandas writes a missing time.
  times = ['2020', 5, 1.5, None, float('nan')]
  times += [{'$date': '2020'}, [5], True, float('inf')]
  lines = [
    {'body': f'{i}', 'user': {'name': 'u'}, 'created': time}
    for i, time in enumerate(times)
  ]
  # One that is dropped does not count.
  lines.append({'body': '', 'user': {'name': 'u'}, 'created': [1]})
  output = group_lines(tmp_path, lines, **_OPTIONS)
  assert read_manifest(output).counts.times_not_read == 4
  assert b'times_not_read' in (output / 'manifest.json').read_bytes()
  output = group_lines(tmp_path / 'b', lines[:5], **_OPTIONS)
  assert read_manifest(output).counts.times_not_read == 0
  assert b'times_not_read' not in (output / 'manifest.json').read_bytes()


def test_two_fields_are_a_key_together(tmp_path):
  values = [
    *(('a', 'b/c'), ('a/b', 'c'), ('a', 'b/c'), (7, 'c'), ('7', 'c')),
    *(('a', None), ('a', ' '), (1.5, 'c'), ('a\x1fb', 'c'), ('a', 'b\x1fc')),
  ]
  lines = [
    {'body': f'{i}', 'site': site, 'by': {'name': name}}
    for i, (site, name) in enumerate(values)
  ]
  fields = Fields(key=('site', 'by.name'), text='body')
  options = _OPTIONS | {'key': 'site/by.name', 'fields': fields}
  assert load_source('json_lines', fields).default_key == options['key']
  output = group_lines(tmp_path, lines, **options)
  groups = _group_texts(output).items()
  assert {name: sorted(texts) for name, texts in groups} == {
    'a\x1fb/c': ['0', '2'],
    'a/b\x1fc': ['1'],
    '7\x1fc': ['3', '4'],
  }
  manifest = read_manifest(output)
  assert manifest.options['key_field'] == ['site', 'by.name']
  assert manifest.counts.drops == {
    'empty_key': 1,
    'malformed_key': 3,
    'missing_key': 1,
  }


_KEEP = ('score', 'user.tags', 'url', 'key')


@pytest.mark.parametrize('is_table', [False, True])
def test_kept_fields(tmp_path, is_table):
  lines = [
    {
      'body': 'a',
      'user': {'name': 'u', 'tags': ['é', 'x']},
      'score': 1.5,
      'url': 'b',
      'key': None,
    },
    {
      'body': 'b',
      'user': {'name': 'u', 'tags': None},
      'score': float('nan'),
      'url': 'a',
      'key': True,
    },
  ]
  raw = tmp_path / 'raw'
  if is_table:
    pq.write_table(pa.Table.from_pylist(lines), raw)
  else:
    write_lines(raw, lines)
  fields = Fields(key='user.name', text='body', keep=_KEEP)
  job = make_job([raw], **_OPTIONS | {'fields': fields})
  (manifest,) = run_group_job(job, tmp_path / 'out')
  assert manifest.feature_names == ('text', *_KEEP)
  assert read_manifest(tmp_path / 'out').options['keep_field'] == list(_KEEP)
  # Without times they are sorted by the feature `url`.
  assert GroupedCorpus(tmp_path / 'out').examples(b'u') == [
    {'text': b'b', 'score': b'', 'user.tags': b'', 'url': b'a', 'key': b'true'},
    {
      'text': b'a',
      'score': b'1.5',
      'user.tags': '["é", "x"]'.encode(),
      'url': b'b',
      'key': b'',
    },
  ]


def test_groups_by_hand(tmp_path):
  lines = [
    {'body': 'b', 'user': {'name': 'u'}, 'created': '2'},
    {'body': 'a', 'user': {'name': 'u'}, 'created': '3'},
    {'body': 'c', 'user': {'name': 'u'}, 'created': '1'},
    {'body': 'd', 'user': {'name': 'host'}},
  ]
  output = group_lines(tmp_path, [*lines, b'{'], name='mine', **_OPTIONS)
  assert _group_texts(output) == {'u': ['c', 'b', 'a'], 'host': ['d']}
  manifest = read_manifest(output)
  assert (manifest.corpus, manifest.key) == ('mine', 'user.name')
  assert manifest.source == 'json_lines'
  assert manifest.feature_names == ('text', 'timestamp')
  assert manifest.options == {
    'num_shards': 3,
    'max_record_bytes': 1 << 20,
    'max_document_bytes': 64 << 20,
    'max_examples_per_group': None,
    'drop_duplicates': False,
    'source': 'json_lines',
    'key_field': 'user.name',
    'text_field': 'body',
    'time_field': 'created',
  }
  assert verify_corpus(output).num_examples == 4
