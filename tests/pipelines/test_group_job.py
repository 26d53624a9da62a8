"""The whole job on Beam's in-process runner."""

import gzip
import json
import pathlib

import pytest

from pipelines.group_job import run_group_job
from pipelines.job import GroupJob
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError

_DEBIAN = (
  pathlib.Path(__file__).parents[2]
  / '..'
  / 'shared'
  / 'data'
  / 'debian_descriptions'
)


def _job(paths, **options):
  options = {
    'source_name': 'c4',
    'key': 'host',
    'num_shards': 3,
    'max_record_bytes': 1 << 20,
  } | options
  return GroupJob(paths=tuple(map(str, paths)), **options)


def _write(path, values):
  path.parent.mkdir(exist_ok=True)
  lines = [
    value if isinstance(value, bytes) else json.dumps(value).encode()
    for value in values
  ]
  path.write_bytes(b'\n'.join(lines))
  return path


def _files(directory):
  return {path.name: path.read_bytes() for path in directory.iterdir()}


def _records(num_records):
  return [
    {'text': f'text {i}', 'timestamp': f'{i % 3}', 'url': f'http://h{i % 7}/'}
    for i in range(num_records)
  ]


def test_counts_by_hand(tmp_path):
  first = _write(
    tmp_path / 'b' / 'x.json',
    [
      {'text': 'one two', 'url': 'http://a/', 'timestamp': '2'},
      {'text': 'three', 'url': 'http://a/', 'timestamp': '1'},
      b'{',
    ],
  )
  second = _write(
    tmp_path / 'a' / 'y.json',
    [b'[]', b'{', {'text': 'four', 'url': 'http://b/', 'title': 'T'}],
  )
  output = tmp_path / 'out'
  manifest = run_group_job(_job([first, second]), output)
  assert read_manifest(output) == manifest
  value = json.loads((output / 'manifest.json').read_text())
  del value['shards']
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
    },
    'options': {'num_shards': 3, 'max_record_bytes': 1 << 20},
    'inputs': [
      {'name': 'x.json', 'records_in': 3, 'records_out': 2, 'damage': None},
      {'name': 'y.json', 'records_in': 3, 'records_out': 1, 'damage': None},
    ],
    'drop_examples': {
      'malformed_json': {'file': 'x.json', 'line': 3},
      'not_an_object': {'file': 'y.json', 'line': 1},
    },
  }
  corpus = GroupedCorpus(output)
  assert corpus.examples(b'a') == [
    {'text': b'three', 'timestamp': b'1', 'url': b'http://a/', 'title': b''},
    {'text': b'one two', 'timestamp': b'2', 'url': b'http://a/', 'title': b''},
  ]
  assert corpus.num_words(b'a') == 3
  # Nothing but the corpus itself: three shards, index, manifest.
  assert len(_files(output)) == 5
  assert sorted(path.name for path in tmp_path.iterdir()) == ['a', 'b', 'out']


@pytest.mark.parametrize(
  ('options', 'beam_flags'),
  [
    ({'block_bytes': 40}, ()),
    # Every bundle is run twice: its counts must not be.
    ({}, ('--direct_runner_bundle_repeat=1',)),
    ({}, ('--direct_num_workers=3', '--direct_running_mode=multi_threading')),
  ],
)
def test_same_bytes_however_the_work_is_divided(tmp_path, options, beam_flags):
  values = _records(60)
  whole = [
    _write(tmp_path / f'{name}.json', [*values[start::2], b'{'])
    for name, start in (('p', 0), ('q', 1))
  ]
  run_group_job(_job(whole), tmp_path / 'expected')
  run_group_job(
    _job(reversed(whole), **options), tmp_path / 'found', beam_flags
  )
  expected = _files(tmp_path / 'expected')
  assert _files(tmp_path / 'found') == expected
  assert sum(map(len, expected.values())) > 60 * 30


