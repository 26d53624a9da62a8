"""Dropped records that are written: what of them, where, and how many."""

import gzip
import json
import random

import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines.group_job import run_group_job
from pipelines.source import Fields
from tff_fedfish.data.manifest import DroppedRecords, read_manifest
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import FailedError, UserError

_BAD = [
  b'{"text": "cut',
  b'\xff',
  b'[1]',
  {'text': 'no url', 'title': '\u00e9'},
  {'text': ' '},
  b'{"text": "\\ud800", "url": "http://a/"}',
]


def _lines(directory):
  return [
    json.loads(line)
    for path in sorted(directory.iterdir())
    for line in gzip.decompress(path.read_bytes()).splitlines()
  ]


def test_by_hand(tmp_path):
  path = write_lines(tmp_path / 'raw.json', [*raw_records(2), *_BAD])
  dropped, output = tmp_path / 'dropped', tmp_path / 'out'
  job = make_job([path], write_dropped=str(dropped))
  (manifest,) = run_group_job(job, output)
  assert [p.name for p in dropped.iterdir()] == [
    'dropped-00000-of-00001.jsonl.gz'
  ]
  rows = _lines(dropped)
  assert all(row.pop('file') == 'raw.json' for row in rows)
  assert rows[:3] == [
    {'reason': 'malformed_json', 'line': 3, 'record': '{"text": "cut'},
    # No text: what it is in base64.
    {'reason': 'invalid_utf8', 'line': 4, 'record_base64': '/w=='},
    {'reason': 'not_an_object', 'line': 5, 'record': '[1]'},
  ]
  # What could be parsed, as JSON; what only its key is missing, as it was read.
  assert [(row['reason'], json.loads(row['record'])) for row in rows[3:]] == [
    (
      'missing_url',
      {'text': 'no url', 'timestamp': '', 'url': '', 'title': '\u00e9'},
    ),
    ('empty_text', {'text': ' '}),
    ('unpaired_surrogate', {'text': '\ud800', 'url': 'http://a/'}),
  ]
  assert manifest.dropped_records == DroppedRecords(
    num_written=6, num_not_written=0
  )
  assert read_manifest(output) == manifest
  assert verify_corpus(output).num_examples == 2


def test_corpus_is_the_same_otherwise(tmp_path):
  path = write_lines(tmp_path / 'raw.json', [*raw_records(20), *_BAD])
  run_group_job(make_job([path]), tmp_path / 'plain')
  run_group_job(make_job([path], write_dropped=f'{tmp_path}/d'), tmp_path / 'o')
  plain, found = contents(tmp_path / 'plain'), contents(tmp_path / 'o')
  manifests = [json.loads(a.pop('manifest.json')) for a in (plain, found)]
  assert plain == found
  assert 'dropped_records' not in manifests[0]
  assert manifests[1].pop('dropped_records')
  assert manifests[0] == manifests[1]


def test_only_the_beginning_is_known(tmp_path):
  cut = tmp_path / 'cut.json.gz'
  line = b'{"text": "%s", "url": "http://a/"}\n'
  cut.write_bytes(gzip.compress(line % b'a')[:-1])
  whole = write_lines(
    tmp_path / 'whole.json', [*raw_records(1), line % (b'x' * (2 << 20))]
  )
  dropped = tmp_path / 'dropped'
  job = make_job(
    [cut, whole], write_dropped=str(dropped), max_document_bytes=100
  )
  run_group_job(job, tmp_path / 'out')
  damage, long = _lines(dropped)
  assert damage == {
    'reason': 'truncated_file',
    'file': 'cut.json.gz',
    'line': 2,
    'byte': len(cut.read_bytes()),
    'record': '',
    'is_whole': False,
  }
  # 200 bytes of it.
  assert (long['reason'], long['is_whole']) == ('document_too_large', False)
  assert long['record'] == '{"text": "' + 'x' * 190


def test_bound(tmp_path):
  # Records of 4, 11 and 4 bytes, with 74 bytes around each.
  path = write_lines(
    tmp_path / 'raw.json', [*raw_records(1), b'{bad', b'{bad, worse', b'{bad']
  )
  dropped = tmp_path / 'dropped'
  job = make_job([path], write_dropped=str(dropped), max_dropped_bytes=160)
  (manifest,) = run_group_job(job, tmp_path / 'out')
  # 78 + 85 are too many; 78 + 78 are not.
  assert [row['line'] for row in _lines(dropped)] == [2, 4]
  assert manifest.dropped_records == DroppedRecords(
    num_written=2, num_not_written=1
  )
  verify_corpus(tmp_path / 'out')
  job = make_job([path], write_dropped=f'{tmp_path}/none', max_dropped_bytes=1)
  (manifest,) = run_group_job(job, tmp_path / 'out2')
  assert [*(tmp_path / 'none').iterdir()] == []
  assert manifest.dropped_records == DroppedRecords(
    num_written=0, num_not_written=3
  )


def test_repeated_bundles_write_nothing_twice(tmp_path, monkeypatch):
  # A task for each file.
  monkeypatch.setattr('pipelines.group_job._MAX_TASK_FILES', 1)
  paths = [
    write_lines(tmp_path / f'{i}.json', [*raw_records(3), *_BAD[i:]])
    for i in range(3)
  ]
  found = []
  for name, flags in (
    ('once', ()),
    ('twice', ('--direct_runner_bundle_repeat=1',)),
  ):
    dropped = tmp_path / f'dropped_{name}'
    job = make_job(paths, write_dropped=str(dropped))
    run_group_job(job, tmp_path / name, flags)
    found.append((contents(dropped), contents(tmp_path / name)))
  assert found[0] == found[1]
  assert len(found[0][0]) == 3


