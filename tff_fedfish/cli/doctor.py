"""Show versions, devices, memory, and what works here and what does not.

Examples:
  fedfish doctor
  fedfish doctor --json
  fedfish doctor --ray_address auto --config small_c4

Exits with 0 if everything needed works, with 1 if something does not. With
--ray_address it asks every host of a Ray cluster instead, and exits with 1 if
one of them differs from this machine or lacks something.
"""

import argparse
import dataclasses
import json
import logging
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from tff_fedfish.cluster_doctor import HostReport
  from tff_fedfish.doctor import Finding

SUMMARY = 'show what works on this machine, with remedies for what does not'
TAKES_EXTRA = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish doctor`."""
  parser.add_argument(
    '--json', action='store_true', help='print one JSON object instead'
  )
  parser.add_argument(
    '--ray_address',
    metavar='auto|HOST:PORT',
    help='ask every host of this Ray cluster',
  )
  parser.add_argument(
    '--config',
    metavar='FILE|NAME',
    help='with --ray_address: look for the corpus and vocabulary of a config, '
    'which --config.data.directory=DIR changes',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs the checks and prints each finding as soon as it is there."""
  if arguments.extra and not arguments.config:
    arguments.parser.error(f'unrecognized arguments: {arguments.extra[0]}')
  if arguments.ray_address:
    return _examine_cluster(arguments)
  if arguments.config:
    arguments.parser.error('--config requires --ray_address')
  from tff_fedfish import doctor
  from tff_fedfish.version import __version__

  if not arguments.json:
    print(f'fedfish {__version__}')
  findings, disabled = [], logging.root.manager.disable
  # What packages say about each other has no remedy here.
  logging.disable(logging.WARNING)
  try:
    with warnings.catch_warnings(action='ignore'):
      for finding in doctor.examine():
        findings.append(finding)
        if not arguments.json:
          _print(finding)
  finally:
    logging.disable(disabled)
  usable = doctor.is_usable(findings)
  if arguments.json:
    result = {
      'fedfish': __version__,
      'usable': usable,
      'findings': [dataclasses.asdict(finding) for finding in findings],
    }
    print(json.dumps(result, indent=2))
  else:
    print('Ready.' if usable else 'Not usable: see the problems above.')
  return 0 if usable else 1


def _examine_cluster(arguments):
  """Prints a table of the hosts, then what is wrong with each."""
  from tff_fedfish import cluster_doctor

  config = None
  if arguments.config:
    from tff_fedfish.config.loading import load_config

    config = load_config(arguments.config, arguments.extra)
  reports = cluster_doctor.examine(arguments.ray_address, config)
  has_problems = any(report.problems for report in reports)
  if arguments.json:
    result = {
      'usable': not has_problems,
      'hosts': [report._asdict() for report in reports],
    }
    print(json.dumps(result, indent=2))
  else:
    _print_hosts(reports)
    print('Not usable: see above.' if has_problems else 'Ready.')
  return 1 if has_problems else 0


def _print_hosts(reports: 'list[HostReport]'):
  from rich.console import Console
  from rich.table import Table

  table = Table(box=None, padding=(0, 2, 0, 0))
  table.add_column('')
  for report in reports:
    table.add_column(report.name, overflow='fold')
  names = dict.fromkeys(name for r in reports for name in r.facts)
  for name in names:
    table.add_row(name, *(r.facts.get(name, '') for r in reports))
  Console().print(table)
  for report in reports:
    for problem in report.problems:
      print(f'problem {report.name}: {problem}')
    if report.remedy:
      print(f'{"":8}-> {report.remedy}')


def _print(finding: 'Finding') -> None:
  print(f'{finding.status:<8}{finding.name}: {finding.found}', flush=True)
  if finding.remedy:
    print(f'{"":8}-> {finding.remedy}', flush=True)
