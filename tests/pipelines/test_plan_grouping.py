"""Plan of a grouping job beside the job itself."""

import re

import pytest
from grouping_jobs import make_job, raw_records, write_lines

from pipelines import plan_grouping as planning
from pipelines.group_job import run_group_job
from pipelines.pieces import MAX_PIECE_BYTES
from pipelines.plan_grouping import plan_grouping
from tff_fedfish.errors import UserError


@pytest.fixture
def raw(tmp_path):
  """Returns four files of which each has a tenth, or four, of 1000 records."""
  lines = [
    record | {'url': f'http://h{i % 97}/'}
    for i, record in enumerate(raw_records(1000))
  ]
  ends = (0, 100, 200, 300, 1000)
  return [
    write_lines(tmp_path / f'{i}.json', lines[ends[i] : ends[i + 1]])
    for i in range(4)
  ]


def test_whole_input_is_exact(raw, tmp_path):
  job = make_job(raw, num_shards=4)
  plan = plan_grouping(job, num_workers=2)
  run_group_job(job, tmp_path / 'out')
  shards = sum(p.stat().st_size for p in tmp_path.glob('out/*.tfrecord'))
  assert plan.shard_bytes == shards
  assert plan.num_records == 1000
  assert plan.sample_bytes == plan.input_bytes
  assert plan.input_bytes == sum(path.stat().st_size for path in raw)
  # Small files are one part, which one worker reads.
  assert plan.num_tasks == 1
  assert plan.largest_task_seconds == pytest.approx(plan.read_seconds)
  assert plan.job_seconds == pytest.approx(
    plan.read_seconds + (plan.sort_seconds + plan.write_seconds) / 2
  )
  assert plan.disk_bytes == plan.piece_bytes + plan.shard_bytes
  assert plan.element_bytes == MAX_PIECE_BYTES


def test_a_part_is_extrapolated(raw, tmp_path, monkeypatch):
  monkeypatch.setattr(planning, '_SAMPLE_BYTES', 1)
  monkeypatch.setattr('pipelines.group_job._TASK_BYTES', 1)
  job = make_job(raw, num_shards=4)
  run_group_job(job, tmp_path / 'out')
  shards = sum(p.stat().st_size for p in tmp_path.glob('out/*.tfrecord'))
  plan = plan_grouping(job)
  assert plan.num_tasks == 4
  assert plan.sample_bytes == min(path.stat().st_size for path in raw)
  assert plan.num_records == pytest.approx(1000, rel=0.02)
  # 97 groups of 1000 records become 970: more bytes for ids and frames.
  assert shards < plan.shard_bytes < 2 * shards
  # Seven tenths are one file.
  assert plan.largest_task_seconds == pytest.approx(
    0.7 * plan.read_seconds, rel=0.02
  )
  larger = plan_grouping(job, input_bytes=10 * plan.input_bytes)
  assert larger.num_records == pytest.approx(10 * plan.num_records, abs=10)
  assert larger.num_tasks == 40


def test_nothing_to_group(tmp_path):
  raw = write_lines(tmp_path / 'raw', [{'text': 'x', 'url': ''}])
  with pytest.raises(
    UserError,
    match='^'
    + re.escape(
      '`--input` must hold records that can be grouped by host, but its 1 '
      'smallest files have none. Name other files.'
    ),
  ):
    plan_grouping(make_job([raw]))
