r"""List the shipped configs, which `--config` takes by name.

Examples:
  fedfish configs
  fedfish train --config small_c4 --workdir runs/c4
  fedfish sweep --config debian_sweep --workdir runs/sweep
"""

import argparse

SUMMARY = 'list the shipped configs'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds no arguments: `fedfish configs` takes none."""
  del parser


def run(arguments: argparse.Namespace) -> int:
  """Prints each config's name and what it is."""
  del arguments
  from tff_fedfish.config import files as config_files
  from tff_fedfish.printing import print_facts

  print_facts(config_files.shipped_configs().items())
  print(f'Files: {config_files.SHIPPED}')
  return 0
