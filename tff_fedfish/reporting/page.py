"""Assembles the report's sections and renders them as one HTML page."""

import dataclasses
import itertools
from collections.abc import Sequence

import jinja2

from tff_fedfish.reporting import matching, settings
from tff_fedfish.reporting.barriers import barrier_scatters
from tff_fedfish.reporting.bars import fraction_bars
from tff_fedfish.reporting.comparisons import Comparison
from tff_fedfish.reporting.curves import (
  barrier_curves,
  cost_curves,
  learning_curves,
)
from tff_fedfish.reporting.figures import Figure
from tff_fedfish.reporting.findings import notes, summary_sentence
from tff_fedfish.reporting.local_epochs import local_epoch_figures
from tff_fedfish.reporting.paper_tables import Column, PaperTable
from tff_fedfish.reporting.repetitions import NUM_BOOTSTRAP
from tff_fedfish.reporting.runs import HELD_OUT, Run, subjects
from tff_fedfish.reporting.scatters import (
  extreme_clients,
  personalization_scatter,
)
from tff_fedfish.reporting.style import run_styles
from tff_fedfish.reporting.tables import build_main_table
from tff_fedfish.reporting.words import (
  Words,
  interval_sample,
  listed,
  shown,
  words_of,
)
from tff_fedfish.version import __version__

GENERATOR = 'fedfish report'
"""Beginning of `<meta name="generator">` of every page."""

_NUM_EXTREME_CLIENTS = 5
_SHARE = 'by share of the client’s data used for personalization'
_PAPER_TITLES = {
  3: 'accuracy by local epochs',
  4: 'scores by share of the client’s data used for personalization',
  5: 'the same after half of the rounds',
  6: 'Fisher diagonals of the last local epoch’s gradients',
}


@dataclasses.dataclass(frozen=True)
class Section:
  """Plots under one heading, or the reason why there are none."""

  anchor: str
  title: str
  figures: Sequence[Figure]
  absent: str


@dataclasses.dataclass(frozen=True)
class Report:
  """Contents of a page.

  Attributes:
    runs: The runs as they are, one per directory.
    pooled: One for all that differ in seeds only.
    tables: Those of the paper.
    comparisons: Method against method.
    sections: The plots.
    figure_format: Of the plots' files beside the page.
  """

  runs: Sequence[Run]
  pooled: Sequence[Run]
  tables: Sequence[PaperTable]
  comparisons: Sequence[Comparison]
  sections: Sequence[Section]
  figure_format: str = 'png'


def build_sections(
  pooled: Sequence[Run], runs: Sequence[Run] | None = None
) -> list[Section]:
  """Returns the sections that hold plots, in the page's order.

  Args:
    pooled: The runs of the report, repetitions pooled.
    runs: The same as they are; None: none was repeated.

  Returns:
    Sections; one without figures says why in `absent`.
  """
  every_run = pooled if runs is None else runs
  styles = run_styles(pooled)
  _, *others = subjects(pooled)
  transfers = _file_names([s for s in others if s.kind == 'transfer'])
  parts = _file_names([s for s in others if s.kind == 'held_out'], 'part')
  held_out = {HELD_OUT: 'held_out', **parts}
  scatters = [
    personalization_scatter(
      pooled, styles, subject=subject, name=f'{name}_before_after'
    )
    for subject, name in (held_out | transfers).items()
  ]
  evaluate = '“fedfish evaluate” makes one from its checkpoint'
  return [
    Section(anchor, title, figures, '' if figures else absent)
    for anchor, title, figures, absent in (
      (
        'learning-curves',
        'Learning curves',
        learning_curves(pooled, styles),
        'no round with a loss is finished yet.',
      ),
      (
        'local-epochs',
        'Local epochs',
        local_epoch_figures(pooled, styles),
        'there are not two numbers of local epochs whose runs have an '
        'evaluation on held-out clients after their last round.',
      ),
      (
        'personalization',
        'Personalization of held-out clients',
        [
          figure
          for subject, name in held_out.items()
          for figure in fraction_bars(
            pooled, styles, subject=subject, name=name
          )
        ],
        f'no run has an evaluation on held-out clients ({evaluate}).',
      ),
      (
        'transfer',
        'Transfer to another corpus',
        [
          figure
          for subject, name in transfers.items()
          for figure in fraction_bars(
            pooled, styles, subject=subject, name=name
          )
        ],
        f'no run has an evaluation on another corpus ({evaluate}).',
      ),
      (
        'clients',
        'Client by client',
        [figure for figure in scatters if figure],
        'no evaluation has a per_client.csv with a fraction above 0.',
      ),
      (
        'barrier',
        'Client-Server Barrier',
        [
          *barrier_curves(pooled, styles),
          *barrier_scatters(every_run, run_styles(every_run)),
        ],
        'no evaluation has a barrier.csv, and no run measured barriers in '
        'training.',
      ),
      (
        'communication',
        'Accuracy against cost',
        cost_curves(pooled, styles),
        'metrics.csv of no run has both communicated units and a held-out '
        'accuracy.',
      ),
    )
  ]


