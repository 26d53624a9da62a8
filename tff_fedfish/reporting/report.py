"""Writes a report: one page, its plots as files, its numbers as CSV."""

import itertools
import os
import pathlib
import re
from collections.abc import Sequence

from tff_fedfish.errors import UserError
from tff_fedfish.files import (
  csv_file,
  replace_directory_atomically,
  require_usable_output,
)
from tff_fedfish.reporting import settings
from tff_fedfish.reporting.comparisons import compare_methods
from tff_fedfish.reporting.own_tests import client_tables, own_tests_csv
from tff_fedfish.reporting.page import GENERATOR, build_sections, render_page
from tff_fedfish.reporting.repetitions import pool_repetitions
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.tables import summary_csv

_PAGE = 'index.html'
_CONTENTS = {
  *(_PAGE, 'figures', settings.REPRODUCTION_FILE),
  *('summary.csv', 'comparisons.csv', 'own_tests.csv'),
  'paper_tables.csv',  # In reports of before.
}
_GENERATOR_TAG = re.compile(
  f'<meta name="generator" content="{re.escape(GENERATOR)} '
)


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
    with (output / _PAGE).open(encoding='utf-8', errors='replace') as file:
      if not _GENERATOR_TAG.search(file.read(4_096)):
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
  pooled = pool_repetitions(runs)
  # In the order of the pooled runs.
  comparisons = compare_methods(
    [run for one in pooled for run in one.repetitions or (one,)]
  )
  own_tests = client_tables(pooled)
  sections = build_sections(pooled, runs)
  parts = runs, pooled, comparisons, sections, figure_format
  texts = {
    _PAGE: render_page(*parts, client_tables=own_tests),
    'summary.csv': summary_csv(runs),
    settings.REPRODUCTION_FILE: settings.reproduction_config(runs),
  }
  if len(comparisons):
    lines = comparisons.itertuples(index=False)
    texts['comparisons.csv'] = csv_file(comparisons.columns, lines)
  if own_tests:
    texts['own_tests.csv'] = own_tests_csv(own_tests)
  figures = list(itertools.chain(*sections.values()))
  texts |= {f'figures/{figure.name}.csv': figure.csv for figure in figures}
  # Paths may hold bytes that are no text, which Python reads as surrogates.
  files = {n: text.encode('utf-8', 'replace') for n, text in texts.items()}
  files |= {
    f'figures/{figure.name}.{figure_format}': figure.file(figure_format)
    for figure in figures
  }
  try:
    with replace_directory_atomically(output) as temporary:
      for name, data in files.items():
        path = temporary / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
  except PermissionError as error:
    raise UserError(
      f'`--output` must be writable, but {str(output)!r} is not '
      f'({error.strerror}). Name another directory, or change its '
      'permissions.'
    ) from error
  return output / _PAGE
