"""Adding to a corpus gives what grouping all raw files together gives."""

import argparse
import dataclasses
import errno
import hashlib
import json
import os
import shutil

import pytest
from damaged_corpora import edit_manifest
from grouping_jobs import (
  contents,
  group_lines,
  make_job,
  raw_records,
  write_lines,
)

from pipelines import add_to, group_job
from pipelines.group_job import name_files, run_group_job
from pipelines.source import Fields
from pipelines.splits import SplitRule
from tff_fedfish.cli import group, group_options
from tff_fedfish.data import records
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import FailedError, UserError

# Twins within hosts and across them, in the first crawl, in the second, and in
# both.
_FIRST = [
  *raw_records(40),
  *({'text': f'text {i}', 'url': f'http://h{i % 4}/'} for i in range(0, 40, 3)),
  {'text': 'no url'},
  b'{',
]
_SECOND = [
  *({'text': f'text {i}', 'url': f'http://h{i % 5}/'} for i in range(0, 60, 2)),
  *({'text': f'x {i}', 'url': f'http://n{i}/'} for i in range(3)),
  b'[]',
  b'{',
]


def _with(records, feature):
  return [
    record | {feature: f'{i}'} if isinstance(record, dict) and i % 2 else record
    for i, record in enumerate(records)
  ]


def _group(directory, first, second, **options):
  """Returns what adding the second crawl to the first gives, and grouping both.

  Each is (content of all files but manifests by name, manifests).
  """
  paths = [
    write_lines(directory / 'raw' / f'{name}.json', records)
    for name, records in (('first', first), ('second', second))
  ]
  job = make_job(paths, **options)
  old, new, both = (directory / name for name in ('old', 'new', 'both'))
  run_group_job(dataclasses.replace(job, paths=job.paths[:1]), old)
  shutil.move(paths[0], directory / 'gone')
  add = dataclasses.replace(job, paths=job.paths[1:], add_to=str(old))
  run_group_job(add, new)
  shutil.move(directory / 'gone', paths[0])
  run_group_job(job, both)
  results = []
  for output in (new, both):
    found = contents(output)
    manifests = {
      name: json.loads(found.pop(name))
      for name in list(found)
      if name.endswith('manifest.json')
    }
    for name in manifests:
      verify_corpus((output / name).parent)
    results.append((found, manifests))
  return results


_TIMED = [
  {'text': f'{i}', 'url': f'http://h{i % 3}/', 'timestamp': f'20{i}-01-01'}
  for i in range(10, 30)
]
_BY_TIME = SplitRule(kind='time', time='2020-01-01')


@pytest.mark.parametrize(
  ('first', 'second', 'options'),
  [
    (_FIRST, _SECOND, {}),
    (_FIRST, _SECOND, {'max_record_bytes': 200}),
    # Features of only one of the two: the order of what has no timestamp
    # changes with the SHA-256 of all examples.
    (_FIRST, _with(_SECOND, 'author'), {}),
    (_with(_FIRST, 'title'), _SECOND, {'max_examples_per_group': 3}),
    (_with(_FIRST, 'title'), _with(_SECOND, 'author'), {}),
    (_FIRST, _SECOND, {'drop_duplicates': True}),
    (_FIRST, _SECOND, {'max_examples_per_group': 3}),
    # Not one host of the first has fewer.
    (_FIRST, _SECOND, {'min_examples_per_group': 5}),
    (_FIRST, _SECOND, {'drop_duplicates_across_groups': True}),
    (
      _with(_FIRST, 'title'),
      _SECOND,
      {'drop_duplicates_across_groups': True, 'min_examples_per_group': 2},
    ),
    (_TIMED[::2], _TIMED[1::2], {'split': _BY_TIME}),
    (
      _FIRST,
      _SECOND,
      {
        'split': SplitRule(kind='client', held_out_fraction=0.5),
        'drop_duplicates_across_groups': True,
      },
    ),
    (
      _FIRST,
      _SECOND,
      {
        'source_name': 'json_lines',
        'fields': Fields(key='url', text='text'),
        'key': 'url',
        'name': 'mine',
      },
    ),
  ],
)
def test_equals_grouping_both_together(tmp_path, first, second, options):
  (new, new_manifests), (both, manifests) = _group(
    tmp_path, first, second, **options
  )
  assert new == both
  assert new_manifests.keys() == manifests.keys()
  for name, manifest in manifests.items():
    # The first drop of a group is that of one of two jobs.
    for reason, example in manifest['drop_examples'].items():
      if example['group'] is not None:
        found = new_manifests[name]['drop_examples'][reason]
        assert found['group'] is not None
        manifest['drop_examples'][reason] = found
    assert new_manifests[name] == manifest


