r"""Predict the memory, traffic and time of a run.

Examples:
  fedfish plan --config c4_1_5b --tflops 400
  fedfish plan --config small_c4 \
      --config.cohorts.cohort_size=64 --config.engine.kind=ray

Needs neither the corpus nor the memory of the run: steps of the same model with
few layers are timed, and the rest is extrapolated. Every client is taken to
fill its cap, so the figures are upper bounds. docs/planning.md has the
formulas.
"""

import argparse
import math

SUMMARY = 'predict the memory, traffic and time of a run'
TAKES_EXTRA = '--config.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish plan`."""
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE|NAME',
    help='a config file, or the name of a shipped one (see fedfish configs)',
  )
  parser.add_argument(
    '--no_timing',
    action='store_true',
    help='time nothing, and answer at once',
  )
  parser.add_argument(
    '--tflops',
    type=float,
    metavar='N',
    help='give the time at N * 10^12 operations per second; times nothing here',
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints the plan."""
  from tff_fedfish.config import load
  from tff_fedfish.planning.plan import plan_round, print_plan

  tflops = arguments.tflops
  if tflops is not None and not 0 < tflops < math.inf:
    arguments.parser.error(f'--tflops must be above 0, found {tflops:g}')
  config = load.load_config(arguments.config, arguments.extra)
  timing = not arguments.no_timing and tflops is None
  print_plan(plan_round(config, timing=timing), tflops)
  return 0
