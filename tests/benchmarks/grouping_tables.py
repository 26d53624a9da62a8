"""The tables of `make bench-grouping`."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

OURS, THEIRS = 'ours', 'dataset_grouper'
JSON_LINES = 'json_lines'
_MEMORY_GIB = 8


@dataclasses.dataclass
class Runs:
  """The runs of one arm on one corpus."""

  part: str
  arm: str
  num_records: int
  pipeline_seconds: list[float] = dataclasses.field(default_factory=list)
  process_seconds: list[float] = dataclasses.field(default_factory=list)
  processor_seconds: list[float] = dataclasses.field(default_factory=list)
  peak_tree_bytes: int = 0
  max_rss_bytes: int = 0
  """Largest of all runs, as `peak_tree_bytes`."""

  def median(self) -> float:
    """Seconds of the pipeline."""
    return statistics.median(self.pipeline_seconds)

  def microseconds(self) -> float:
    """Time of the pipeline, per record."""
    return self.median() / self.num_records * 1e6


def format_runs(all_runs: Sequence[Runs]) -> str:
  """Returns a line for each; memory is the largest of all turns."""
  lines = [
    f'{"part":22}{"job":16}{"records":>10}{"records/s":>11}{"min-max":>17}'
    f'{"us/record":>10}{"pipeline":>10}{"process":>9}{"cpu":>9}{"peak RSS":>10}'
    f'{"one proc.":>10}'
  ]
  for runs in all_runs:
    speeds = sorted(runs.num_records / s for s in runs.pipeline_seconds)
    lines.append(
      f'{runs.part:22}{runs.arm:16}{runs.num_records:10,}'
      f'{statistics.median(speeds):11,.0f}'
      f'{f"{speeds[0]:,.0f}-{speeds[-1]:,.0f}":>17}'
      f'{runs.microseconds():10.1f}{runs.median():8.2f} s'
      f'{statistics.median(runs.process_seconds):7.1f} s'
      f'{statistics.median(runs.processor_seconds):7.1f} s'
      f'{runs.peak_tree_bytes / 2**20:6,.0f} MiB'
      f'{runs.max_rss_bytes / 2**20:6,.0f} MiB'
    )
  return '\n'.join(lines)


def format_ratios(runs: Mapping[tuple[str, str], Runs]) -> str:
  """Returns how runs compare.

  Args:
    runs: What was run, by part and job.
  """
  lines = []
  for part in ('small', 'debian'):
    if (part, OURS) not in runs:
      continue
    ours, theirs = runs[part, OURS], runs[part, THEIRS]
    lines += [
      _ratio(
        f'{part}: records/s, ours over dataset_grouper',
        theirs.pipeline_seconds,
        ours.pipeline_seconds,
      ),
      _ratio(
        f'{part}: likewise, with imports',
        theirs.process_seconds,
        ours.process_seconds,
      ),
      _ratio(
        f'{part}: processor time, with imports',
        theirs.processor_seconds,
        ours.processor_seconds,
      ),
    ]
  small, large = runs.get(('small', OURS)), runs.get(('large', OURS))
  if small and (lines_of_any := runs.get((JSON_LINES, JSON_LINES))):
    lines.append(
      f'{"records/s, json_lines by timestamp over c4 by host":52}'
      f'{small.median() / lines_of_any.median():8.2f}'
    )
  if small and large:
    times = large.num_records / small.num_records
    lines.append(
      f'{f"cost of a record, at {times:.0f} times as many":52}'
      f'{large.microseconds() / small.microseconds():8.2f}'
    )
  if large and (workers := runs.get(('workers', OURS))):
    lines.append(
      f'{"records/s, two worker processes over one":52}'
      f'{large.median() / workers.median():8.2f}'
    )
  if large and (theirs := runs.get(('large_dataset_grouper', THEIRS))):
    lines.append(
      f'{"large: records/s, ours over dataset_grouper":52}'
      f'{theirs.median() / large.median():8.2f}'
    )
  if memory := runs.get(('memory', OURS)):
    share = memory.peak_tree_bytes / (_MEMORY_GIB << 30)
    lines.append(f'{f"memory: peak RSS over {_MEMORY_GIB} GiB":52}{share:8.2f}')
  return '\n'.join(lines)


def _ratio(
  name: str, their_seconds: Sequence[float], our_seconds: Sequence[float]
) -> str:
  """Returns the ratio of medians, and the range of those of single turns."""
  ratio = statistics.median(their_seconds) / statistics.median(our_seconds)
  turns = sorted(
    theirs / ours
    for theirs, ours in zip(their_seconds, our_seconds, strict=True)
  )
  return f'{name:52}{ratio:8.2f}   ({turns[0]:.2f}-{turns[-1]:.2f} by turn)'
