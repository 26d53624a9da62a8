"""Show versions, devices, memory, and what works here and what does not.

Examples:
  fedfish doctor

Exits with 0 if everything needed works, with 1 if something does not.
"""

import argparse
import logging
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from tff_fedfish.doctor import Finding

SUMMARY = 'show what works on this machine, with remedies for what does not'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish doctor`: none."""


def run(arguments: argparse.Namespace) -> int:
  """Runs the checks and prints each finding as soon as it is there."""
  from tff_fedfish import doctor
  from tff_fedfish.version import __version__

  print(f'fedfish {__version__}')
  findings, disabled = [], logging.root.manager.disable
  # What packages say about each other has no remedy here.
  logging.disable(logging.WARNING)
  try:
    with warnings.catch_warnings(action='ignore'):
      for finding in doctor.examine():
        findings.append(finding)
        _print(finding)
  finally:
    logging.disable(disabled)
  usable = doctor.is_usable(findings)
  print('Ready.' if usable else 'Not usable: see the problems above.')
  return 0 if usable else 1


def _print(finding: 'Finding') -> None:
  print(f'{finding.status:<8}{finding.name}: {finding.found}', flush=True)
  if finding.remedy:
    print(f'{"":8}-> {finding.remedy}', flush=True)
