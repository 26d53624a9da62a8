"""Whatever happens to the raw files, every record is stored or counted."""

import gzip
import json
import lzma

import hypothesis
import hypothesis.strategies as st
import pytest
from grouping_jobs import make_job, raw_records, write_lines

from pipelines import job, reports, runs
from pipelines.job import run_group_job
from pipelines.read_files import FileReader
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import UserError

_GOOD = st.builds(
  lambda text, host: json.dumps({'text': text, 'url': f'http://{host}/'}),
  st.text(min_size=1).filter(lambda text: not text.isspace()),
  st.sampled_from(['a.com', 'B.com', 'b.com:80', 'c.com', 'bücher.de']),
).map(str.encode)
_BAD = st.one_of(
  st.sampled_from(
    [b'{', b'[]', b'1', b'null', b'{"text": "x"}', b'{"text": ""}', b'\xff']
  ),
  st.binary(max_size=30).map(lambda line: line.replace(b'\n', b'')),
)
_LINES = st.lists(st.one_of(_GOOD, _GOOD, _BAD), min_size=1, max_size=30)
_ENCODINGS = st.sampled_from(['utf-8', 'utf-8-sig', 'latin-1', 'utf-16'])
_OPTIONS = st.sampled_from(
  [
    {'drop_duplicates': True},
    {'drop_duplicates': True, 'min_examples_per_group': 2},
  ]
)
_PACKS = st.sampled_from([bytes, gzip.compress, lzma.compress])


def _encode(line, encoding):
  try:
    # As text in another encoding, where that is possible.
    return json.dumps(json.loads(line), ensure_ascii=False).encode(encoding)
  except (ValueError, UnicodeError):
    return line


def _damage(data, file):
  kind = data.draw(st.sampled_from(['none', 'cut', 'flip', 'append']))
  place = data.draw(st.integers(0, max(len(file) - 1, 0)))
  if kind == 'cut':
    return file[:place]
  if kind == 'flip' and file:
    bit = 1 << data.draw(st.integers(0, 7))
    return file[:place] + bytes([file[place] ^ bit]) + file[place + 1 :]
  if kind == 'append':
    return file + data.draw(st.binary(max_size=20))
  return file


# A job takes as long for one file as for six.
@hypothesis.settings(max_examples=8)
@hypothesis.given(
  files=st.lists(st.tuples(_LINES, _ENCODINGS, _PACKS), min_size=1, max_size=6),
  data=st.data(),
)
def test_in_equals_out_plus_drops(tmp_path_factory, files, data):
  directory = tmp_path_factory.mktemp('any')
  paths = []
  for i, (lines, encoding, pack) in enumerate(files):
    lines = [_encode(line, encoding) for line in lines]
    path = directory / f'{i}.json'
    path.write_bytes(_damage(data, pack(b'\n'.join(lines))))
    paths.append(path)
  output = directory / 'out'
  options = data.draw(_OPTIONS)
  try:
    (manifest,) = run_group_job(make_job(paths, **options), output)
  except UserError:
    # Nothing usable was left, or what is left looks like a zip file.
    assert not output.exists()
    return
  counts = manifest.counts
  assert counts.records_in == counts.records_out + sum(counts.drops.values())
  assert counts.records_in == sum(file.records_in for file in manifest.inputs)
  assert manifest.drop_examples.keys() == counts.drops.keys()
  # What is said to be stored is there, byte by byte.
  assert verify_corpus(output).num_examples == counts.records_out


@pytest.mark.parametrize(
  'owner, name, is_lost, found',
  [
    (
      *(reports, 'write_task_report', lambda work, num, *_: num == 0),
      '4 read from 1 of 2 files, 0 dropped, 4 handed on, .*, 4 written',
    ),
    (
      *(runs.RunWriter, 'add', lambda self, shard, row: row[0] == b'h3'),
      '10 read from 2 of 2 files, 2 dropped, 8 handed on, 0 .*, 7 written',
    ),
    (
      *(FileReader, '_count_drop', lambda self, report, num, *_: num == 4),
      '10 read from 2 of 2 files, 1 dropped, 8 handed on, 0 .*, 8 written',
    ),
  ],
)
def test_lost_records_are_noticed(
  tmp_path, monkeypatch, owner, name, is_lost, found
):
  do = getattr(owner, name)
  monkeypatch.setattr(owner, name, lambda *a: not is_lost(*a) and do(*a))
  # A task for each file.
  monkeypatch.setattr(job, '_TASK_BYTES', 1)
  lines = raw_records(8)
  first = write_lines(tmp_path / 'a', [*lines[:3], b'{', b'{', lines[3]])
  second = write_lines(tmp_path / 'b', lines[4:])
  with pytest.raises(RuntimeError, match=f'^Records were lost: {found}'):
    run_group_job(make_job([first, second]), tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