def test_failure_leaves_nothing(tmp_path):
  path = write_lines(tmp_path / 'raw.json', [*raw_records(3), *_BAD])
  job = make_job([path], write_dropped=f'{tmp_path}/dropped', strict=True)
  with pytest.raises(UserError, match='malformed_json'):
    run_group_job(job, tmp_path / 'out')
  assert list(tmp_path.iterdir()) == [path]


def _run(tmp_path, *, exists=False, fill=None):
  """Groups into `out`; files what is named while the job is running."""
  path = write_lines(tmp_path / 'raw.json', [*raw_records(3), *_BAD])
  dropped = tmp_path / 'dropped'
  if exists:
    dropped.mkdir()
  job = make_job([path], write_dropped=str(dropped))

  def watch(staging, num_tasks):
    if fill:
      write_lines(tmp_path / fill, [b'theirs'])

  return run_group_job(job, tmp_path / 'out', watch=watch)


def _files(directory):
  return sorted(
    str(path.relative_to(directory)) for path in directory.rglob('*')
  )


@pytest.mark.parametrize('exists', [True, False])
@pytest.mark.parametrize('name', ['theirs', 'dropped-00000-of-00001.jsonl.gz'])
def test_directory_that_is_filled_meanwhile(tmp_path, exists, name):
  with pytest.raises(
    UserError,
    match=r'^`--write_dropped` must stay empty while it is written, but '
    r"'.*dropped' was filled meanwhile, perhaps by another job\. Name another "
    r'directory\.$',
  ):
    _run(tmp_path, exists=exists, fill=f'dropped/{name}')
  # No output, and nothing of ours.
  assert _files(tmp_path) == ['dropped', f'dropped/{name}', 'raw.json']
  assert (tmp_path / 'dropped' / name).read_bytes() == b'theirs'


@pytest.mark.parametrize('exists', [True, False])
def test_output_that_is_filled_meanwhile(tmp_path, exists):
  with pytest.raises(UserError, match='`--output` must stay empty while'):
    _run(tmp_path, exists=exists, fill='out/theirs')
  left = ['dropped'] * exists + ['out', 'out/theirs', 'raw.json']
  assert _files(tmp_path) == left


def test_parents_go_with_a_refusal(tmp_path):
  path = write_lines(tmp_path / 'raw.json', [*raw_records(3), b'{'])
  (tmp_path / 'a').mkdir()
  job = make_job([path], write_dropped=f'{tmp_path}/a/b/c/dropped')
  with pytest.raises(UserError, match='`--output` must stay empty while'):
    run_group_job(
      job,
      tmp_path / 'out',
      watch=lambda *_: write_lines(tmp_path / 'out' / 'theirs', []),
    )
  assert _files(tmp_path) == ['a', 'out', 'out/theirs', 'raw.json']


def test_full_disk(tmp_path, small_disk):
  draw = random.Random(1)
  # A quarter of them remains, packed; there is room for 256 KiB.
  lines = [b'{%x' % draw.getrandbits(8000) for _ in range(600)]
  path = write_lines(tmp_path / 'raw.json', [*raw_records(3), *lines])
  directory = small_disk / 'dropped'
  job = make_job([path], write_dropped=str(directory))
  with pytest.raises(
    FailedError,
    match=rf"^Writing `--write_dropped` '{directory}' stopped \(\[Errno 28\] "
    r'No space left on device\); nothing was kept\. Check its disk and the '
    r'free space there, then run it again\.$',
  ):
    run_group_job(job, tmp_path / 'out')
  assert _files(tmp_path) == ['disk', 'raw.json']


def test_existing_directory_is_filled_not_replaced(tmp_path):
  (tmp_path / 'dropped').mkdir()
  before = (tmp_path / 'dropped').stat().st_ino
  _run(tmp_path)
  assert (tmp_path / 'dropped').stat().st_ino == before
  assert len(_lines(tmp_path / 'dropped')) == 6


def test_posts_and_rows(tmp_path):
  post = '<row Id="1" PostTypeId="3" Body="a" />'
  (tmp_path / 'Posts.xml').write_text(
    '<posts>\n'
    '<row Id="2" PostTypeId="1" Body="b" OwnerUserId="7" />\n'
    f'{post}\n</posts>'
  )
  job = make_job(
    [tmp_path / 'Posts.xml'],
    source_name='stack_overflow',
    key='author',
    write_dropped=f'{tmp_path}/posts',
  )
  run_group_job(job, tmp_path / 'out')
  (row,) = _lines(tmp_path / 'posts')
  assert (row['reason'], row['record']) == ('other_post_type', post)
  path = write_lines(
    tmp_path / 'raw.json', [{'t': 'a', 'k': 'b'}, {'t': 'c', 'k': 1.5}]
  )
  job = make_job(
    [path],
    source_name='json_lines',
    key='k',
    fields=Fields(key='k', text='t'),
    write_dropped=f'{tmp_path}/rows',
  )
  run_group_job(job, tmp_path / 'out2')
  (row,) = _lines(tmp_path / 'rows')
  assert row['reason'] == 'malformed_key'
  assert json.loads(row['record']) == {'t': 'c', 'k': 1.5}
