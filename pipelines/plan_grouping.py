"""Cost of a grouping job, from a part of its input that is grouped here."""

import collections
import dataclasses
import math
import os
import tempfile
import time
from typing import Annotated

from pipelines.blocks import names_of, sort_blocks
from pipelines.group_job import Task, plan_tasks
from pipelines.job import GroupJob
from pipelines.pieces import (
  MAX_PIECE_BYTES,
  PieceKeys,
  merge_pieces,
  write_piece,
)
from pipelines.read_raw_files import RawFileReader
from pipelines.write_groups import write_shard
from tff_fedfish.errors import UserError

# Whole tasks are read, the smallest first, until there is that much.
_SAMPLE_BYTES = 16 << 20
_STAGES = ('read_seconds', 'sort_seconds', 'write_seconds')

_NOT_PLANNED = {}
"""Options of a job that a plan refuses -> why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupingPlan:
  """Cost of a grouping job; labels are those of the printed table.

  Everything is in proportion to the bytes of the input. Only the index, which
  has a row for every group, is smaller where more input has fewer new groups.
  Seconds are of one processor like this one, without what a runner, its network
  and a remote file system take.
  """

  num_workers: int
  num_tasks: int
  """Parts of the input, each of which one worker reads."""
  num_records: int
  """Records that are grouped."""
  sample_bytes: Annotated[int, 'sample, as stored']
  input_bytes: Annotated[int, 'input, as stored']
  shuffled_bytes: Annotated[int, 'shuffled by the runner']
  piece_bytes: Annotated[int, 'sorted pieces, written and read again']
  shard_bytes: Annotated[int, 'shards']
  index_bytes: Annotated[int, 'index in memory, at most']
  disk_bytes: Annotated[int, 'disk of the output, until the job ends']
  element_bytes: Annotated[int, 'largest element, at most']
  read_seconds: Annotated[float, 'reading']
  sort_seconds: Annotated[float, 'sorting pieces']
  write_seconds: Annotated[float, 'writing shards']
  largest_task_seconds: Annotated[float, 'reading the largest part']
  job_seconds: Annotated[float, 'job, {num_workers} workers']


def plan_grouping(
  job: GroupJob, *, num_workers: int = 1, input_bytes: int | None = None
) -> GroupingPlan:
  """Groups a part of the input, without a runner, and extrapolates.

  Args:
    job: What to group.
    num_workers: Processes among which it is divided.
    input_bytes: Size of the whole input, as it is stored; None: that of the
      job's files.

  Raises:
    UserError: If the sample has no record that can be grouped.
  """
  for name, reason in _NOT_PLANNED.items():
    if getattr(job, name):
      raise UserError(
        f'`--{name}` must not be given for a plan, which {reason}. Leave it '
        'out: the plan is of a job without it.'
      )
  tasks, sizes = plan_tasks(job)
  own_bytes = sum(sizes)
  input_bytes = input_bytes or own_bytes
  sample, sample_bytes = [], 0
  for task, size in sorted(zip(tasks, sizes, strict=True), key=lambda p: p[1]):
    if sample_bytes < _SAMPLE_BYTES:
      sample.append(task)
      sample_bytes += size
  scale = input_bytes / max(1, sample_bytes)
  # As few as make pieces and shards of the size that those of the job have.
  num_shards = math.ceil(job.num_shards / max(1, scale))
  found = _group(sample, dataclasses.replace(job, num_shards=num_shards))
  if not found['num_records']:
    raise UserError(
      f'`--input` must hold records that can be grouped by {job.key}, but its '
      f'{sum(map(len, sample))} smallest files have none. Name other files.'
    )
  seconds = {name: found.pop(name) * scale for name in _STAGES}
  read, *later = seconds.values()
  counts = {name: math.ceil(value * scale) for name, value in found.items()}
  num_tasks = max(1, round(len(tasks) * input_bytes / max(1, own_bytes)))
  largest = read * max(sizes) / max(1, input_bytes)
  return GroupingPlan(
    **counts,
    **seconds,
    num_workers=num_workers,
    num_tasks=num_tasks,
    sample_bytes=sample_bytes,
    input_bytes=input_bytes,
    disk_bytes=counts['piece_bytes'] + counts['shard_bytes'],
    # A record that is larger is alone in its element.
    element_bytes=max(MAX_PIECE_BYTES, job.max_document_bytes),
    largest_task_seconds=largest,
    # A part of the input, and a shard, is the work of one worker.
    job_seconds=max(largest, read / min(num_workers, num_tasks))
    + sum(later) / min(num_workers, job.num_all_shards()),
  )


def _group(tasks: list[Task], job: GroupJob) -> collections.Counter:
  """Does the work of workers; returns sizes and seconds, by field."""
  found: collections.Counter = collections.Counter()
  key_to_blocks = collections.defaultdict(list)
  number_to_paths = collections.defaultdict(list)
  source = job.load_source()
  start = time.process_time()
  mask = 0
  for task_num, task in enumerate(tasks):
    reader = RawFileReader(job, PieceKeys(task_num, 1))
    for key, block in reader.read(task):
      key_to_blocks[key].append(block)
      found['shuffled_bytes'] += len(block)
    mask |= reader.features
  found['read_seconds'] = time.process_time() - start
  features = sorted(names_of(mask, source.optional_feature_names))
  with tempfile.TemporaryDirectory() as directory:
    start = time.process_time()
    for i, (key, blocks) in enumerate(key_to_blocks.items()):
      table = sort_blocks(blocks, source, features)
      path = os.path.join(directory, f'{i}.arrow')
      write_piece(path, table)
      number_to_paths[key[0]].append(path)
      found['num_records'] += table.num_rows
      found['piece_bytes'] += os.path.getsize(path)
    found['sort_seconds'] = time.process_time() - start
    start = time.process_time()
    for number, paths in number_to_paths.items():
      path = os.path.join(directory, f'{number}.tfrecord')
      with merge_pieces(paths) as rows:
        report, index = write_shard(path, number % job.num_shards, rows, job)
      found['shard_bytes'] += report.shard.num_bytes
      found['index_bytes'] += index.nbytes
    found['write_seconds'] = time.process_time() - start
  return found