def test_same_shards_however_records_lie_in_files(tmp_path):
  values = _records(60)
  one = _write(tmp_path / 'one.json', values)
  many = [
    _write(tmp_path / 'many' / f'{i}.json', values[i::7]) for i in range(7)
  ]
  expected = run_group_job(_job([one]), tmp_path / 'expected')
  found = run_group_job(_job(many), tmp_path / 'found')
  assert found.shards == expected.shards
  index = 'index.parquet'
  assert (tmp_path / 'found' / index).read_bytes() == (
    tmp_path / 'expected' / index
  ).read_bytes()


def test_damaged_file_is_named(tmp_path):
  whole = _write(tmp_path / 'whole.json', _records(3))
  cut = tmp_path / 'cut.json.gz'
  lines = [json.dumps(value).encode() for value in _records(2000)]
  cut.write_bytes(gzip.compress(b'\n'.join(lines))[:-200])
  manifest = run_group_job(_job([whole, cut]), tmp_path / 'out')
  file = manifest.inputs[0]
  assert (file.name, file.damage) == ('cut.json.gz', 'truncated_file')
  assert 0 < file.records_out < 2000
  assert manifest.counts.drops == {'truncated_file': 1}
  assert manifest.counts.records_out == file.records_out + 3
  example = manifest.drop_examples['truncated_file']
  assert (example.file, example.line) == ('cut.json.gz', file.records_out + 1)


def test_parts_are_joined(tmp_path):
  path = _write(
    tmp_path / 'a.json',
    [
      {'text': f'text {i}', 'timestamp': f'{i}', 'url': 'http://g/'}
      for i in range(5)
    ],
  )
  output = tmp_path / 'out'
  # An example takes 67 bytes: two to a part.
  manifest = run_group_job(_job([path], max_record_bytes=150), output)
  assert (manifest.counts.num_groups, manifest.counts.num_records) == (1, 3)
  corpus = GroupedCorpus(output)
  assert list(corpus.client_ids) == [b'g']
  assert corpus.num_examples(b'g') == 5
  texts = [example['text'] for example in corpus.examples(b'g')]
  assert texts == [b'text %d' % i for i in range(5)]


def test_nothing_to_group(tmp_path):
  path = _write(
    tmp_path / 'a.json', [{'text': 'a'}, {'text': ''}, {'text': 'b'}]
  )
  with pytest.raises(
    UserError,
    match=r'by host, but of 3 records none could \(1 empty_text, 2 missing_url',
  ):
    run_group_job(_job([path]), tmp_path / 'out')
  assert [path.name for path in tmp_path.iterdir()] == ['a.json']


def test_file_that_vanishes(tmp_path):
  path = _write(tmp_path / 'a.json', _records(1))
  job = _job([path, tmp_path / 'gone.json'])
  with pytest.raises(
    UserError, match=r'stopped \(.*gone.json.*nothing was kept'
  ):
    run_group_job(job, tmp_path / 'out')
  assert [path.name for path in tmp_path.iterdir()] == ['a.json']


@pytest.mark.skipif(not _DEBIAN.is_dir(), reason='needs ../shared/data')
def test_debian_descriptions(tmp_path):
  paths = sorted(_DEBIAN.glob('c4-*.json.gz'))
  manifest = run_group_job(_job(paths), tmp_path / 'out')
  # 26,569 records in four train shards, 1,398 in one for validation.
  assert manifest.counts.records_in == 26_569 + 1_398
  assert manifest.counts.records_out == manifest.counts.records_in
  assert manifest.counts.num_groups == 6_524
  corpus = GroupedCorpus(tmp_path / 'out')
  assert corpus.num_examples(b'github.com') == 10_907
  assert corpus.num_examples(b'metacpan.org') == 3_417
  assert corpus.num_words(b'github.com') == 840_510
  assert corpus.sizes('num_examples').sum() == 27_967
  assert (corpus.sizes('num_examples') >= 2).sum() == 1_166
