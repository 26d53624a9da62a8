"""Assembles the report's sections and renders them as one HTML page."""

import dataclasses
from collections.abc import Sequence

import jinja2

from tff_fedfish.reporting import settings
from tff_fedfish.reporting.barriers import barrier_scatters
from tff_fedfish.reporting.bars import fraction_bars
from tff_fedfish.reporting.comparisons import Comparison
from tff_fedfish.reporting.figures import Figure
from tff_fedfish.reporting.findings import listed, notes, summary_sentence
from tff_fedfish.reporting.learning_curves import (
  barrier_curves,
  cost_curves,
  learning_curves,
)
from tff_fedfish.reporting.local_epochs import local_epoch_figures
from tff_fedfish.reporting.paper_rows import headings, show
from tff_fedfish.reporting.paper_tables import PaperTable
from tff_fedfish.reporting.repetitions import NUM_BOOTSTRAP
from tff_fedfish.reporting.runs import Run, transfer_corpora
from tff_fedfish.reporting.scatters import (
  extreme_clients,
  personalization_scatter,
)
from tff_fedfish.reporting.style import run_styles
from tff_fedfish.reporting.tables import build_main_table
from tff_fedfish.reporting.words import interval_sample, words_of
from tff_fedfish.version import __version__

GENERATOR = 'fedfish report'
"""Beginning of `<meta name="generator">` of every page."""

_NUM_EXTREME_CLIENTS = 5
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
  figures: tuple[Figure, ...]
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
  runs = pooled
  styles = run_styles(runs)
  corpora = transfer_corpora(runs)
  held_out = dict(
    choose=Run.held_out, name='held_out', subject='held-out clients'
  )
  transfers = [
    dict(
      choose=lambda run, corpus=corpus: run.transfer(corpus),
      # A number, as a corpus's name may hold anything.
      name='transfer' if len(corpora) == 1 else f'transfer_{number}',
      subject=f'clients of {corpus}',
    )
    for number, corpus in enumerate(corpora, start=1)
  ]
  scatters = [
    personalization_scatter(
      runs, styles, **{**chosen, 'name': f'{chosen["name"]}_before_after'}
    )
    for chosen in (held_out, *transfers)
  ]
  evaluate = '“fedfish evaluate” makes one from its checkpoint'
  return [
    _section(
      'learning-curves',
      'Learning curves',
      learning_curves(runs, styles),
      'no round with a loss is finished yet.',
    ),
    _section(
      'local-epochs',
      'Local epochs',
      local_epoch_figures(runs, styles),
      'there are not two numbers of local epochs whose runs have an evaluation '
      'on held-out clients after their last round.',
    ),
    _section(
      'personalization',
      'Personalization of held-out clients',
      fraction_bars(runs, styles, **held_out),
      f'no run has an evaluation on held-out clients ({evaluate}).',
    ),
    _section(
      'transfer',
      'Transfer to another corpus',
      [
        figure
        for chosen in transfers
        for figure in fraction_bars(runs, styles, **chosen)
      ],
      f'no run has an evaluation on another corpus ({evaluate}).',
    ),
    _section(
      'clients',
      'Client by client',
      [figure for figure in scatters if figure],
      'no evaluation has a per_client.csv with a fraction above 0.',
    ),
    _section(
      'barrier',
      'Client-Server Barrier',
      [
        *barrier_curves(runs, styles),
        *barrier_scatters(every_run, run_styles(every_run)),
      ],
      'no evaluation has a barrier.csv, and no run measured barriers in '
      'training.',
    ),
    _section(
      'communication',
      'Accuracy against cost',
      cost_curves(runs, styles),
      'metrics.csv of no run has both communicated units and a held-out '
      'accuracy.',
    ),
  ]


def render_page(report: Report) -> str:
  """Returns the page: HTML that shows without any other file.

  Args:
    report: What to show.

  Returns:
    The page. Everything that comes from files is escaped.
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
  numbers = {}
  for section in report.sections:
    for figure in section.figures:
      numbers[figure.name] = len(numbers) + 1
  config = settings.compare([run.config for run in runs])
  methods = dict.fromkeys(run.method for run in runs)
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
    interval_sample=interval_sample(_shown_evaluations(pooled)),
    panels=_panels(build_main_table(pooled)),
    every_run_panels=_panels(build_main_table(runs))
    if len(pooled) < len(runs)
    else [],
    paper_tables=report.tables,
    paper_titles=_PAPER_TITLES,
    paper_headings=headings,
    show=show,
    comparisons=report.comparisons,
    num_bootstrap=NUM_BOOTSTRAP,
    sections=report.sections,
    figure_numbers=numbers,
    figure_format=report.figure_format,
    extremes=_extremes(pooled),
    differing=[setting for setting in config if setting.differs],
    config=config,
    environment=settings.compare([run.environment for run in runs]),
    commands=settings.reproduction_commands(runs),
    reproduction_file=settings.REPRODUCTION_FILE,
    reproduction_config=settings.reproduction_config(runs),
  )


def _section(anchor, title, drawn, absent):
  return Section(anchor, title, tuple(drawn), '' if drawn else absent)


def _panels(table):
  """Returns (title, table, [(group, span)]) for each panel with columns."""
  panels = []
  for name in dict.fromkeys(column.panel for column in table.columns):
    panel = table.panel(name)
    groups: list[list] = []
    for column in panel.columns:
      if groups and groups[-1][0] == column.group:
        groups[-1][1] += 1
      else:
        groups.append([column.group, 1])
    panels.append((_panel_title(name, panel), panel, groups))
  return panels


def _panel_title(name, panel):
  if name.startswith('transfer: '):
    return (
      f'Transfer to {name.removeprefix("transfer: ")}, by share of the '
      'client’s data used for personalization'
    )
  return {
    'held_out': 'Held-out clients, by share of the client’s data used for '
    'personalization',
    'cost': 'Client-Server Barrier and cost'
    if any(column.measure == 'barrier' for column in panel.columns)
    else 'Cost',
    'training': 'Training, last values',
    'method': 'Metrics of single methods, last values',
  }[name]


def _shown_evaluations(runs):
  """Returns the evaluations of the main table."""
  return [
    evaluation
    for run in runs
    for evaluation in (
      run.held_out(),
      *(run.transfer(corpus) for corpus in transfer_corpora([run])),
    )
    if evaluation
  ]


def _extremes(runs):
  """Returns (label, evaluation, rows) for evaluations with client scores."""
  found = []
  for run in runs:
    for evaluation in _shown_evaluations([run]):
      if evaluation.largest_client_fraction() is not None:
        rows = extreme_clients(evaluation, _NUM_EXTREME_CLIENTS)
        found.append((run.label, evaluation, rows))
  return found
