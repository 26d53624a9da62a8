"""Any layout of JSON lines and tables: fields by their paths, and drops."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grouping_jobs import group_lines, write_lines

from pipelines import json_lines
from pipelines.source import Drop, Fields, load_source
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import UserError

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
    {'text': 'one', 'timestamp': '2020-01-01', 'url': '', 'key': 'é'},
    {'text': 'two', 'timestamp': '', 'url': '', 'key': ' b '},
    {'text': 'three', 'timestamp': '1577836800', 'url': '', 'key': '7'},
    {'text': 'three', 'timestamp': '', 'url': '', 'key': '7'},
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
    'key': 'a',
  }
  assert (reason, last['key']) == ('missing_key', 'b')
  # A column of the very name, beside a struct that has no such field.
  found = _read(tmp_path / 'a', Fields(key='user.id', text='body'))
  assert [record['key'] for record in found[:2]] == ['1', '2']
  assert found[2][0] == 'missing_key'


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


def _refused(paths, **fields):
  """Returns the one line that says which field there is not."""
  with pytest.raises(UserError) as raised:
    json_lines.require_fields(
      Fields(**fields), list(map(str, paths)), _MAX_BYTES
    )
  assert '\n' not in str(raised.value)
  return str(raised.value)


class TestRequiredFields:
  def test_all_are_there(self, tmp_path):
    # In no record together, and null also counts; the time is in another file.
    paths = [
      write_lines(
        tmp_path / 'a',
        [b'{', {'body': 'a'}, {'user': {'name': None}}, {'created': []}, b'x'],
      ),
      write_lines(tmp_path / 'b', [{'user': {'name': 'a'}}]),
    ]
    json_lines.require_fields(_FIELDS, list(map(str, paths)), _MAX_BYTES)
    # Nothing can be read at all: the job says why.
    path = write_lines(tmp_path / 'c', [b'{', b'[]'])
    json_lines.require_fields(_FIELDS, [str(path)], _MAX_BYTES)

  def test_only_the_first_records_are_read(self, tmp_path):
    lines = [{'k': 'a', 't': 'b'}] * 1000 + [{'when': 1}]
    paths = [write_lines(tmp_path / f'{i:02d}', lines) for i in range(10)]
    paths.append(write_lines(tmp_path / '10', lines[-1:]))
    assert _refused(paths, key='k', text='t', time='when') == (
      "`--time_field` 'when' must be in one of the first 10,000 records of "
      '`--input`, but none has it. The first has k, t. Name one of these.'
    )

  def test_which_there_are(self, tmp_path):
    value = {
      'user': {'id': 1, 'none': {}},
      'tags': [{'x': 1}],
      'a\nb\x1b[2J': 1,
      'b': {'a': {'a': {'a': {'a': {'a': 1}}}}},
      'x' * 10_000: 1,
    }
    value |= {f'{i}': 1 for i in range(99)}
    path = write_lines(tmp_path / 'a', [b'{', value, {'other': 1}])
    message = _refused([path], key='user.x', text='body')
    assert message.startswith(
      "`--key_field` 'user.x' and `--text_field` 'body' must be in one of the "
      'first 2 records of `--input`, but none has it. The first has user.id, '
      f'user.none, tags, a%0Ab%1B[2J, b.a.a.a.a, {"x" * 60}, 0, 1, '
    )
    assert message.endswith(', 33. Name one of these.')

  @pytest.mark.parametrize(
    ('option', 'values', 'found'),
    [
      # As pandas writes whole numbers of which one is missing.
      (
        'key',
        [7.0, 7.0, None, 9.0],
        'text or integers, but the first 4 records have none: it holds 7.0, of '
        'type float. Name another field, or',
      ),
      (
        'key',
        [[1], None],
        'text or integers, but the first 2 records have none: it holds [1], of '
        'type list. Name another field, or',
      ),
      (
        'text',
        [None, {'body': 'a'}],
        "text, but the first 2 records have none: it holds {'body': 'a'}, of "
        'type dict. Name another field, such as x.body, or',
      ),
      (
        'text',
        [5],
        'text, but the first 1 records have none: it holds 5, of type int. '
        'Name another field, or',
      ),
    ],
    ids=range(4),
  )
  def test_value_of_another_type(self, tmp_path, option, values, found):
    rows = [{'key': 'a', 'text': 'a', 'x': value} for value in values]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / 'a')
    fields = {'key': 'key', 'text': 'text'} | {option: 'x'}
    assert _refused([tmp_path / 'a'], **fields) == (
      f"`--{option}_field` 'x' must hold {found} store this one as text."
    )
