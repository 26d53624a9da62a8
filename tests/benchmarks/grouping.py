"""`make bench-grouping`: what grouping costs, ours against Dataset Grouper's.

Prints one table of measurements and one of ratios. Every job runs in a process
of its own, so that imports, memory and caches of one do not count for another;
jobs that are compared run in turns. Parts:

  small     both, on a synthetic C4 of 40,000 records (52 MB of text)
  debian    both, on the Debian package descriptions
  large     ours on 1.6 million such records (2.1 GB): does a record cost more?
  workers   ours on the same, with two worker processes
  memory    ours on 0.15, 0.8 and 4 GB of text, and on 4 GB with 60 % in one
            host, by one process and by two: the largest memory

Only an output that is wrong makes it fail: of `small` and `debian`, both jobs
must have written the same groups of the same examples; of `large` and
`workers`, the same shards.
"""

import argparse
import dataclasses
import glob
import gzip
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.measured_process import run_measured
from benchmarks.shared import ENVIRONMENT, say

from tff_fedfish import corpora
from tff_fedfish.printing import format_bytes, print_table

OURS, THEIRS = 'ours', 'dataset_grouper'
_CORPORA = pathlib.Path(tempfile.gettempdir()) / 'fedfish-bench-corpora'
_PARTS = ('small', 'debian', 'large', 'workers', 'memory')
_SELECTIONS = {'default': _PARTS, 'quick': ('small',)}
_NUM_SHARDS = 8
# Records, files, and percent of the records that one host has.
_MEMORY_CORPORA = (
  (70_000, 4, 0),
  (370_000, 8, 0),
  (1_850_000, 16, 0),
  (1_850_000, 16, 60),
)
_TWO_WORKERS = (
  '--direct_num_workers=2',
  '--direct_running_mode=multi_processing',
)


class _Corpus(NamedTuple):
  pattern: str
  num_records: int


@dataclasses.dataclass
class Runs:
  """The runs of one job on one corpus."""

  part: str
  arm: str
  num_records: int
  seconds: list[float] = dataclasses.field(default_factory=list)
  """Seconds of the pipeline, without imports."""
  process_seconds: list[float] = dataclasses.field(default_factory=list)
  processor_seconds: list[float] = dataclasses.field(default_factory=list)
  peak_tree_bytes: int = 0
  max_rss_bytes: int = 0
  """Largest of all runs, as `peak_tree_bytes`."""

  def seconds_per_record(self) -> float:
    """Time of the pipeline, per record."""
    return statistics.median(self.seconds) / self.num_records


