"""`make bench-clients`: what a run of 15.6 million clients does before round 1.

Prints what opening the corpus, dividing its clients and drawing the held-out
sample and round 1's cohort take: with a manifest as earlier versions wrote it,
and where it has the corpus's fingerprint. Every opening is a process of its
own; they run in turns.

Only other clients in one of them make it fail.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import clients_arm, synthetic_index

from tff_fedfish.data import cohorts
from tff_fedfish.data.corpus_index import index_sha256
from tff_fedfish.data.manifest import MANIFEST_NAME, read_manifest
from tff_fedfish.printing import print_table
from tff_fedfish.run import client_data
from tff_fedfish.run.row_source import row_source

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_OPENING, _KNOWN = 'opening', 'fingerprint in manifest'
# Enough for the sample and the small clients that it passes over.
_NUM_READ = 400


class _Bench:
  """Openings by arm."""

  def __init__(self, scratch: pathlib.Path, num_clients: int):
    self._scratch = scratch
    self._corpus = scratch / 'corpus'
    self.openings = {}
    self.result = None
    self.problems = []
    _say(f'corpus: {num_clients:,} clients')
    synthetic_index.write_index_only(self._corpus, num_clients)
    self._fill()

  def _fill(self) -> None:
    """Writes the texts of the clients that will be read."""
    config = clients_arm.config_of(str(self._corpus))
    corpus = client_data.open_corpus(config, self._corpus)
    split = row_source(config).split(corpus)
    drawn = (
      (split.held_out, config.seeds.split_seed, 0, _NUM_READ),
      (split.participating, config.seeds.cohort_seed, 1, config.cohort_size),
    )
    for client_ids, seed, round_num, size in drawn:
      drawn_ids = cohorts.draw_cohort(
        client_ids,
        seed=seed,
        round_num=round_num,
        cohort_size=min(size, len(client_ids)),
      )
      synthetic_index.fill_records(corpus, drawn_ids)
    self._fingerprint = corpus.fingerprint

  def open(self, arm: str) -> None:
    """Measures one opening."""
    paths = [str(_REPOSITORY), str(_REPOSITORY / 'tests')]
    environment = os.environ | {
      'PYTHONPATH': os.pathsep.join(paths),
      'TF_CPP_MIN_LOG_LEVEL': '3',
    }
    with self._manifest(with_fingerprint=arm == _KNOWN):
      output = subprocess.check_output(
        [sys.executable, '-m', 'benchmarks.clients_arm', str(self._corpus)],
        cwd=_REPOSITORY,
        env=environment,
        stderr=subprocess.DEVNULL,
      )
    found = json.loads(output)
    self.openings.setdefault(arm, []).append(found['steps'])
    seconds = sum(step['seconds'] for step in found['steps'].values())
    _say(f'{arm} took {seconds:.1f} s')
    self.result = self.result or found['result']
    if found['result'] != self.result:
      self.problems.append(f'{arm}: its clients are not those of the others')

  @contextlib.contextmanager
  def _manifest(self, *, with_fingerprint: bool):
    path = self._corpus / MANIFEST_NAME
    before = path.read_bytes()
    if with_fingerprint:
      manifest = dataclasses.replace(
        read_manifest(self._corpus),
        index_sha256=index_sha256(self._corpus),
        fingerprint=self._fingerprint,
      )
      path.write_bytes(manifest.to_bytes())
    yield
    path.write_bytes(before)


def _print_openings(bench: _Bench, num_clients: int) -> None:
  headings = ['', *(f'{name}, s' for name in _steps(bench))]
  headings += ['after index, s', 'CPU, s', 'peak after index, MiB']
  rows = []
  for arm, openings in bench.openings.items():
    steps = [
      _spread([steps[name]['seconds'] for steps in openings])
      for name in _steps(bench)
    ]
    rows.append(
      [
        arm,
        *steps,
        _spread([_after_index(steps, 'seconds') for steps in openings]),
        _spread([_after_index(steps, 'cpu_seconds') for steps in openings]),
        _spread([_peak(steps) for steps in openings], '.0f'),
      ]
    )
  print()
  print_table(
    f'{num_clients:,} clients: median (smallest-largest)', headings, rows
  )


def _steps(bench: _Bench) -> Sequence[str]:
  return list(next(iter(bench.openings.values()))[0])


def _after_index(steps, measure: str) -> float:
  return sum(s[measure] for name, s in steps.items() if name != 'index')


def _peak(steps) -> float:
  """Returns the largest resident memory beyond that of the opened index."""
  later = (s['peak_mib'] for name, s in steps.items() if name != 'index')
  return max(later) - steps['index']['after_mib']


def _spread(values: Sequence[float], form: str = '.2f') -> str:
  low, high = min(values), max(values)
  return f'{statistics.median(values):{form}} ({low:{form}}-{high:{form}})'


def _say(line: str) -> None:
  print(f'  {line}', file=sys.stderr, flush=True)


def main() -> int:
  """Measures, prints the tables, and returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--num_clients', type=int, default=15_600_000)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--scratch_dir', help='where to write: 2 GB')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory(dir=arguments.scratch_dir) as directory:
    scratch = pathlib.Path(directory)
    bench = _Bench(scratch, arguments.num_clients)
    print(f'{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}', flush=True)
    for _ in range(arguments.repeats):
      for arm in (_OPENING, _KNOWN):
        bench.open(arm)
    _print_openings(bench, arguments.num_clients)
  for problem in bench.problems:
    print(f'\nOTHER CLIENTS: {problem}')
  return 1 if bench.problems else 0


if __name__ == '__main__':
  raise SystemExit(main())
