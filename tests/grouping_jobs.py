"""Raw files and grouping jobs that several tests need."""

import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterable
from typing import Any

from waiting import wait_until

from pipelines.job import run_group_job
from pipelines.options import GroupJob


def make_job(paths: Iterable[pathlib.Path], **options: Any) -> GroupJob:
  """Returns a job of three shards by host; options replace its own."""
  options = {
    'source_name': 'c4',
    'key': 'host',
    'num_shards': 3,
    'max_record_bytes': 1 << 20,
  } | options
  return GroupJob(paths=tuple(map(str, paths)), **options)


def write_lines(path: pathlib.Path, values: Iterable[Any]) -> pathlib.Path:
  """Writes a line for every value: bytes as they are, others as JSON."""
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = [
    value if isinstance(value, bytes) else json.dumps(value).encode()
    for value in values
  ]
  path.write_bytes(b'\n'.join(lines))
  return path


def group_lines(
  directory: pathlib.Path, values: Iterable[Any], **options: Any
) -> pathlib.Path:
  """Returns a corpus, made in `directory` of a line for every value."""
  raw = write_lines(directory / 'raw.json', values)
  run_group_job(make_job([raw], **options), directory / 'out')
  return directory / 'out'


def wait_until_read(
  raw: pathlib.Path, process: subprocess.Popen, *pids: int
) -> None:
  """Returns when the job of a process has a directory and reads a raw file.

  Args:
    raw: The file; the job's output lies beside it.
    process: What was started; fails if it ends.
    *pids: Processes of which one reads.
  """

  def is_read():
    assert process.poll() is None, process.communicate()
    if not any(raw.parent.glob('*/.fedfish-*/job')):
      return False
    for pid in pids:
      for link in pathlib.Path(f'/proc/{pid}/fd').glob('*'):
        with contextlib.suppress(OSError):
          if os.readlink(link) == str(raw):
            return True
    return False

  wait_until(is_read)


def raw_records(num_records: int) -> list[dict[str, str]]:
  """Returns records of up to seven hosts, with three timestamps."""
  return [
    {'text': f'text {i}', 'timestamp': f'{i % 3}', 'url': f'http://h{i % 7}/'}
    for i in range(num_records)
  ]


def contents(directory: pathlib.Path) -> dict[str, bytes]:
  """Returns what the files of a directory hold, by relative path."""
  return {
    str(path.relative_to(directory)): path.read_bytes()
    for path in sorted(directory.rglob('*'))
    if path.is_file()
  }
