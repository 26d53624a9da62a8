"""A large file of plain lines, cut into spans: no line twice, none lost."""

import hypothesis
import hypothesis.strategies as st
import pytest
from grouping_jobs import contents, make_job, raw_records, write_lines

from pipelines import job as jobs
from pipelines import stack_overflow
from pipelines.job import run_group_job
from pipelines.objects import read_lines
from pipelines.source import Drop, Span
from tff_fedfish.errors import UserError


def _spans(size, length):
  return [
    Span(start, start + length if start + length < size else Span().stop)
    for start in range(0, size, length)
  ]


@hypothesis.given(data=st.data(), length=st.integers(1, 40))
def test_every_line_is_read_once(tmp_path_factory, data, length):
  lines = data.draw(st.lists(st.binary(max_size=20), max_size=20))
  path = tmp_path_factory.mktemp('lines') / 'x'
  path.write_bytes(b'\n'.join(line.replace(b'\n', b'') for line in lines))
  found = []
  for span in _spans(path.stat().st_size, length):
    with path.open('rb') as stream:
      found += [line for _, line in read_lines(stream, 1 << 20, span)]
  assert found == path.read_bytes().splitlines(keepends=True) or (
    # Only `\n` ends a line.
    b''.join(found) == path.read_bytes()
    and all(line.find(b'\n') in (-1, len(line) - 1) for line in found)
  )


def test_the_same_corpus(tmp_path, monkeypatch):
  values = [*raw_records(40), b'{', *raw_records(9), b'{', b'', b'[]']
  raw = write_lines(tmp_path / 'x.json', values)
  (whole,) = run_group_job(make_job([raw]), tmp_path / 'whole')
  assert whole.drop_examples['not_an_object'].line == 53
  for length in (100, 1000):
    monkeypatch.setattr(jobs, '_SPAN_BYTES', length)
    output = tmp_path / str(length)
    run_group_job(make_job([raw]), output)
    assert contents(output) == contents(tmp_path / 'whole')
  with pytest.raises(UserError, match=r'record \d+ after byte [\d,]+ of'):
    run_group_job(make_job([raw], strict=True), tmp_path / 'strict')


def _posts(is_whole):
  rows = [
    f'  <row Id="{n}" PostTypeId="1" OwnerUserId="{n % 3}" Body="text {n}" '
    'CreationDate="2010-01-01T00:00:00.000" />'
    for n in range(1, 30)
  ]
  end = ['</posts>'] * is_whole
  lines = ['<?xml version="1.0" encoding="utf-8"?>', '<posts>', *rows, *end]
  return '\n'.join(lines).encode()


@pytest.mark.parametrize('is_whole', [True, False])
@pytest.mark.parametrize('length', [5, 90, 333, 5000])
def test_posts(tmp_path, is_whole, length):
  path = tmp_path / 'stackoverflow.com-Posts.xml'
  path.write_bytes(_posts(is_whole))
  found = [
    record
    for span in _spans(path.stat().st_size, length)
    for _, record in stack_overflow.read_records(str(path), 1 << 20, span=span)
  ]
  drops = [r.reason for r in found if isinstance(r, Drop)]
  assert drops == ([] if is_whole else ['truncated_file'])
  texts = [r['text'] for r in found if not isinstance(r, Drop)]
  assert texts == [f'text {n}' for n in range(1, 30)]


def test_what_is_not_cut(tmp_path, monkeypatch):
  monkeypatch.setattr(jobs, '_SPAN_BYTES', 10)
  raw = write_lines(tmp_path / 'x.json', [b'{', b'"text": "a"}'])
  job = make_job([raw])
  size = raw.stat().st_size
  tasks, _ = jobs._plan_tasks(job, job.paths, [size])
  assert [len(task) for task in tasks] == [1] and tasks[0][0].start == 0
