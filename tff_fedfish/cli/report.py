"""Write one HTML page that shows and compares runs.

Examples:
  fedfish report --runs runs/fed_avg runs/fed_fish --output runs/report
  fedfish report --runs runs/sweep --output runs/report --figure_format pdf
"""

import argparse

SUMMARY = 'show and compare runs on one HTML page'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish report`."""
  parser.add_argument(
    '--runs',
    nargs='+',
    required=True,
    metavar='DIR',
    help='directories of runs, which may still be in progress, or of sweeps',
  )
  parser.add_argument(
    '--output',
    required=True,
    metavar='DIR',
    help='directory to write: index.html (shows without the others), '
    'figures/*.png, figures/*.csv (the numbers of each), summary.csv, '
    'comparisons.csv, clients.csv, reproduce.sh, configs/; an earlier report '
    'there is replaced',
  )
  parser.add_argument(
    '--figure_format',
    choices=('png', 'svg', 'pdf'),
    default='png',
    help='of the files in figures/; the page itself shows SVG in any case '
    '(default: %(default)s)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Runs `fedfish report`."""
  from tff_fedfish.reporting.loading import load_runs

  runs = load_runs(arguments.runs)
  # matplotlib and jinja2 take a second: not for runs that cannot be read.
  from tff_fedfish.reporting.report import write_report

  page = write_report(
    runs, arguments.output, figure_format=arguments.figure_format
  )
  print(f'Report: {page}')
  return 0
