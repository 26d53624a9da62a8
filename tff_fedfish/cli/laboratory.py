r"""Averages one round's clients in many ways; resumes by itself.

Examples:
  fedfish laboratory --config mnist_laboratory --dry_run
  fedfish laboratory --config mnist_laboratory --workdir runs/laboratory
  fedfish laboratory --config mnist_laboratory --workdir runs/later \
      --checkpoint runs/mnist

The file defines get_config(), as for `fedfish train`, and get_laboratory():
which settings vary, after how many local epochs and with how many clients the
round ends, and how clients are weighed; docs/laboratory.md lists all of it. A
cohort is trained once; FedAvg's mean, FedFish's family and its controls are
computed from the same models, and each is scored on held-out clients after a
step of 1 and after its best step. WORKDIR/laboratory.csv has a row for each.
The same command does what is left.
"""

import argparse

SUMMARY = "average one round's clients in many ways; resumes by itself"
TAKES_EXTRA = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish laboratory`."""
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE',
    help='a laboratory file, or the name of a shipped one',
  )
  parser.add_argument(
    '--workdir',
    metavar='DIR',
    help="the laboratory's directory, new or to continue",
  )
  parser.add_argument(
    '--checkpoint',
    metavar='DIR',
    help='start from this checkpoint, or the last of this run (default: the '
    'initial model)',
  )
  parser.add_argument(
    '--keep',
    action='store_true',
    help='keep what the clients trained, two models for each client',
  )
  parser.add_argument(
    '--dry_run',
    action='store_true',
    help='print the cohorts and weightings, train nothing',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the laboratory, or says what it would do."""
  from tff_fedfish.laboratory.laboratory_file import LaboratoryFile

  file = LaboratoryFile(arguments.config, arguments.extra)
  if arguments.dry_run:
    file.print_plan()
    return 0
  if not arguments.workdir:
    arguments.parser.error('--workdir is required')
  from tff_fedfish.laboratory.one_round import run_laboratory

  path = run_laboratory(
    file,
    arguments.workdir,
    checkpoint=arguments.checkpoint,
    keep=arguments.keep,
  )
  print(f'Rows of all weightings: {path}')
  return 0
