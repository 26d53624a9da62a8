"""The page of a report: its sections, rendered as one HTML file."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import jinja2
import markupsafe
import pandas as pd

from tff_fedfish.reporting import (
  comparison_tables,
  headline,
  notes,
  reproduction,
  settings,
  tables,
)
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.plots import Plot
from tff_fedfish.reporting.runs import HELD_OUT, OWN_TEST, Run
from tff_fedfish.reporting.tables import Table
from tff_fedfish.reporting.words import listed
from tff_fedfish.version import __version__

GENERATOR = 'fedfish report'
"""Beginning of `<meta name="generator">` of every page."""
SCRIPT = 'reproduce.sh'
"""File with all commands, beside the page."""

# Commands and settings. Other backticks are part of names.
_CODE = re.compile(r'`(fedfish [^`]+|(?:--)?[a-z_]+\.[a-z_.]+)`')


def _prose(text: str) -> markupsafe.Markup:
  """Returns a sentence in HTML; a command or setting in backticks is code.

  No line of it begins with '%' or '='.
  """
  parts = list(map(markupsafe.escape, _CODE.split(text)))
  parts[::2] = [
    part.replace(' %', '\u00a0%').replace(' = ', '\u00a0=\u00a0')
    for part in parts[::2]
  ]
  parts[1::2] = [
    markupsafe.Markup('<code>{}</code>').format(part) for part in parts[1::2]
  ]
  return markupsafe.Markup().join(parts)


_JINJA = jinja2.Environment(
  loader=jinja2.PackageLoader('tff_fedfish.reporting'),
  autoescape=True,
  undefined=jinja2.StrictUndefined,
  trim_blocks=True,
  lstrip_blocks=True,
  keep_trailing_newline=True,
)
_JINJA.filters['prose'] = _prose
_MAX_NOTES = 5
# Rows of a table on top.
_MAX_ROWS = 8
# What a reader must know of a table, by its name.
_TABLE_NOTES = {
  'comparisons_1': (
    'Everything that differs between two sides is in their names. Small print: '
    '95 % interval; from three seeds on the wider of the bootstrap over '
    'clients and seeds and of Student’s t over seeds; of one seed, over '
    'clients; none where a side was chosen on these clients; too narrow where '
    'few clients differ much more than the others. Fewer than three seeds are '
    'not a finding. Nothing is corrected for the number of rows.'
  ),
  'equal_bytes': (
    'Curves are interpolated linearly between evaluations. Small print: '
    'Student’s 95 % interval over seeds.'
  ),
  'scores_1': (
    '0 %, 25 %, 50 %: fraction of each client’s data used for personalization.'
  ),
  'barrier': 'The barrier ranks nothing.',
}
# Anchor: title, what it needs ('' if its absence is no news), is it folded.
_SECTIONS = {
  'personalization': (
    'Personalization of held-out clients',
    'an evaluation on held-out clients',
    False,
  ),
  'transfer': ('Transfer', 'an evaluation on another corpus', False),
  'own-tests': ('Own test rows of the clients that train', '', False),
  'curves': ('Curves and cost', 'a finished round with a loss', False),
  'local-epochs': ('Local epochs', '', True),
  'comparisons': ('Further comparisons', '', True),
  'training': ('Training', '', True),
}


@dataclasses.dataclass(frozen=True)
class Section:
  """A part of the page with a heading."""

  anchor: str
  title: str
  plots: Sequence[Plot]
  tables: Sequence[Table]
  is_folded: bool


def render_page(
  findings: Findings,
  plots: Mapping[str, Sequence[Plot]],
  figure_format: str = 'png',
  files: Sequence[str] = (),
) -> str:
  """Returns the page: HTML that shows without any other file.

  Everything that comes from files is escaped.

  Args:
    findings: The runs and what is known of them.
    plots: What `figures_of_report.all_plots` returns.
    figure_format: Format of the plots' files beside the page.
    files: Names of the CSV files beside the page.
  """
  runs = findings.runs
  first_plot, plots = _first_plot(plots)
  first_tables, num_further, comparisons = _comparisons(findings)
  sections = _sections(findings, plots, comparisons)
  config = settings.compare([settings.published(run.config) for run in runs])
  environments = settings.compare([run.environment for run in runs])
  methods = dict.fromkeys(run.method for run in runs)
  return _JINJA.get_template('report.html.j2').render(
    generator=f'{GENERATOR} {__version__}',
    version=__version__,
    title=f'Federated pretraining: {listed(list(methods))}',
    sentences=headline.sentences(findings),
    notes=notes.notes(findings),
    max_notes=_MAX_NOTES,
    runs=runs,
    first_plot=first_plot,
    first_tables=first_tables,
    num_further=num_further,
    table_notes=_TABLE_NOTES,
    sections=sections,
    figure_format=figure_format,
    differing=_differing(runs, config),
    value_heading='Value' if len(runs) == 1 else 'Value in all runs',
    config=list(_merged(config)),
    environment=list(_merged(environments)),
    commands=reproduction.reproduction_commands(runs[:1]),
    script=SCRIPT,
    absent=_absent(sections),
    files=files,
  )


def _first_plot(
  plots: Mapping[str, Sequence[Plot]],
) -> tuple[Plot | None, dict[str, list[Plot]]]:
  """Returns the figure on top of the page, and the others.

  It is the first that there is: differences, scores, learning curves.
  """
  rest = {name: list(found) for name, found in plots.items()}
  for name in ('answer', 'personalization', 'own-tests', 'transfer', 'curves'):
    if rest.get(name):
      return rest[name].pop(0), rest
  return None, rest


def _comparisons(
  findings: Findings,
) -> tuple[list[Table], int, list[Table]]:
  """Returns the tables on top, how many rows they lack, and other tables.

  On top are the questions on the first subject, and equal bytes.
  """
  every = comparison_tables.comparison_tables(findings)
  subject = every[0].subject if every else ''
  top, others, num_further = [], [], 0
  for table in every:
    if table.subject not in (subject, ''):
      others.append(table)
      continue
    rows = table.rows[_MAX_ROWS:]
    if rows:
      num_further += len(rows)
      further = {'name': f'{table.name}_further', 'rows': rows}
      title = f'{table.title}, further rows'
      others.append(dataclasses.replace(table, title=title, **further))
    top.append(dataclasses.replace(table, rows=table.rows[:_MAX_ROWS]))
  return top, num_further, others


def _sections(
  findings: Findings,
  plots: Mapping[str, Sequence[Plot]],
  comparisons: Sequence[Table],
) -> list[Section]:
  """Returns the sections that have a plot or a table."""
  anchors = {HELD_OUT: 'personalization', OWN_TEST: 'own-tests'}
  found = {
    'curves': [tables.cost_table(findings)],
    'comparisons': comparisons,
    'training': [tables.training_table(findings)],
  }
  for subject, table in tables.score_tables(findings).items():
    found.setdefault(anchors.get(subject, 'transfer'), []).append(table)
  sections = [
    Section(
      anchor,
      title,
      plots.get(anchor, ()),
      [t for t in found.get(anchor, ()) if len(t.headings) > 1],
      is_folded,
    )
    for anchor, (title, _, is_folded) in _SECTIONS.items()
  ]
  return [section for section in sections if section.plots or section.tables]


def _absent(sections: Sequence[Section]) -> list[str]:
  """Returns the sections that are left out, and what they need."""
  there = {section.anchor for section in sections}
  return [
    f'{title} (needs {needed})'
    for anchor, (title, needed, _) in _SECTIONS.items()
    if needed and anchor not in there
  ]


def _differing(
  runs: Sequence[Run], config: pd.DataFrame
) -> tuple[list[str], list[tuple]]:
  """Returns headings and rows: a row per setting, or per run of many runs.

  Two paths to the same corpus or vocabulary are no difference.
  """
  contents = {
    'data.directory': {
      run.identity and run.identity.fingerprint for run in runs
    },
    'data.vocabulary': {run.vocabulary for run in runs},
  }
  same = [n for n, c in contents.items() if len(c) == 1 and c != {None}]
  table = config[config.nunique(axis='columns') > 1]
  table = table.drop(same, errors='ignore')
  labels = [run.label for run in runs]
  table.columns = labels
  name = 'Setting'
  if len(runs) > 4:
    table, name = table.T, 'Run'
  rows = list(zip(table.index, *table.T.to_numpy(), strict=True))
  return [name, *table.columns], rows


def _merged(compared: pd.DataFrame) -> Iterator[tuple[str, str]]:
  """Yields a row per name, with the one value or all that differ."""
  for name, values in zip(compared.index, compared.to_numpy(), strict=True):
    shown = list(dict.fromkeys(values))
    yield name, ' / '.join(shown)
