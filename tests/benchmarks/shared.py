"""Shared parts of benchmarks: progress, spread, environment of processes."""

import os
import pathlib
import statistics
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {
  'PYTHONPATH': os.pathsep.join([str(ROOT), str(ROOT / 'tests')]),
  'TF_CPP_MIN_LOG_LEVEL': '3',
}
"""Environment of processes that import what is measured."""


def say(line: str) -> None:
  """Prints how far it is."""
  print(f'  {line}', file=sys.stderr, flush=True)


def spread(values: Sequence[float], form: str = '.2f') -> str:
  """Returns the median, and the smallest and the largest value."""
  low, high = min(values), max(values)
  return f'{statistics.median(values):{form}} ({low:{form}}-{high:{form}})'
