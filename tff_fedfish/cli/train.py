r"""Trains a model by rounds over cohorts of clients; resumes by itself.

Examples:
  fedfish train --config demo --workdir runs/mine
  fedfish train --config demo --workdir runs/fed_avg --dry_run \
      --config.algorithm.name=fed_avg --config.client_work.num_local_epochs=8
  fedfish train --config demo --workdir runs/two_workers \
      --config.engine.kind=ray --config.engine.num_workers=2
  fedfish train --config demo --workdir runs/mine --tracker mlflow
  fedfish train --workdir runs/mine --config.training.num_rounds=40

Any setting of the config is overridden as --config.section.setting=value.
Started again with the same --workdir, a run continues from its last
checkpoint; --config may then be left out, and training.num_rounds be raised.
Ctrl-C finishes the client in hand, gives up the round, saves the one before it
and exits with 130; a second one ends at once.
"""

import argparse
import pathlib
import sys
import textwrap

SUMMARY = 'train a model; resumes by itself'
TAKES_EXTRA = '--config.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish train`."""
  from tff_fedfish.methods import registry
  from tff_fedfish.run import trackers

  parser.epilog = textwrap.fill(
    f'Methods, as --config.algorithm.name: {", ".join(registry.BUILT_IN)}, or '
    'the module of a method of your own. `fedfish methods NAME` lists the '
    'settings of one.'
  )
  parser.add_argument(
    '--config',
    metavar='FILE|NAME',
    help='a config file, or the name of a shipped one (see fedfish configs); '
    'default: that of the run in --workdir',
  )
  parser.add_argument(
    '--workdir', metavar='DIR', help="the run's directory, new or to continue"
  )
  parser.add_argument(
    '--dry_run',
    action='store_true',
    help='print config, sizes and cost, check all that the run would refuse, '
    'write nothing',
  )
  parser.add_argument(
    '--tracker',
    action='append',
    choices=trackers.TRACKERS,
    default=[],
    help='also send the rows of metrics.csv there; may be repeated (see '
    'docs/trackers.md)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Trains, or says what training would do."""
  from tff_fedfish.config import load as config_loading
  from tff_fedfish.run import trackers

  names = list(dict.fromkeys(arguments.tracker))
  for name in names:
    trackers.find(name)
  config = config_loading.load_config(
    arguments.config or _config_of_run(arguments),
    arguments.extra,
    workdir=arguments.workdir,
  )
  if arguments.dry_run:
    from tff_fedfish.training.dry_run import dry_run

    dry_run(config, arguments.workdir)
    return 0
  if not arguments.workdir:
    arguments.parser.error('--workdir is required')
  from tff_fedfish.progress import never_failing
  from tff_fedfish.training.train import train

  sys.stdout = never_failing(sys.stdout)
  exit_code = train(config, arguments.workdir, trackers=names)
  if not exit_code:
    print(f'Run: {arguments.workdir}')
  return exit_code


def _config_of_run(arguments):
  from tff_fedfish.config.load import CONFIG_NAME

  path = pathlib.Path(arguments.workdir or '.') / CONFIG_NAME
  if not arguments.workdir or not path.exists():
    arguments.parser.error(
      '--config is required, unless --workdir holds a run to continue'
    )
  return path
