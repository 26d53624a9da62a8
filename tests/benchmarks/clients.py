"""`make bench-clients`: what a run of 15.6 million clients does before round 1.

Prints what opening the corpus, dividing its clients and drawing the held-out
sample and round 1's cohort take. Every opening is a process of its own.

Only other clients in one of them make it fail.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import clients_arm, synthetic_index
from benchmarks.shared import ENVIRONMENT, say, spread

from tff_fedfish.data import cohorts
from tff_fedfish.printing import print_table
from tff_fedfish.run import client_data
from tff_fedfish.run.row_source import row_source

# Enough for the sample and the small clients that it passes over.
_NUM_READ = 400


def _write_corpus(directory: pathlib.Path, num_clients: int) -> None:
  """Writes an index, and the texts of the clients that will be read."""
  synthetic_index.write_index_only(directory, num_clients)
  config = clients_arm.config_of(str(directory))
  corpus = client_data.open_corpus(config, directory)
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


def _open(directory: pathlib.Path) -> dict:
  """Returns the steps of one opening, and its clients."""
  output = subprocess.check_output(
    [sys.executable, '-m', 'benchmarks.clients_arm', str(directory)],
    env=ENVIRONMENT,
    stderr=subprocess.DEVNULL,
  )
  found = json.loads(output)
  seconds = sum(step['seconds'] for step in found['steps'].values())
  say(f'an opening took {seconds:.1f} s')
  return found


def _print_openings(openings: Sequence[dict], num_clients: int) -> None:
  rows = []
  for name in openings[0]:
    steps = [steps[name] for steps in openings]
    # Resident memory beyond that of the opened index.
    peaks = [
      steps[name]['peak_mib'] - steps['index']['after_mib']
      for steps in openings
    ]
    rows.append(
      [
        name,
        spread([step['seconds'] for step in steps]),
        spread([step['cpu_seconds'] for step in steps]),
        '' if name == 'index' else spread(peaks, '.0f'),
      ]
    )
  print()
  print_table(
    f'{num_clients:,} clients: median (smallest-largest)',
    ['', 's', 'CPU, s', 'peak beyond the index, MiB'],
    rows,
  )


def main() -> int:
  """Measures, prints the table, and returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--num_clients', type=int, default=15_600_000)
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--scratch_dir', help='where to write: 2 GB')
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory(dir=arguments.scratch_dir) as scratch:
    directory = pathlib.Path(scratch) / 'corpus'
    say(f'corpus: {arguments.num_clients:,} clients')
    _write_corpus(directory, arguments.num_clients)
    print(f'{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}', flush=True)
    found = [_open(directory) for _ in range(arguments.repeats)]
  _print_openings([one['steps'] for one in found], arguments.num_clients)
  if any(one['result'] != found[0]['result'] for one in found):
    print('\nOTHER CLIENTS: the openings do not have the same ones')
    return 1
  return 0


if __name__ == '__main__':
  raise SystemExit(main())