def test_counts_by_hand(tmp_path):
  old = group_lines(
    tmp_path / 'first',
    [
      {'text': 'a', 'url': 'http://x/'},
      {'text': 'a', 'url': 'http://x/'},
      {'text': 'b', 'url': 'http://y/'},
      b'{',
    ],
    drop_duplicates=True,
  )
  raw = write_lines(
    tmp_path / 'second.json',
    [{'text': 'a', 'url': 'http://x/'}, b'{', {'text': 'c', 'url': 'http://x'}],
  )
  job = make_job([raw], drop_duplicates=True, add_to=str(old))
  (manifest,) = run_group_job(job, tmp_path / 'new')
  # 4 + 3 in = 3 out + 1 + 1 duplicates + 1 + 1 malformed.
  counts = manifest.counts
  assert (counts.records_in, counts.records_out) == (7, 3)
  assert counts.drops == {'duplicate_text': 2, 'malformed_json': 2}
  assert manifest.num_input_files == 2
  assert [(f.name, f.records_in, f.records_out) for f in manifest.inputs] == [
    ('raw.json', 4, 3),
    ('second.json', 3, 2),
  ]
  assert manifest.drop_examples['malformed_json'].file == 'raw.json'
  assert verify_corpus(tmp_path / 'new').num_examples == 3
  # It can be added to, too.
  job = dataclasses.replace(
    job,
    paths=(str(write_lines(tmp_path / 'third.json', [b'{'])),),
    add_to=str(tmp_path / 'new'),
  )
  (manifest,) = run_group_job(job, tmp_path / 'newer')
  assert manifest.counts.records_in == 8
  assert manifest.counts.records_out == 3


def test_files_of_the_same_name(tmp_path):
  taken = {'a.json', 'two/a.json'}
  assert name_files(['/x/two/b.json'], taken) == ['b.json']
  assert name_files(['/x/one/a.json'], taken) == ['one/a.json']
  assert name_files(['/x/two/a.json'], taken) == ['x/two/a.json']
  with pytest.raises(
    UserError,
    match=r'^`--input` must name files that were not read for `--add_to`, but '
    r"names 'a.json' again\. Leave it out\.$",
  ):
    name_files(['/a.json'], taken)


def test_file_that_was_read_before(tmp_path):
  raw = [
    write_lines(tmp_path / day / name, [{'text': name, 'url': 'http://a/'}])
    for day, name in (('1', 'a'), ('1', 'b'), ('2', 'c'))
  ]
  old, new = tmp_path / 'old', tmp_path / 'new'
  run_group_job(make_job(raw[:2]), old)
  # In another directory, beside one that is new.
  (tmp_path / '1').rename(tmp_path / '3')
  paths = [tmp_path / '3' / 'b', raw[2]]
  job = make_job(paths, add_to=str(old))
  size = paths[0].stat().st_size
  with pytest.raises(
    UserError,
    match=rf"^`--input` must name files that are not in '{old}' yet, but a "
    rf"file of the name and the {size} bytes of '{paths[0]}' was read for it\. "
    r'Leave it out or, if it is another one, rename it\.$',
  ):
    run_group_job(job, new)
  assert not new.exists()
  # Of another size, it is another file.
  write_lines(paths[0], [{'text': 'later', 'url': 'http://a/'}])
  (manifest,) = run_group_job(job, new)
  assert manifest.input_bytes == {
    '2/c': size,
    '3/b': paths[0].stat().st_size,
    'a': size,
    'b': size,
  }
  # What was added once is known, too.
  job = dataclasses.replace(job, paths=(str(raw[2]),), add_to=str(new))
  with pytest.raises(UserError, match="bytes of '.*/2/c' was read for it"):
    run_group_job(job, tmp_path / 'newer')


