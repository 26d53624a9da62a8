r"""Say what a run will take.

Examples:
  fedfish plan --config c4_1_5b --no_timing
  fedfish plan --config small_c4 --output plan.json \
      --config.cohorts.cohort_size=64 --config.engine.kind=ray

Needs neither the corpus nor the memory that the run would take: steps of the
same model with few layers are timed, and the rest is extrapolated. All figures
are upper bounds, of clients that fill their cap. docs/planning.md has the
formulas.
"""

import argparse
import pathlib

from tff_fedfish.errors import UserError

SUMMARY = 'say what a run will take: memory, traffic, time'
TAKES_EXTRA = True


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
    '--output', metavar='FILE', help='a JSON file to write the plan to, too'
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints the plan."""
  from tff_fedfish.config import load as config_loading

  config = config_loading.load_config(arguments.config, arguments.extra)
  if arguments.output is not None:
    _require_writable(arguments.output)
  from tff_fedfish.planning.plan import plan_round
  from tff_fedfish.planning.plan_tables import print_plan

  plan = plan_round(config, timing=not arguments.no_timing)
  print_plan(plan)
  if arguments.output is not None:
    from tff_fedfish.files import write_json

    write_json(arguments.output, plan.to_json_dict())
  return 0


def _require_writable(name: str) -> None:
  """Finds out before anything is timed."""
  path = pathlib.Path(name)
  if path.is_dir():
    found = f'{name!r} is a directory'
  elif not path.parent.is_dir():
    found = f'{str(path.parent)!r} is no directory'
  else:
    return
  raise UserError(
    f'`--output` must name a file in an existing directory, but {found}. '
    'Name another path.'
  )