class _Bench:
  """Runs the parts and keeps what was measured."""

  def __init__(self, repeats: int, scale: float, scratch: pathlib.Path):
    self._repeats, self._scale, self._scratch = repeats, scale, scratch
    self.runs: dict[tuple[str, str], Runs] = {}
    self.problems: list[str] = []

  def warm_up(self) -> None:
    """Compiles and loads what the first process of a job would pay for."""
    corpus = _synthetic(1000, 1, 1300)
    for arm in (OURS, THEIRS):
      self._measure(Runs('warm_up', arm, corpus.num_records), corpus)

  def small(self) -> None:
    self._compare('small', _synthetic(40_000, 4, 1300))

  def debian(self) -> None:
    pattern = str(corpora.debian_descriptions() / 'c4-train*.json.gz')
    num_records = 0
    for path in glob.glob(pattern):
      with gzip.open(path) as file:
        num_records += sum(1 for _ in file)
    self._compare('debian', _Corpus(pattern, num_records))

  def large(self) -> None:
    self._run_large('large')

  def workers(self) -> None:
    self._run_large('workers', _TWO_WORKERS)

  def memory(self) -> None:
    for num_records, num_files, percent in _MEMORY_CORPORA:
      corpus = _synthetic(self._scaled(num_records), num_files, 2200, percent)
      for processes, flags in (('one', ()), ('two', _TWO_WORKERS)):
        part = f'memory, {percent} % in one host, {processes}'
        self._measure(self._new_runs(part, OURS, corpus), corpus, flags)

  def _run_large(self, part: str, flags: Sequence[str] = ()) -> None:
    corpus = _synthetic(self._scaled(1_600_000), 16, 1300)
    self._measure(
      self._new_runs(part, OURS, corpus), corpus, flags, checks_shards=True
    )

  def _scaled(self, num_records: int) -> int:
    return max(1000, round(num_records * self._scale))

  def _new_runs(self, part: str, arm: str, corpus: _Corpus) -> Runs:
    place = f'{part}, {corpus.num_records:,}' if ',' in part else part
    self.runs[place, arm] = Runs(part, arm, corpus.num_records)
    return self.runs[place, arm]

  def _compare(self, part: str, corpus: _Corpus) -> None:
    arms = [OURS, THEIRS]
    for arm in arms:
      self._new_runs(part, arm, corpus)
    for repeat in range(self._repeats):
      # Neither is always the one that comes second.
      for arm in arms if repeat % 2 == 0 else arms[::-1]:
        self._measure(self.runs[part, arm], corpus, keep=repeat == 0)
      if repeat == 0:
        outputs = [self._scratch / arm for arm in arms]
        found = _run('benchmarks.compare_groups', *map(str, outputs)).strip()
        say(f'{part}: {found}')
        if 'differ' in found:
          self.problems.append(f'{part}: {found}')
        for output in outputs:
          shutil.rmtree(output)

  def _measure(
    self,
    runs: Runs,
    corpus: _Corpus,
    flags: Sequence[str] = (),
    *,
    keep: bool = False,
    checks_shards: bool = False,
  ) -> None:
    """Adds one run.

    Args:
      runs: What to add it to.
      corpus: What to group.
      flags: Flags for Beam.
      keep: Whether to leave the output where it is.
      checks_shards: Whether its shards must be those of other such runs.
    """
    # The disk does not count.
    for path in glob.glob(corpus.pattern):
      pathlib.Path(path).read_bytes()
    output, report = self._scratch / runs.arm, self._scratch / 'report.json'
    command = [sys.executable, '-m', 'benchmarks.grouping_arms', runs.arm]
    numbers = [f'--num_shards={_NUM_SHARDS}', f'--report={report}']
    files = [f'--input={corpus.pattern}', f'--output={output}']
    measured = run_measured([*command, *files, *numbers, *flags], ENVIRONMENT)
    seconds = json.loads(report.read_text())['pipeline_seconds']
    runs.seconds.append(seconds)
    runs.process_seconds.append(measured.seconds)
    runs.processor_seconds.append(measured.processor_seconds)
    runs.peak_tree_bytes = max(runs.peak_tree_bytes, measured.peak_tree_bytes)
    runs.max_rss_bytes = max(runs.max_rss_bytes, measured.max_rss_bytes)
    say(f'{runs.part}: {runs.arm} took {seconds:.2f} s')
    if checks_shards:
      self._check_shards(runs.part, output)
    if not keep:
      shutil.rmtree(output)

  def _check_shards(self, part: str, output: pathlib.Path) -> None:
    shards = json.loads((output / 'manifest.json').read_text())['shards']
    expected = self._scratch / 'shards.json'
    if not expected.exists():
      expected.write_text(json.dumps(shards))
    elif json.loads(expected.read_text()) != shards:
      self.problems.append(f'{part}: its shards are not those of earlier runs')


def _synthetic(
  num_records: int,
  num_files: int,
  mean_text_bytes: int,
  largest_percent: int = 0,
) -> _Corpus:
  say(f'corpus: {num_records:,} records of {mean_text_bytes:,} bytes')
  # In another process, because run_measured wants a small one.
  printed = _run(
    'benchmarks.synthetic_c4',
    f'--directory={_CORPORA}',
    f'--num_records={num_records}',
    f'--num_files={num_files}',
    f'--mean_text_bytes={mean_text_bytes}',
    f'--largest_percent={largest_percent}',
  )
  directory = os.path.dirname(json.loads(printed)[0])
  return _Corpus(os.path.join(directory, '*.json.gz'), num_records)


