r"""Say what a run, or a grouping job, will take.

Examples:
  fedfish plan --config c4_1_5b --no_timing
  fedfish plan --config small_c4 --output plan.json \
      --config.cohorts.cohort_size=64 --config.engine.kind=ray
  fedfish plan --num_workers 100 --input_bytes 305_000_000_000 \
      --group c4 --input 'c4/c4-train.0000*.json.gz' --num_shards 1024

Needs neither the corpus nor the memory that the run would take: steps of the
same model with few layers are timed, and the rest is extrapolated. All figures
are upper bounds, of clients that fill their cap. Of a grouping job, some files
are grouped and the rest is extrapolated. docs/planning.md has the formulas.
"""

import argparse
import dataclasses
import pathlib

from tff_fedfish.errors import UserError

SUMMARY = 'say what a run or a grouping job will take: memory, traffic, time'
TAKES_EXTRA = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish plan`."""
  parser.add_argument(
    '--config',
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
  parser.add_argument(
    '--num_workers',
    type=int,
    metavar='N',
    help='with --group: processes that share the job (default: 1)',
  )
  parser.add_argument(
    '--input_bytes',
    type=int,
    metavar='N',
    help='with --group: size of the whole input, as it is stored, where '
    '--input names a part of it',
  )
  parser.add_argument(
    '--group',
    nargs=argparse.REMAINDER,
    metavar='...',
    help='instead of --config, and last: arguments of `fedfish group`, without '
    '--output',
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints the plan."""
  if (arguments.config is None) == (arguments.group is None):
    arguments.parser.error('one of --config and --group is required')
  if arguments.group is not None:
    return _plan_grouping(arguments)
  for name in ('num_workers', 'input_bytes'):
    if getattr(arguments, name) is not None:
      raise UserError(
        f'`--{name}` goes with `--group`, but `--config` was given. Leave it '
        'out; settings of the engine say how many workers train.'
      )
  from tff_fedfish.config import loading as config_loading

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


def _plan_grouping(arguments: argparse.Namespace) -> int:
  from tff_fedfish.cli import group, group_options

  for name in ('num_workers', 'input_bytes'):
    value = getattr(arguments, name)
    if value is not None and value < 1:
      raise UserError(
        f'`--{name}` must be at least 1, but is {value}. Name a number.'
      )
  if arguments.extra:
    arguments.parser.error(
      f'unrecognized arguments: {" ".join(arguments.extra)}'
    )
  parser = argparse.ArgumentParser(
    prog='fedfish plan --group', allow_abbrev=False
  )
  parser.error = arguments.parser.error
  group.add_arguments(parser)
  # A command that is tried out before it is run may name its output, too. No
  # other option means this one.
  planned, extra = parser.parse_known_args(
    ['--output', 'plan://corpus', *arguments.group]
  )
  if arguments.output is not None:
    _require_writable(arguments.output)
  planned.extra, planned.parser = extra, arguments.parser
  from tff_fedfish.cli import beam_job

  with beam_job.quiet_beam(()):
    beam_job.read_beam_flags(planned)
    from pipelines.plan_grouping import plan_grouping

    plan = plan_grouping(
      group_options.build_job(planned),
      num_workers=arguments.num_workers or 1,
      input_bytes=arguments.input_bytes,
    )
  from tff_fedfish.files import write_json
  from tff_fedfish.planning.plan_tables import print_grouping_plan

  print_grouping_plan(plan)
  if arguments.output is not None:
    write_json(arguments.output, dataclasses.asdict(plan))
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