def render_page(report: Report) -> str:
  """Returns the page: HTML that shows without any other file.

  Args:
    report: What to show. Everything that comes from files is escaped.
  """
  runs, pooled = report.runs, report.pooled
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_fedfish.reporting'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  figures = (
    figure for section in report.sections for figure in section.figures
  )
  config = settings.compare([run.config for run in runs])
  methods = dict.fromkeys(run.method for run in runs)
  scored = [(run, e) for run in pooled for e in _shown_evaluations(run)]
  return environment.get_template('report.html.j2').render(
    generator=f'{GENERATOR} {__version__}',
    version=__version__,
    title=f'Federated pretraining: {listed(list(methods))}',
    runs=runs,
    pooled=pooled,
    styles=run_styles(pooled),
    summary=summary_sentence(pooled),
    notes=notes(runs, pooled),
    words=words_of(runs),
    interval_sample=interval_sample(e for _, e in scored),
    panels=_panels(pooled),
    every_run_panels=_panels(runs) if len(pooled) < len(runs) else [],
    paper_tables=report.tables,
    paper_titles=_PAPER_TITLES,
    paper_headings=_paper_headings,
    show=_paper_number,
    comparisons=report.comparisons,
    num_bootstrap=NUM_BOOTSTRAP,
    sections=report.sections,
    figure_numbers={f.name: n for n, f in enumerate(figures, start=1)},
    figure_format=report.figure_format,
    extremes=[
      (run.label, e, extreme_clients(e, _NUM_EXTREME_CLIENTS))
      for run, e in scored
      if e.largest_client_fraction() is not None
    ],
    differing=[setting for setting in config if setting.differs],
    config=config,
    environment=settings.compare([run.environment for run in runs]),
    commands=settings.reproduction_commands(runs),
    reproduction_file=settings.REPRODUCTION_FILE,
    reproduction_config=settings.reproduction_config(runs),
  )


def _paper_number(
  value: float, measure: str, is_difference: bool = False
) -> str:
  """Returns a number as text: accuracies in percent, losses in nats.

  Args:
    value: The number.
    measure: 'accuracy' or 'loss'.
    is_difference: Whether to show its sign.
  """
  places, scale = (2, 100) if measure == 'accuracy' else (3, 1)
  return shown(value, places, scale, '+' if is_difference else '')


def _paper_headings(
  columns: Sequence[Column], words: Words
) -> tuple[list[tuple[str, int]], list[str]]:
  """Returns the two rows of headings over the numbers.

  Args:
    columns: Of a table; equal fractions stand together.
    words: Of what was predicted.

  Returns:
    (heading, number of columns) of the upper row, and the lower row: measures,
    or the stages where all is of one measure.
  """
  is_by_stage = len({column.stage for column in columns}) > 1

  def group(column):
    place = 'Global'
    if column.fraction > 0:
      place = f'Personalized on {100 * column.fraction:g} %'
    return f'{place}: {words.accuracy_label}' if is_by_stage else place

  groups = matching.grouped(columns, group)
  # The unit of the loss stands above the tables.
  labels = {'loss': 'Loss', 'accuracy': 'Accuracy (%)'}
  names = [c.stage if is_by_stage else labels[c.measure] for c in columns]
  return [(name, len(found)) for name, found in groups.items()], names


def _panels(runs):
  """Returns (title, table, [(group, span)]) for each panel with columns."""
  panels = []
  for name, panel in build_main_table(runs).panels():
    groups = itertools.groupby(column.group for column in panel.columns)
    spans = [(group, len(list(found))) for group, found in groups]
    panels.append((_panel_title(name, panel), panel, spans))
  return panels


def _file_names(subjects, prefix='transfer'):
  """Returns numbered names, as a corpus's own may hold anything."""
  if len(subjects) == 1:
    return {subjects[0]: prefix}
  return {subject: f'{prefix}_{n}' for n, subject in enumerate(subjects, 1)}


def _panel_title(name, panel):
  kind, _, corpus = name.partition(': ')
  if corpus:
    words = {'held_out': 'Held-out clients of', 'transfer': 'Transfer to'}
    return f'{words[kind]} {corpus}, {_SHARE}'
  has_barrier = any(column.measure == 'barrier' for column in panel.columns)
  return {
    'held_out': f'Held-out clients, {_SHARE}',
    'cost': 'Client-Server Barrier and cost' if has_barrier else 'Cost',
    'training': 'Training, last values',
    'method': 'Metrics of single methods, last values',
  }[name]


def _shown_evaluations(run):
  """Returns a run's evaluations in the main table."""
  return list(filter(None, map(run.evaluation, subjects([run]))))