def _add(tmp_path, first, second, *, later=None, **options):
  """Adds to a corpus of the first crawl, with `later` options."""
  old = group_lines(tmp_path / 'first', first, **options)
  raw = write_lines(tmp_path / 'second.json', second)
  options |= {'add_to': str(old)} | (later or {})
  return run_group_job(make_job([raw], **options), tmp_path / 'new')


@pytest.mark.parametrize(
  ('options', 'later', 'found'),
  [
    ({}, {'num_shards': 4}, '`--num_shards` is 4, and there 3'),
    (
      {},
      {'drop_duplicates': True},
      '`--drop_duplicates` is True, and there not given',
    ),
    (
      {'min_examples_per_group': 1},
      {'min_examples_per_group': None},
      '`--min_examples_per_group` is not given, and there 1',
    ),
    ({}, {'key': 'domain'}, '`--key` is domain, and there host'),
    (
      {},
      {'source_name': 'cc_news'},
      'the corpus is cc_news, and there c4',
    ),
    (
      {'split': _BY_TIME},
      {'split': SplitRule(kind='time', time='2021-01-01')},
      '`--split_by` is train: examples before 2021-01-01T00:00:00+00:00; test: '
      'all others, and there train: examples before 2020-01-01T00:00:00+00:00; '
      'test: all others',
    ),
    (
      {'split': _BY_TIME},
      {'split': None},
      '`--split_by` is not given, and there train: examples before 2020-01-01T'
      '00:00:00+00:00; test: all others',
    ),
  ],
)
def test_other_options(tmp_path, options, later, found):
  old = tmp_path / 'first' / 'out'
  with pytest.raises(UserError) as raised:
    _add(tmp_path, _TIMED, _TIMED, later=later, **options)
  assert str(raised.value) == (
    f"`--add_to` needs the options of '{old}', but {found}. Use the same."
  )
  assert not (tmp_path / 'new').exists()


_TRAIN = "the part 'train' of a split"


@pytest.mark.parametrize(
  ('moved', 'split', 'part', 'found', 'wanted'),
  [
    ('', None, 'train', _TRAIN, 'a whole corpus'),
    ('test', _BY_TIME, 'train', "the part 'test' of a split", _TRAIN),
    ('whole', _BY_TIME, 'train', 'a whole corpus', _TRAIN),
  ],
)
def test_part_of_a_split(tmp_path, moved, split, part, found, wanted):
  old = group_lines(tmp_path / 'first', _TIMED, split=_BY_TIME)
  directory = old
  if not moved:
    directory = old / part
  elif moved == 'test':
    shutil.rmtree(old / part)
    shutil.copytree(old / 'test', old / part)
  else:
    shutil.rmtree(old / part)
    group_lines(tmp_path / 'whole', _TIMED).rename(old / part)
  raw = write_lines(tmp_path / 'second.json', _TIMED)
  job = make_job([raw], split=split, add_to=str(directory))
  with pytest.raises(UserError) as raised:
    run_group_job(job, tmp_path / 'new')
  assert str(raised.value) == (
    f"`--add_to` needs the options of '{directory}', but the output is {wanted}"
    f', and there {found}. Use the same.'
  )
  assert not (tmp_path / 'new').exists()


def test_empty_files_are_read_again(tmp_path):
  empty = write_lines(tmp_path / '1' / 'empty', [])
  raw = [write_lines(tmp_path / '1' / name, _FIRST) for name in 'ab']
  run_group_job(make_job([empty, raw[0]]), tmp_path / 'old')
  job = make_job([empty, raw[1]], add_to=str(tmp_path / 'old'))
  (manifest,) = run_group_job(job, tmp_path / 'new')
  sizes = {file.name: file.records_in for file in manifest.inputs}
  num = len(_FIRST)
  assert sizes == {'1/b': num, '1/empty': 0, 'a': num, 'empty': 0}


