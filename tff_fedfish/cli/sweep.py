r"""Trains and evaluates a grid of runs, fairly compared; resumes by itself.

Examples:
  fedfish sweep --config debian_sweep --dry_run
  fedfish sweep --config debian_sweep --workdir runs/debian --jobs 2

The file defines get_config(), as for `fedfish train`, and get_sweep(): which
settings vary, how long the runs last, how learning rates are searched on
validation clients, and what is evaluated after each run. docs/sweep.md lists
all of it. Every run in WORKDIR/arms is as `fedfish train` and `fedfish
evaluate` write it; WORKDIR/sweep.json says what they are. The same command
does what is left. Ctrl-C saves all running runs and exits with 130.
"""

import argparse

SUMMARY = 'train and evaluate a grid of runs; resumes by itself'
TAKES_EXTRA = '--config.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish sweep`."""
  from tff_fedfish.run import trackers

  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE',
    help='a sweep file, or the name of a shipped one (see fedfish configs)',
  )
  parser.add_argument(
    '--workdir', metavar='DIR', help="the sweep's directory, new or to continue"
  )
  parser.add_argument(
    '--jobs',
    type=int,
    default=1,
    metavar='N',
    help='runs at a time, each in a process of its own (default: %(default)s)',
  )
  parser.add_argument(
    '--dry_run',
    action='store_true',
    help='print all runs and their rounds, run nothing',
  )
  parser.add_argument(
    '--tracker',
    action='append',
    choices=trackers.TRACKERS,
    default=[],
    help='as for fedfish train, of every run',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the sweep, or prints what it would run."""
  from tff_fedfish.run import trackers

  for name in arguments.tracker:
    trackers.find(name)
  from tff_fedfish import files
  from tff_fedfish.sweeping.dry_run import print_sweep
  from tff_fedfish.sweeping.sweep_file import read_sweep_file

  file = read_sweep_file(arguments.config, arguments.extra)
  if arguments.dry_run:
    print_sweep(file, arguments.workdir)
    return 0
  if not arguments.workdir:
    arguments.parser.error('--workdir is required')
  from tff_fedfish.cli.main import main
  from tff_fedfish.sweeping import record
  from tff_fedfish.sweeping.run import run_sweep

  files.require_usable_output(
    arguments.workdir, '--workdir', marker=record.NAME
  )
  return run_sweep(
    main,
    file,
    arguments.workdir,
    num_jobs=arguments.jobs,
    train_options=[f'--tracker={name}' for name in arguments.tracker],
  )
