"""Writes a report: one page, its plots as files, its numbers as CSV."""

import os
import pathlib
import re
from collections.abc import Sequence

from tff_fedfish.errors import UserError
from tff_fedfish.files import (
  require_usable_output,
  write_directory_atomically,
)
from tff_fedfish.reporting import figures_of_report, notes, reproduction
from tff_fedfish.reporting.comparisons import comparisons_csv
from tff_fedfish.reporting.findings import read_findings
from tff_fedfish.reporting.page import GENERATOR, SCRIPT, render_page
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.summary import summary_csv

_PAGE = 'index.html'
_CONTENTS = {
  *(_PAGE, SCRIPT, notes.MORE_SEEDS, 'figures', reproduction.CONFIGS_NAME),
  *('summary.csv', 'comparisons.csv', 'clients.csv'),
  # In earlier reports.
  *('own_tests.csv', 'paper_tables.csv', 'reproduce.py'),
}
_GENERATOR_TAG = re.compile(
  f'<meta name="generator" content="{re.escape(GENERATOR)} '
)

_SCRIPT_HEADS = {
  SCRIPT: '# Start it beside configs/. Relative paths of corpora begin there.\n'
  'set -e\n',
  notes.MORE_SEEDS: '# Start it where the report was made.\nset -e\n',
}


def is_report(directory: str | os.PathLike) -> bool:
  """Returns whether a directory holds a report."""
  try:
    path = pathlib.Path(directory) / _PAGE
    with path.open(encoding='utf-8', errors='replace') as file:
      return bool(_GENERATOR_TAG.search(file.read(4_096)))
  except OSError:
    return False


def check_output(output: str | os.PathLike) -> pathlib.Path:
  """Checks, before any work, that a report can be written to `output`.

  Returns:
    The path, absolute and without links.

  Raises:
    UserError: If it is not new, not empty, and holds something other than an
      earlier report, or cannot be written to.
  """
  output = require_usable_output(output, '--output', marker=_PAGE)
  if (output / _PAGE).exists():
    foreign = sorted({e.name for e in output.iterdir()} - _CONTENTS)
    if not is_report(output):
      foreign = [_PAGE]
    if foreign:
      raise UserError(
        '`--output` must be empty or new, or hold an earlier report and '
        f'nothing else, but {str(output)!r} also holds {foreign[0]!r}. Name '
        'another directory, or move that away first.'
      )
  return output


def write_report(
  runs: Sequence[Run], output: str | os.PathLike, *, figure_format: str = 'png'
) -> pathlib.Path:
  """Writes the report of at least one run; returns the path of its page.

  An earlier report in `output` is replaced whole. Plots are 'png', 'svg' or
  'pdf' files; the page itself holds them as SVG.

  Raises:
    UserError: If the output cannot be used.
  """
  output = check_output(output)
  findings = read_findings(runs)
  plots = figures_of_report.all_plots(findings)
  texts = {'summary.csv': summary_csv(runs)}
  if findings.comparisons:
    texts['comparisons.csv'] = comparisons_csv(findings.comparisons)
  if len(findings.rows):
    texts['clients.csv'] = findings.clients_csv()
  texts[_PAGE] = render_page(findings, plots, figure_format, list(texts))
  scripts = {SCRIPT: reproduction.reproduction_commands(runs)}
  scripts[notes.MORE_SEEDS] = reproduction.more_seeds_commands(
    findings.compared_arms
  )
  texts |= {
    name: _SCRIPT_HEADS[name]
    + ''.join(f'{" ".join(command)}\n' for command in commands)
    for name, commands in scripts.items()
    if commands
  }
  texts |= reproduction.reproduction_files(runs)
  drawn = [plot for found in plots.values() for plot in found]
  texts |= {f'figures/{plot.name}.csv': plot.csv for plot in drawn}
  # Paths may hold bytes that are no text, which Python reads as surrogates.
  files = {n: text.encode('utf-8', 'replace') for n, text in texts.items()}
  files |= {
    f'figures/{plot.name}.{figure_format}': plot.file(figure_format)
    for plot in drawn
  }
  try:
    with write_directory_atomically(
      output, marker=_PAGE, replaced=_CONTENTS
    ) as temporary:
      for name, data in files.items():
        path = temporary / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
  except PermissionError as error:
    raise UserError(
      f'`--output` must be writable, but {str(output)!r} is not '
      f'({error.strerror}). Name another directory, or change its '
      'permissions.'
    ) from error
  return output / _PAGE
