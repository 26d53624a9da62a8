r"""Solves over uploads that a one-shot run kept, without training clients.

The result is a run of its own, to be evaluated and compared like any other: its
clients are those of the other run, trained once. The uploads must hold the
summary that the method needs.

Examples:
  fedfish train --config fashion_mnist_one_shot --workdir runs/diagonal \
      --config.algorithm.curvature=diagonal
  fedfish solve --uploads runs/diagonal --workdir runs/merged \
      --config.algorithm.name=fisher_merge
"""

import argparse
import sys

SUMMARY = 'solve over kept uploads of a one-shot run'
TAKES_EXTRA = '--config.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish solve`."""
  parser.add_argument(
    '--uploads',
    required=True,
    metavar='RUN',
    help='a run trained with algorithm.keeps_uploads, or its uploads directory',
  )
  parser.add_argument(
    '--workdir',
    metavar='DIR',
    help='directory of the new run (default: RUN_METHOD, beside RUN)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Solves, and says where the new run is."""
  from tff_fedfish.progress import never_failing
  from tff_fedfish.training.solve import solve

  sys.stdout = never_failing(sys.stdout)
  return solve(arguments.uploads, arguments.workdir, arguments.extra)
