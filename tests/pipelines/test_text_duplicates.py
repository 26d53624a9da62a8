"""Without duplicates across groups: which example of a text stays."""

import hashlib

import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines.group_job import run_group_job
from pipelines.splits import SplitRule
from pipelines.text_duplicates import by_text
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import DropExample
from tff_fedfish.data.verify import verify_corpus


def _record(host, text, timestamp, page='', **more):
  url = f'http://{host}/{page}'
  return {'text': text, 'url': url, 'timestamp': timestamp} | more


def _stored(output):
  corpus = GroupedCorpus(output)
  return {
    client_id: [
      (example['text'], example['timestamp'], example['url'])
      for example in corpus.examples(client_id)
    ]
    for client_id in corpus.client_ids
  }


def test_by_hand(tmp_path):
  paths = [
    write_lines(
      tmp_path / 'first.json',
      [
        _record('a', 'later', '2'),
        _record('b', 'equal', '1'),
        _record('c', 'z', '1', 'x'),
        _record('c', 'once', '3'),
      ],
    ),
    write_lines(
      tmp_path / 'second.json',
      [
        _record('b', 'later', '1'),
        _record('a', 'equal', '1'),
        _record('c', 'z', '1', 'y'),
      ],
    ),
  ]
  job = make_job(paths, drop_duplicates_across_groups=True)
  output = tmp_path / 'out'
  (manifest,) = run_group_job(job, output)
  # Of `later` the earlier, of `equal` that of the first group. The two of `z`
  # differ in nothing but their URLs.
  found = _stored(output)
  (kept,) = [row for row in found[b'c'] if row[0] == b'z']
  assert kept[1:] in [(b'1', b'http://c/x'), (b'1', b'http://c/y')]
  assert found == {
    b'a': [(b'equal', b'1', b'http://a/')],
    b'b': [(b'later', b'1', b'http://b/')],
    b'c': [kept, (b'once', b'3', b'http://c/')],
  }
  # 7 in = 4 out + 3 duplicates.
  assert (manifest.counts.records_in, manifest.counts.records_out) == (7, 4)
  assert manifest.counts.drops == {'duplicate_across_groups': 3}
  assert manifest.drop_examples['duplicate_across_groups'] == DropExample(
    group='a', excerpt='later'
  )
  assert manifest.options['drop_duplicates_across_groups'] is True
  assert verify_corpus(output).num_examples == 4


def test_row_of_a_text():
  row = (b'group', b'1', b'http://a/', b'sha', b'example', 2, 0)
  digest = hashlib.sha256(b'text').digest()
  expected = (digest, b'1', b'group', b'sha', b'example', 2, 0)
  assert by_text(row, b'text') == expected


@pytest.mark.parametrize(
  ('options', 'piece_bytes', 'beam_flags'),
  [
    ({'block_bytes': 40}, 64 << 20, ()),
    # Pieces of texts and of groups have three records or so.
    ({}, 300, ()),
    # Every bundle is run twice: its counts must not be.
    ({}, 64 << 20, ('--direct_runner_bundle_repeat=1',)),
  ],
)
def test_same_bytes_however_the_work_is_divided(
  tmp_path, monkeypatch, options, piece_bytes, beam_flags
):
  lines = [
    # Some have a feature that others lack, so that hashes change.
    record | {'title': 't'} if i % 5 else record
    for i, record in enumerate([*raw_records(50), *raw_records(70)[::3]])
  ]
  whole = write_lines(tmp_path / 'raw.json', lines)
  parts = [
    write_lines(tmp_path / f'{i}.json', lines[i::4]) for i in range(3, -1, -1)
  ]
  options |= {'drop_duplicates_across_groups': True}
  (expected,) = run_group_job(make_job([whole], **options), tmp_path / 'whole')
  monkeypatch.setattr('pipelines.pieces.MAX_PIECE_BYTES', piece_bytes)
  run_group_job(make_job(parts, **options), tmp_path / 'parts', beam_flags)
  found, wanted = contents(tmp_path / 'parts'), contents(tmp_path / 'whole')
  del found['manifest.json'], wanted['manifest.json']
  assert found == wanted
  # Texts 0 to 49, and of every third of 70 those from 51 on: 7.
  assert expected.counts.records_out == 50 + 7


def test_order_of_what_drops(tmp_path):
  lines = [
    *(_record('a', f'{i}', '1') for i in range(3)),
    *(_record('b', f'{i}', '2') for i in range(5)),
    _record('c', 'x', '1'),
  ]
  job = make_job(
    [write_lines(tmp_path / 'raw.json', lines)],
    drop_duplicates_across_groups=True,
    drop_duplicates=True,
    min_examples_per_group=2,
    max_examples_per_group=2,
  )
  (manifest,) = run_group_job(job, tmp_path / 'out')
  # 9 in = 4 out + 3 of b that a has + 1 of c, which is too small, + 1 of a,
  # which is too large. b is not too small with the 2 that are left.
  assert manifest.counts.drops == {
    'duplicate_across_groups': 3,
    'small_group': 1,
    'group_cap': 1,
  }
  assert [*_stored(tmp_path / 'out')] == [b'a', b'b']


def test_parts_of_a_split_are_apart(tmp_path):
  lines = [
    _record('a', 'same', '2017-01-01'),
    _record('b', 'same', '2017-01-02'),
    _record('b', 'same', '2019-01-02'),
    _record('c', 'same', '2019-01-01'),
  ]
  job = make_job(
    [write_lines(tmp_path / 'raw.json', lines)],
    drop_duplicates_across_groups=True,
    split=SplitRule(kind='time', time='2018-01-01'),
  )
  for manifest in run_group_job(job, tmp_path / 'out'):
    # 4 in = 1 out + 1 duplicate + 2 of the other part.
    drops = {'duplicate_across_groups': 1, 'other_split': 2}
    assert manifest.counts.drops == drops
  assert [*_stored(tmp_path / 'out' / 'train')] == [b'a']
  assert [*_stored(tmp_path / 'out' / 'test')] == [b'c']
