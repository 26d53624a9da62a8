"""The whole job on Beam's in-process runner."""

import gzip
import hashlib
import json

import pyarrow.parquet as pq
import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import finish
from pipelines.job import run_group_job
from pipelines.splits import SplitRule
from tff_fedfish.data.client_splits import ClientSplit, split_clients
from tff_fedfish.data.corpus_index import fingerprint_of_index
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError


def test_counts_by_hand(tmp_path):
  first = write_lines(
    tmp_path / 'b' / 'x.json',
    [
      {'text': 'one two', 'url': 'http://a/', 'timestamp': '2'},
      {'text': 'three', 'url': 'http://a/', 'timestamp': '1'},
      b'{',
    ],
  )
  second = write_lines(
    tmp_path / 'a' / 'y.json',
    [b'[]', b'{', {'text': 'four', 'url': 'http://b/', 'title': 'T'}],
  )
  output = tmp_path / 'out'
  (manifest,) = run_group_job(make_job([first, second]), output)
  assert read_manifest(output) == manifest
  value = json.loads((output / 'manifest.json').read_text())
  del value['shards'], value['sha256']
  index = (output / 'index.parquet').read_bytes()
  assert value.pop('index_sha256') == hashlib.sha256(index).hexdigest()
  # A job need not know it.
  fingerprint = fingerprint_of_index(pq.read_table(output / 'index.parquet'))
  assert value.pop('fingerprint') == fingerprint
  assert value.pop('versions').keys() == {'fedfish', 'ada-url'}
  assert value == {
    'schema_version': 1,
    'corpus': 'c4',
    'key': 'host',
    'feature_names': ['text', 'timestamp', 'url', 'title'],
    # 6 in = 3 out + 2 malformed_json + 1 not_an_object.
    'counts': {
      'records_in': 6,
      'records_out': 3,
      'num_groups': 2,
      'num_records': 2,
      'drops': {'malformed_json': 2, 'not_an_object': 1},
      # Group a has two numbers.
      'num_mixed_time_groups': 0,
      'num_small_groups': 0,
    },
    'options': {
      'num_shards': 3,
      'max_record_bytes': 1 << 20,
      'max_document_bytes': 64 << 20,
      'max_examples_per_group': None,
      'drop_duplicates': False,
    },
    'num_input_files': 2,
    'inputs': [
      {
        'name': name,
        'records_in': 3,
        'records_out': records_out,
        'damage': None,
        'damage_byte': None,
      }
      for name, records_out in (('a/y.json', 1), ('b/x.json', 2))
    ],
    'drop_examples': {
      reason: {'file': file, 'line': line, 'group': None, 'excerpt': excerpt}
      for reason, file, line, excerpt in (
        ('malformed_json', 'a/y.json', 2, '{'),
        ('not_an_object', 'a/y.json', 1, '[]'),
      )
    },
    'split': None,
    'order': 2,
  }
  corpus = GroupedCorpus(output)
  assert corpus.examples(b'a') == [
    {'text': b'three', 'timestamp': b'1', 'url': b'http://a/', 'title': b''},
    {'text': b'one two', 'timestamp': b'2', 'url': b'http://a/', 'title': b''},
  ]
  assert corpus.sizes('num_words')[0] == 3
  # Nothing but the corpus itself: three shards, index, manifest.
  assert len(contents(output)) == 5
  assert sorted(path.name for path in tmp_path.iterdir()) == ['a', 'b', 'out']


def test_same_bytes_however_the_work_is_divided(tmp_path):
  values = raw_records(60)
  whole = [
    write_lines(tmp_path / f'{name}.json', [*values[start::2], b'{'])
    for name, start in (('p', 0), ('q', 1))
  ]
  run_group_job(make_job(whole), tmp_path / 'expected')
  expected = contents(tmp_path / 'expected')
  # Every bundle is run twice: its counts must not be.
  flags = ('--direct_runner_bundle_repeat=1',)
  job = make_job(reversed(whole), run_bytes=4000)
  run_group_job(job, tmp_path / 'found', flags)
  assert contents(tmp_path / 'found') == expected
  # The manifest also names the files.
  many = [
    write_lines(tmp_path / 'many' / f'{i}.json', values[i::7]) for i in range(7)
  ]
  run_group_job(make_job(many), tmp_path / 'by_seven')
  del expected['manifest.json']
  assert contents(tmp_path / 'by_seven').items() > expected.items()


def test_nothing_to_group(tmp_path):
  path = write_lines(
    tmp_path / 'a.json', [{'text': 'a\x1b[2J'}, {'text': ''}, {'text': 'b'}]
  )
  with pytest.raises(
    UserError,
    match=r'by host, but of 3 records none could \(1 empty_text, 2 '
    r"missing_url\)\. The first missing_url is record 1 of 'a\.json': "
    r"'a\\x1b\[2J'\. ",
  ):
    run_group_job(make_job([path]), tmp_path / 'out')
  assert [path.name for path in tmp_path.iterdir()] == ['a.json']