@pytest.mark.parametrize('name', ['manifest.json', 'groups'])
def test_file_that_may_not_be_read(plain_directory, name):
  old = group_lines(plain_directory / 'first', _FIRST)
  path = next(old.glob(f'{name}*'))
  path.chmod(0)
  raw = write_lines(plain_directory / 'second.json', _SECOND)
  with pytest.raises(UserError) as raised:
    run_group_job(make_job([raw], add_to=str(old)), plain_directory / 'new')
  assert str(raised.value) == (
    '`--add_to` must be readable, here and by all workers, but is not ([Errno '
    f"13] Permission denied: '{path}'). Change permissions, or copy it to "
    'where all can read it.'
  )


def test_shard_that_a_worker_does_not_see(tmp_path):
  path = tmp_path / 'groups-00000-of-00001.tfrecord'
  with pytest.raises(UserError) as raised:
    next(add_to.read_rows(str(path)))
  assert str(raised.value) == (
    '`--add_to` must be readable, here and by all workers, but is not ([Errno '
    f"2] No such file or directory: '{path}'). Change permissions, or copy it "
    'to where all can read it.'
  )


@pytest.mark.parametrize('code', [errno.EIO, errno.ENOMEM, errno.ESTALE])
def test_machine_that_fails_while_a_shard_is_read(tmp_path, monkeypatch, code):
  def fail(path):
    raise OSError(code, os.strerror(code), path)

  old = group_lines(tmp_path / 'first', _FIRST)
  raw = write_lines(tmp_path / 'second.json', _SECOND)
  monkeypatch.setattr(records, 'read_group_records', fail)
  with pytest.raises(
    FailedError,
    match=rf"^Grouping into '.*new' stopped \(\[Errno {code}\] .*"
    r'groups-0000\d-of-00003\.tfrecord\'\); nothing was kept\. Check the ',
  ):
    run_group_job(make_job([raw], add_to=str(old)), tmp_path / 'new')
  assert not (tmp_path / 'new').exists()


def test_directory_is_named_as_typed(tmp_path, monkeypatch):
  group_lines(tmp_path / 'first', _FIRST)
  raw = write_lines(tmp_path / 'second.json', _SECOND)
  monkeypatch.chdir(tmp_path)
  parser = argparse.ArgumentParser()
  group.add_arguments(parser)
  arguments = parser.parse_args(
    ['c4', '--input', str(raw), '--add_to', 'first/out', '--output', 'new']
  )
  with pytest.raises(
    UserError, match=r"^`--add_to` needs the options of 'first/out', but "
  ):
    group_options.build_job(arguments)
  arguments.num_shards, arguments.max_record_bytes = 3, 1 << 20
  job, build = group_options.build_job(arguments), group_job._build

  def build_elsewhere(*work):
    # As a worker may be.
    monkeypatch.chdir('/')
    build(*work)

  monkeypatch.setattr(group_job, '_build', build_elsewhere)
  (manifest,) = run_group_job(job, tmp_path / 'new')
  assert manifest.num_input_files == 2


@pytest.mark.parametrize(
  ('first', 'second', 'options', 'message'),
  [
    (
      [*_FIRST, {'text': 'one', 'url': 'http://few/'}],
      _SECOND,
      {'min_examples_per_group': 2},
      r"^`--add_to` must not lack examples, but '.*out' has dropped 1 by "
      r'`--min_examples_per_group`, whose groups `--input` may enlarge\. Group '
      r'the raw files of both together\.$',
    ),
    (
      _FIRST,
      _SECOND,
      {'max_examples_per_group': 5, 'drop_duplicates': True},
      r"^`--add_to` must not lack examples, but '.*out' has dropped \d+ by "
      r'`--max_examples_per_group`, of which `--input` may hold duplicates\. '
      r'Group the raw files of both together\.$',
    ),
    (
      _FIRST,
      _with(_SECOND, 'author'),
      {'max_examples_per_group': 5},
      r"^`--input` must have no features that '.*out' lacks, but has author, "
      r'with which other examples might have been dropped as group_cap\. Group '
      r'the raw files of both together\.$',
    ),
    (
      [record | {'timestamp': '2001-01-01'} for record in _TIMED],
      _TIMED,
      {'split': _BY_TIME},
      r"^`--add_to` must hold all parts of the split, but in '.*out' there is "
      r"no corpus 'test'\. Group the raw files of both together\.$",
    ),
  ],
)
def test_what_could_not_be_equal(tmp_path, first, second, options, message):
  with pytest.raises(UserError, match=message):
    _add(tmp_path, first, second, **options)
  assert not (tmp_path / 'new').exists()


