"""`make bench-grouping`: what grouping costs, ours against Dataset Grouper's.

Prints one table of measurements and one of ratios. Every job runs in a process
of its own, so that imports, memory and caches of one do not count for another;
jobs that are compared run in turns. Parts:

  small     both, on a synthetic C4 of 40,000 records (52 MB of text)
  json_lines    ours on the corpus of `small`, as lines of any layout
  debian    both, on the Debian package descriptions
  profile   ours, by stage, on the corpus of `small`
  large     ours on 1.6 million such records (2.1 GB): does a record cost more?
  workers   ours on the same, with two worker processes
  memory    ours on 700,000 records with 2 GB of text: the largest memory
  large_dataset_grouper    Dataset Grouper on the records of `large`; very slow

Only an output that is wrong makes it fail: of `small` and `debian`, both jobs
must have written the same groups of the same examples; of `large` and
`workers`, the same shards.
"""

import argparse
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.grouping_tables import (
  JSON_LINES,
  OURS,
  THEIRS,
  Runs,
  format_ratios,
  format_runs,
)
from benchmarks.measured_process import run_measured

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_QUICK_PARTS = ('small', 'json_lines')
_PARTS = (*_QUICK_PARTS, 'debian', 'profile', 'large', 'workers', 'memory')
_SELECTIONS = {'default': _PARTS, 'quick': _QUICK_PARTS}
_OPTIONAL_PARTS = ('large_dataset_grouper',)
_NUM_SHARDS = 8
_TWO_WORKERS = (
  '--direct_num_workers=2',
  '--direct_running_mode=multi_processing',
)


class _Corpus(NamedTuple):
  pattern: str
  num_records: int


class _Bench:
  """Runs the parts and keeps what was measured."""

  def __init__(self, arguments: argparse.Namespace, scratch: pathlib.Path):
    self._arguments = arguments
    self._scratch = scratch
    self.runs: dict[tuple[str, str], Runs] = {}
    self.problems: list[str] = []
    self.profile = ''

  def warm_up(self) -> None:
    """Compiles and loads what the first process of an arm would pay for."""
    corpus = self._synthetic(1000, 1, 1300)
    for arm in (OURS, THEIRS):
      self._measure(Runs('warm_up', arm, corpus.num_records), corpus)

  def small(self) -> None:
    self._compare('small', self._small_corpus())

  def json_lines(self) -> None:
    corpus = self._small_corpus()
    runs = self._new_runs('json_lines', JSON_LINES, corpus)
    for _ in range(self._arguments.repeats):
      self._measure(runs, corpus)

  def debian(self) -> None:
    shared = _REPOSITORY / '..' / 'shared' / 'data'
    shipped = _REPOSITORY / 'tff_fedfish' / 'corpora'
    name = 'debian_descriptions'
    parent = shared if (shared / name).is_dir() else shipped
    pattern = str(parent.resolve() / name / 'c4-*.json.gz')
    self._compare('debian', _Corpus(pattern, _count_lines(pattern)))

  def profile_stages(self) -> None:
    corpus = self._small_corpus()
    _say('profile: ours by stage')
    numbers = ['--num_records', str(corpus.num_records)]
    self.profile = _run(
      'benchmarks.grouping_profile', '--input', corpus.pattern, *numbers
    )

  def large(self) -> None:
    self._run_large('large', OURS)

  def large_dataset_grouper(self) -> None:
    self._run_large('large_dataset_grouper', THEIRS)

  def workers(self) -> None:
    self._run_large('workers', OURS, _TWO_WORKERS)

  def memory(self) -> None:
    corpus = self._synthetic(self._scaled(700_000), 8, 2860)
    self._measure(self._new_runs('memory', OURS, corpus), corpus)

  def _small_corpus(self) -> _Corpus:
    return self._synthetic(40_000, 4, 1300)

  def _run_large(self, part: str, arm: str, flags: Sequence[str] = ()) -> None:
    corpus = self._synthetic(self._scaled(1_600_000), 16, 1300)
    for _ in range(self._arguments.large_repeats):
      runs = self.runs.get((part, arm)) or self._new_runs(part, arm, corpus)
      self._measure(runs, corpus, flags, keep_shards=arm == OURS)

  def _scaled(self, num_records: int) -> int:
    return max(1000, round(num_records * self._arguments.scale))

  def _new_runs(self, part: str, arm: str, corpus: _Corpus) -> Runs:
    self.runs[part, arm] = Runs(part, arm, corpus.num_records)
    return self.runs[part, arm]

  def _synthetic(
    self, num_records: int, num_files: int, mean_text_bytes: int
  ) -> _Corpus:
    values = {
      'directory': self._arguments.corpus_dir,
      'num_records': num_records,
      'num_files': num_files,
      'mean_text_bytes': mean_text_bytes,
    }
    _say(f'corpus: {num_records:,} records of {mean_text_bytes:,} bytes')
    # In another process, because run_measured wants a small one.
    printed = _run(
      'benchmarks.synthetic_c4',
      *(f'--{name}={value}' for name, value in values.items()),
    )
    directory = os.path.dirname(json.loads(printed)[0])
    return _Corpus(os.path.join(directory, '*.json.gz'), num_records)

  def _compare(self, part: str, corpus: _Corpus) -> None:
    arms = [OURS, THEIRS]
    for arm in arms:
      self._new_runs(part, arm, corpus)
    for repeat in range(self._arguments.repeats):
      # Neither is always the one that comes second.
      for arm in arms if repeat % 2 == 0 else arms[::-1]:
        self._measure(self.runs[part, arm], corpus, keep=repeat == 0)
      if repeat == 0:
        outputs = [self._scratch / arm for arm in arms]
        found = _run('benchmarks.compare_groups', *map(str, outputs)).strip()
        _say(f'{part}: {found}')
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
    keep_shards: bool = False,
  ) -> None:
    """Adds one run.

    Args:
      runs: What to add it to.
      corpus: What to group.
      flags: Flags for Beam.
      keep: Whether to leave the output where it is.
      keep_shards: Whether its shards must be those of other such runs.
    """
    _read_once(corpus.pattern)
    output, report = self._scratch / runs.arm, self._scratch / 'report.json'
    command = [sys.executable, '-m', 'benchmarks.grouping_arms', runs.arm]
    numbers = [f'--num_shards={_NUM_SHARDS}', f'--report={report}']
    files = [f'--input={corpus.pattern}', f'--output={output}']
    measured = run_measured(
      [*command, *files, *numbers, *flags], _environment()
    )
    seconds = json.loads(report.read_text())['pipeline_seconds']
    runs.pipeline_seconds.append(seconds)
    runs.process_seconds.append(measured.seconds)
    runs.processor_seconds.append(measured.processor_seconds)
    runs.peak_tree_bytes = max(runs.peak_tree_bytes, measured.peak_tree_bytes)
    runs.max_rss_bytes = max(runs.max_rss_bytes, measured.max_rss_bytes)
    _say(f'{runs.part}: {runs.arm} took {seconds:.2f} s')
    if keep_shards:
      self._check_shards(runs.part, output)
    if not keep:
      shutil.rmtree(output)

  def _check_shards(self, part: str, output: pathlib.Path) -> None:
    manifest = json.loads((output / 'manifest.json').read_text())
    shards = [(shard['name'], shard['sha256']) for shard in manifest['shards']]
    expected_path = self._scratch / 'shards.json'
    if not expected_path.exists():
      expected_path.write_text(json.dumps(shards))
    elif json.loads(expected_path.read_text()) != list(map(list, shards)):
      self.problems.append(f'{part}: its shards are not those of earlier runs')