def test_minimum(tmp_path):
  # Four examples of h0 and h1 each, three of the other five.
  path = write_lines(tmp_path / 'a.json', raw_records(23))
  job = make_job([path], min_examples_per_group=4)
  (manifest,) = run_group_job(job, tmp_path / 'out')
  assert manifest.counts.drops == {'small_group': 5 * 3}
  assert manifest.options['min_examples_per_group'] == 4
  assert manifest.drop_examples['small_group'].group == 'h2'
  assert list(GroupedCorpus(tmp_path / 'out').client_ids) == [b'h0', b'h1']
  job = make_job([path], min_examples_per_group=5)
  with pytest.raises(
    UserError,
    match=r'^`--min_examples_per_group` is 5, but no group has as many '
    r'examples\. Lower it\.$',
  ):
    run_group_job(job, tmp_path / 'none')
  assert not (tmp_path / 'none').exists()


def test_split_by_time_by_hand(tmp_path):
  lines = [
    {'text': 'a b', 'url': 'http://a/', 'timestamp': '2017-12-31T23:59:59Z'},
    {'text': 'c', 'url': 'http://a/', 'timestamp': '2018-01-01T00:00:00Z'},
    {'text': 'd', 'url': 'http://b/', 'timestamp': '2017-01-01T00:00:00Z'},
    {'text': 'd', 'url': 'http://b/', 'timestamp': '2016-01-01T00:00:00Z'},
    {'text': 'e', 'url': 'http://c/'},
  ]
  path = write_lines(tmp_path / 'raw', lines)
  rule = SplitRule(kind='time', time='2018-01-01')
  output = tmp_path / 'out'
  train, test = run_group_job(
    make_job([path], split=rule, drop_duplicates=True), output
  )
  assert sorted(path.name for path in output.iterdir()) == ['test', 'train']
  assert read_manifest(output / 'train') == train
  # 5 in = 2 out + 1 duplicate + 1 without a time + 1 in the other part.
  assert (train.counts.records_in, train.counts.records_out) == (5, 2)
  assert train.counts.drops == {
    'duplicate_text': 1,
    'missing_timestamp': 1,
    'other_split': 1,
  }
  # 5 in = 1 out + 1 without a time + 3 in the other part.
  assert (test.counts.records_in, test.counts.records_out) == (5, 1)
  assert test.counts.drops == {'missing_timestamp': 1, 'other_split': 3}
  assert (train.split.name, test.split.name) == ('train', 'test')
  assert train.split.names == ('train', 'test')
  assert train.split.rule == (
    'train: examples before 2018-01-01T00:00:00+00:00; test: all others'
  )
  found = GroupedCorpus(output / 'train')
  assert list(found.client_ids) == [b'a', b'b']
  assert [e['text'] for e in found.examples(b'a')] == [b'a b']
  assert list(GroupedCorpus(output / 'test').client_ids) == [b'a']


def test_part_without_a_record_is_not_written(tmp_path):
  path = write_lines(tmp_path / 'raw', raw_records(1))
  # All of its one group's clients are on one side.
  rule = SplitRule(kind='client', held_out_fraction=0.5)
  (manifest,) = run_group_job(make_job([path], split=rule), tmp_path / 'out')
  assert manifest.split.names == ('train', 'held_out')
  assert [p.name for p in (tmp_path / 'out').iterdir()] == [manifest.split.name]


def test_split_by_client_is_that_of_training(tmp_path):
  hosts = [f'h{i}' for i in range(60)]
  lines = [{'text': 'a', 'url': f'http://{host}/'} for host in hosts]
  path = write_lines(tmp_path / 'raw', lines)
  rule = SplitRule(kind='client', held_out_fraction=0.3, split_seed=7)
  run_group_job(make_job([path], split=rule), tmp_path / 'out')
  train, held_out = (
    list(GroupedCorpus(tmp_path / 'out' / name).client_ids)
    for name in ('train', 'held_out')
  )
  client_ids = sorted(host.encode() for host in hosts)
  assert split_clients(
    client_ids, split_seed=7, held_out_fraction=0.3
  ) == ClientSplit(participating=train, held_out=held_out)


def test_many_files_are_not_all_named(tmp_path, monkeypatch):
  monkeypatch.setattr(finish, '_MAX_INPUTS', 3)
  paths = [
    write_lines(tmp_path / f'{i}.json', raw_records(1)) for i in range(4)
  ]
  paths[2].write_bytes(gzip.compress(paths[2].read_bytes() + b'\n')[:-1])
  (manifest,) = run_group_job(make_job(paths), tmp_path / 'out')
  assert manifest.num_input_files == 4
  assert [file.name for file in manifest.inputs] == ['2.json']


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    (
      '--direct_running_mode=multi_threading',
      r"must be 'in_memory' or 'multi_processing', but is 'multi_threading', "
      r'in which Beam loses records\. Use multi_processing with as many '
      r'`--direct_num_workers`\.$',
    ),
    (
      '--direct_num_workers=-1',
      r'must be a number of processes, or 0 for one on each core, but is -1\.$',
    ),
  ],
)
def test_refused_flags(tmp_path, flag, message):
  with pytest.raises(UserError, match=message):
    # Before it looks at the input.
    run_group_job(make_job([tmp_path / 'none']), tmp_path / 'out', (flag,))