def _run(module: str, *arguments: str) -> str:
  """Returns what one of the modules beside this one prints."""
  command = [sys.executable, '-m', module, *arguments]
  result = subprocess.run(
    command, env=ENVIRONMENT, capture_output=True, text=True
  )
  if not result.stdout:
    raise RuntimeError(
      f'`{" ".join(command)}` failed:\n{result.stderr[-2000:]}'
    )
  return result.stdout


def _print_runs(all_runs: Sequence[Runs]) -> None:
  """Prints a line for each; memory is the largest of all turns."""
  rows = []
  for runs in all_runs:
    speeds = sorted(runs.num_records / seconds for seconds in runs.seconds)
    rows.append(
      [
        runs.part,
        runs.arm,
        f'{runs.num_records:,}',
        f'{statistics.median(speeds):,.0f}',
        f'{speeds[0]:,.0f}-{speeds[-1]:,.0f}',
        f'{1e6 * runs.seconds_per_record():.1f}',
        f'{statistics.median(runs.process_seconds):.1f}',
        f'{statistics.median(runs.processor_seconds):.1f}',
        format_bytes(runs.peak_tree_bytes),
        format_bytes(runs.max_rss_bytes),
      ]
    )
  print_table(
    'Speeds are of the pipeline without imports, the median of all turns; the '
    'process and its processor time include imports',
    ['part', 'job', 'records', 'records/s', 'min-max', 'us/record']
    + ['process, s', 'processor, s', 'peak memory', 'RSS of one process'],
    rows,
    text_columns=(0, 1),
  )


def ratios(runs: Mapping[tuple[str, str], Runs]) -> list[list[str]]:
  """Returns how runs compare: what, the ratio of medians, that of turns.

  Args:
    runs: What was run, by part and job.
  """
  rows = []
  for part in ('small', 'debian'):
    if (part, OURS) in runs:
      ours, theirs = runs[part, OURS], runs[part, THEIRS]
      for what, field in (
        ('records/s, ours over dataset_grouper', 'seconds'),
        ('likewise, with imports', 'process_seconds'),
        ('processor time, with imports', 'processor_seconds'),
      ):
        pairs = getattr(theirs, field), getattr(ours, field)
        turns = sorted(t / o for t, o in zip(*pairs, strict=True))
        over, under = map(statistics.median, pairs)
        spread = f'{turns[0]:.2f}-{turns[-1]:.2f}'
        rows.append([f'{part}: {what}', f'{over / under:.2f}', spread])
  small, large, workers = (
    runs.get((part, OURS)) for part in ('small', 'large', 'workers')
  )
  for what, over, under in (
    ('cost of a record, large over small', large, small),
    ('records/s, two worker processes over one', large, workers),
  ):
    if over and under:
      ratio = over.seconds_per_record() / under.seconds_per_record()
      rows.append([what, f'{ratio:.2f}', ''])
  return rows


def _parse_arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--parts',
    nargs='+',
    choices=(*_SELECTIONS, *_PARTS),
    default=['default'],
    help='default: all (15 minutes); quick: small (2 minutes)',
  )
  parser.add_argument('--repeats', type=int, default=3, help='small, debian')
  parser.add_argument(
    '--scale',
    type=float,
    default=1.0,
    help='size of the large corpora, times this',
  )
  return parser.parse_args()


def main() -> int:
  """Runs the parts asked for, prints the tables, and returns the exit code."""
  arguments = _parse_arguments()
  parts = []
  for name in arguments.parts:
    parts += _SELECTIONS.get(name, (name,))
  with tempfile.TemporaryDirectory() as scratch:
    bench = _Bench(arguments.repeats, arguments.scale, pathlib.Path(scratch))
    print(
      f'{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, '
      f'{_NUM_SHARDS} shards',
      flush=True,
    )
    bench.warm_up()
    for part in dict.fromkeys(parts):
      getattr(bench, part)()
  print()
  _print_runs(list(bench.runs.values()))
  if rows := ratios(bench.runs):
    print()
    print_table('Ratios', ['', 'of medians', 'by turn'], rows)
  for problem in bench.problems:
    print(f'\nWRONG OUTPUT: {problem}')
  return 1 if bench.problems else 0


if __name__ == '__main__':
  raise SystemExit(main())
