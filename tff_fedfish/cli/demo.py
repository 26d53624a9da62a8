"""Runs everything on the corpora that ship with the project, in minutes.

Example:
  fedfish demo --workdir runs/demo

Groups Debian's package descriptions by web host and State of the Union
addresses by president, trains the `tiny` model with FedAvg and FedFish at 1 and
8 local epochs on the same cohorts, evaluates held-out clients, personalization,
transfer and the Client-Server Barrier, and writes one page. Every step is a
`fedfish` command, which is shown. Interrupted, the same command continues.
"""

import argparse

SUMMARY = 'see it all on the shipped corpora, in minutes'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish demo`."""
  parser.add_argument(
    '--workdir',
    default='runs/demo',
    metavar='DIR',
    help='where to write, and to continue from (default: %(default)s)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the demo."""
  from tff_fedfish.cli.main import main
  from tff_fedfish.demo import run_demo

  return run_demo(main, arguments.workdir)