def _cut(corpus, path):
  path.write_bytes(path.read_bytes()[:-1])


def _rewrite(corpus, path):
  """Replaces a text in a record whose checksums are right."""
  payloads = [payload for _, payload in records.iterate_records(path)]
  assert b'text 0' in payloads[0]
  with open(path, 'wb') as file:
    for payload in payloads:
      records.write_record(file, payload.replace(b'text 0', b'text X'))


def _append_to_index(corpus, path):
  with open(corpus / 'index.parquet', 'ab') as file:
    file.write(b'x')


def _count(name, value):
  def change(corpus, path):
    edit_manifest(
      corpus, lambda manifest: manifest['counts'].update({name: value})
    )

  return change


def _count_in_shard(corpus, path):
  edit_manifest(
    corpus, lambda manifest: manifest['shards'][0].update(num_records=7)
  )


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (
      _cut,
      "'{old}' must hold the shard {name} of {size} bytes, but it has {less} "
      'bytes',
    ),
    (
      _rewrite,
      "'{old}/{name}' must have the sha256 {sha256} that manifest.json says, "
      'but has {found}',
    ),
    (_append_to_index, "'{old}/index.parquet' must have the sha256 "),
    (
      lambda corpus, path: (corpus / 'index.parquet').unlink(),
      "'{old}' must hold index.parquet, but it is missing",
    ),
    # 5 records of 2 hosts, and 1 line that is no JSON.
    (
      _count('records_in', 7),
      "'{old}/manifest.json' must say records_in 6, which is what the corpus "
      'holds and dropped, but says 7',
    ),
    (
      _count('records_out', 6),
      "'{old}/manifest.json' must say records_out 5, which is what the corpus "
      'holds, but says 6',
    ),
    (
      _count('num_groups', 1),
      "'{old}/manifest.json' must say num_groups 2, which is what the corpus "
      'holds, but says 1',
    ),
    (
      _count('drops', {}),
      "'{old}/manifest.json' must say records_in 5, which is what the corpus "
      'holds and dropped, but says 6',
    ),
    (
      _count_in_shard,
      'must have the num_records 7 that manifest.json says, but has ',
    ),
  ],
)
def test_damaged_corpus(tmp_path, damage, message):
  first = [{'text': f'text {i}', 'url': f'http://h{i % 2}/'} for i in range(5)]
  old = group_lines(tmp_path / 'first', [*first, b'{'])
  raw = write_lines(tmp_path / 'second.json', _SECOND)
  (path,) = (p for p in old.glob('*.tfrecord') if b'text 0' in p.read_bytes())
  data = path.read_bytes()
  damage(old, path)
  with pytest.raises(UserError) as raised:
    run_group_job(make_job([raw], add_to=str(old)), tmp_path / 'new')
  found = str(raised.value)
  assert found.startswith(f"`--add_to`: '{old}")
  assert (
    message.format(
      old=old,
      name=path.name,
      size=len(data),
      less=len(data) - 1,
      sha256=hashlib.sha256(data).hexdigest(),
      found=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    in found
  )
  assert found.endswith(
    '. Copy the directory again, or run `fedfish group` again.'
  )
  assert sorted(p.name for p in tmp_path.iterdir()) == ['first', 'second.json']


def test_corpus_of_an_earlier_version(tmp_path):
  old = group_lines(tmp_path / 'first', _FIRST)
  value = json.loads((old / 'manifest.json').read_text())
  del value['options']['drop_duplicates']
  del value['options']['max_examples_per_group']
  (old / 'manifest.json').write_text(json.dumps(value))
  raw = write_lines(tmp_path / 'second.json', _SECOND)
  run_group_job(make_job([raw], add_to=str(old)), tmp_path / 'new')
  assert read_manifest(tmp_path / 'new').options['drop_duplicates'] is False
