"""See what FedFish is about: two clients, one round, one function.

Examples:
  fedfish toy
  fedfish toy --num_seeds 3 --output runs/toy_3

The toy regression of figures 1 and 2 of the FedFish paper. Two clients fit a
function on inputs that overlap fully, in part, or not at all; FedAvg and
FedFish make one global model of the same two local models. Writes a page with
the functions and the Client-Server Barrier: index.html, toy.svg, toy.png, and
all numbers in toy.json. docs/toy.md says what comes out.
"""

import argparse

SUMMARY = 'see two clients and one round on a toy regression'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish toy`."""
  parser.add_argument(
    '--output',
    default='runs/toy',
    metavar='DIR',
    help='new or empty directory to write to (default: %(default)s)',
  )
  parser.add_argument(
    '--num_seeds',
    type=int,
    default=10,
    metavar='N',
    help='how many times to draw data and weights (default: %(default)s)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the toy regression and prints its barriers."""
  from tff_fedfish.printing import count, print_table
  from tff_fedfish.toy.results import METHODS, OVERLAPS, ToySettings, run_toy

  page, numbers = run_toy(
    arguments.output, ToySettings(num_seeds=arguments.num_seeds)
  )
  rows = []
  for support, found in numbers['summary'].items():
    barriers, best_constant, difference, num_lower = found.values()
    rows.append(
      (
        OVERLAPS[support],
        *(f'{interval["mean"]:z.4f}' for interval in barriers.values()),
        f'{difference["mean"]:z.4f}',
        f'{difference["ci_low"]:z.4f} to {difference["ci_high"]:z.4f}',
        f'{num_lower} of {arguments.num_seeds}',
        f'{best_constant:z.4f}',
      )
    )
  print_table(
    'Client-Server Barrier in mean squared error, mean over '
    f'{count(arguments.num_seeds, "seed")} (lower is better)',
    [
      *('inputs', *METHODS.values(), 'FedFish - FedAvg', '95 % interval'),
      *('FedFish lower', 'best constant'),
    ],
    rows,
    has_frame=True,
  )
  print(f'Page: {page}')
  return 0