def _say(line: str) -> None:
  print(f'  {line}', file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
  tests = str(_REPOSITORY / 'tests')
  paths = [str(_REPOSITORY), tests]
  return os.environ | {
    'PYTHONPATH': os.pathsep.join(paths),
    'TF_CPP_MIN_LOG_LEVEL': '3',
  }


def _run(module: str, *arguments: str) -> str:
  """Returns what one of the modules beside this one prints."""
  command = [sys.executable, '-m', module, *arguments]
  result = subprocess.run(
    command, env=_environment(), capture_output=True, text=True
  )
  if not result.stdout:
    raise RuntimeError(
      f'`{" ".join(command)}` failed:\n{result.stderr[-2000:]}'
    )
  return result.stdout


def _read_once(pattern: str) -> None:
  """Brings files into the system's memory, so that the disk does not count."""
  for path in glob.glob(pattern):
    with open(path, 'rb') as file:
      while file.read(1 << 20):
        pass


def _count_lines(pattern: str) -> int:
  import gzip

  num_lines = 0
  for path in glob.glob(pattern):
    with gzip.open(path) as file:
      num_lines += sum(1 for _ in file)
  return num_lines


def _parse_arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--parts',
    nargs='+',
    choices=(*_SELECTIONS, *_PARTS, *_OPTIONAL_PARTS),
    default=['default'],
    help='default: all but the last (15 minutes); quick: small and json_lines '
    '(2 minutes)',
  )
  parser.add_argument('--repeats', type=int, default=3, help='small, debian')
  parser.add_argument('--large_repeats', type=int, default=1)
  parser.add_argument(
    '--scale',
    type=float,
    default=1.0,
    help='size of the large corpora, times this',
  )
  parser.add_argument(
    '--corpus_dir',
    default=os.path.join(tempfile.gettempdir(), 'fedfish-bench-corpora'),
    help='where synthetic corpora are kept (default: %(default)s)',
  )
  parser.add_argument(
    '--scratch_dir', help='where to write (default: the temporary directory)'
  )
  return parser.parse_args()


def main() -> int:
  """Runs the parts asked for, prints the tables, and returns the exit code."""
  arguments = _parse_arguments()
  parts = []
  for name in arguments.parts:
    parts += _SELECTIONS.get(name, (name,))
  with tempfile.TemporaryDirectory(dir=arguments.scratch_dir) as scratch:
    bench = _Bench(arguments, pathlib.Path(scratch))
    print(
      f'{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, '
      f'{_NUM_SHARDS} shards. Speeds are of the pipeline without imports, the '
      'median of all turns; the process and its processor time (cpu) include '
      'imports. Peak RSS is the sum over its processes, beside that of the '
      'largest one.',
      flush=True,
    )
    bench.warm_up()
    for part in dict.fromkeys(parts):
      getattr(bench, 'profile_stages' if part == 'profile' else part)()
  tables = [format_runs(list(bench.runs.values())) if bench.runs else '']
  tables += [format_ratios(bench.runs), bench.profile.strip()]
  print('\n' + '\n\n'.join(table for table in tables if table))
  for problem in bench.problems:
    print(f'\nWRONG OUTPUT: {problem}')
  return 1 if bench.problems else 0


if __name__ == '__main__':
  raise SystemExit(main())
