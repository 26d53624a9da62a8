r"""List the shipped configs, which `--config` takes by name.

Examples:
  fedfish configs
  fedfish train --config small_c4 --workdir runs/c4
  fedfish sweep --config debian_sweep --workdir runs/sweep
  fedfish configs --markdown > docs/settings.md
"""

import argparse

SUMMARY = 'list the shipped configs'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish configs`."""
  parser.add_argument(
    '--markdown',
    action='store_true',
    help='print a page on all settings instead, docs/settings.md',
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints each config's name and what it is."""
  from tff_fedfish.config import given
  from tff_fedfish.printing import print_facts

  if arguments.markdown:
    from tff_fedfish.config.describe import to_markdown

    print(to_markdown(), end='')
    return 0
  print_facts(given.shipped_configs().items())
  print(f'Files: {given.SHIPPED}')
  return 0
