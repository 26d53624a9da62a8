"""Assembles the report's sections and renders them as one HTML page."""

import collections
import itertools
from collections.abc import Mapping, Sequence

import jinja2
import markupsafe
import pandas as pd

from tff_fedfish.reporting import (
  affinities,
  barriers,
  bars,
  curves,
  findings,
  headline,
  local_epochs,
  match,
  regime_map,
  scatters,
  settings,
)
from tff_fedfish.reporting.comparisons import shown_interval, verdict
from tff_fedfish.reporting.figures import Figure
from tff_fedfish.reporting.own_tests import MAX_SHOWN, ClientTable
from tff_fedfish.reporting.repetitions import NUM_BOOTSTRAP
from tff_fedfish.reporting.runs import HELD_OUT, OWN_TEST, Run, subjects
from tff_fedfish.reporting.style import run_styles
from tff_fedfish.reporting.tables import build_main_table
from tff_fedfish.reporting.words import (
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


def build_sections(
  pooled: Sequence[Run], runs: Sequence[Run] | None = None
) -> dict[str, list[Figure]]:
  """Returns the plots by the anchor of their section, in the page's order.

  Args:
    pooled: The runs of the report, repetitions pooled.
    runs: The same as they are; None: none was repeated.
  """
  every_run = pooled if runs is None else runs
  _, *others = subjects(pooled)
  transfers = _file_names([s for s in others if s.kind == 'transfer'])
  parts = _file_names([s for s in others if s.kind == 'held_out'], 'part')
  held_out = {HELD_OUT: 'held_out', **parts}

  def scores(names):
    drawn = []
    for subject, name in names.items():
      drawn += bars.fraction_bars(pooled, subject=subject, name=name)
    return drawn

  clients = [
    scatters.personalization_scatter(
      pooled, subject=subject, name=f'{name}_before_after'
    )
    for subject, name in (held_out | transfers).items()
  ]
  return {
    'learning-curves': curves.learning_curves(pooled),
    'local-epochs': [
      *local_epochs.local_epoch_figures(pooled),
      *regime_map.regime_maps(every_run),
    ],
    'personalization': scores(held_out),
    'transfer': scores(transfers),
    'own-tests': [
      *scores({OWN_TEST: OWN_TEST.kind}),
      *affinities.affinity_maps(pooled),
    ],
    'clients': [figure for figure in clients if figure],
    'barrier': [
      *curves.barrier_curves(pooled),
      *barriers.barrier_scatters(every_run),
    ],
    'communication': curves.cost_curves(pooled),
  }


def render_page(
  runs: Sequence[Run],
  pooled: Sequence[Run],
  comparisons: pd.DataFrame,
  sections: Mapping[str, Sequence[Figure]],
  figure_format: str = 'png',
  *,
  client_tables: Sequence[ClientTable] = (),
) -> str:
  """Returns the page: HTML that shows without any other file.

  Everything that comes from files is escaped.

  Args:
    runs: The runs as they are, one per directory.
    pooled: One for all that differ in seeds only.
    comparisons: Lines of `compare_methods`.
    sections: The plots, as `build_sections` returns them.
    figure_format: Format of the plots' files beside the page.
    client_tables: Tables of `own_tests.client_tables`.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_fedfish.reporting'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  figures = itertools.chain(*sections.values())
  config = settings.compare([settings.published(run.config) for run in runs])
  environments = settings.compare([run.environment for run in runs])
  methods = dict.fromkeys(run.method for run in runs)
  lines = list(comparisons.itertuples(index=False))
  evaluated = [
    (run, evaluation)
    for run in pooled
    for subject in subjects([run])
    if (evaluation := run.evaluation(subject))
  ]
  return environment.get_template('report.html.j2').render(
    generator=f'{GENERATOR} {__version__}',
    version=__version__,
    title=f'Federated pretraining: {listed(list(methods))}',
    runs=runs,
    pooled=pooled,
    styles=run_styles(pooled),
    summary=headline.headline(pooled, comparisons),
    notes=[*findings.notes(runs, pooled), *regime_map.notes(runs)],
    words=words_of(runs),
    interval_sample=interval_sample(e for _, e in evaluated),
    client_tables=client_tables,
    max_clients_shown=MAX_SHOWN,
    own_test_rows=str(OWN_TEST),
    panels=_panels(pooled),
    every_run_panels=_panels(runs) if len(pooled) < len(runs) else [],
    # Two lines of one comparison: of the loss and of the accuracy.
    comparisons=list(zip(lines[::2], lines[1::2], strict=True)),
    verdict=verdict,
    shown_interval=shown_interval,
    num_bootstrap=NUM_BOOTSTRAP,
    drawn=sections,
    figure_numbers={f.name: n for n, f in enumerate(figures, start=1)},
    figure_format=figure_format,
    extremes=[
      (run.label, e, list(_client_rows(e)))
      for run, e in evaluated
      if e.largest_client_fraction() is not None
    ],
    differing=_differing(runs, config),
    value_heading='Value' if len(runs) == 1 else 'Value in all runs',
    config=list(_merged(config)),
    environment=list(_merged(environments)),
    commands=settings.reproduction_commands(runs),
    reproduction_file=settings.REPRODUCTION_FILE,
    reproduction_config=settings.reproduction_config(runs),
  )


def _panels(runs):
  """Returns (title, columns, [(group, span)]) for each panel with columns.

  The spread over clients is in summary.csv only.
  """
  columns = [c for c in build_main_table(runs) if c.measure != 'spread']
  panels = match.grouped(columns, lambda c: c.panel)
  return [
    (
      _panel_title(name, columns),
      columns,
      collections.Counter(column.group for column in columns).items(),
    )
    for name, columns in panels.items()
  ]


def _differing(runs, config):
  """Returns headings and rows: a row per setting, or per run of many runs."""
  found = settings.differing(config)
  names, labels = _code(found.index), [run.label for run in runs]
  if len(runs) > 4:
    return ['Run', *names], list(zip(labels, found.T.to_numpy(), strict=True))
  return ['Setting', *labels], list(zip(names, found.to_numpy(), strict=True))


def _merged(compared):
  """Yields a row per name, with the one value or all that differ."""
  differs = markupsafe.Markup('<em>differs:</em> {}')
  values = compared.to_numpy()
  for name, found in zip(_code(compared.index), values, strict=True):
    is_one = len(set(found)) == 1
    yield name, [found[0] if is_one else differs.format(' / '.join(found))]


def _client_rows(evaluation):
  """Yields the clients that gained and lost most, with their losses."""
  span = markupsafe.Markup('<span class="client">{}</span>')
  for client, before, after in scatters.extreme_clients(
    evaluation, _NUM_EXTREME_CLIENTS
  ):
    change = shown(after - before, 3, sign='+')
    yield span.format(client), [shown(before, 3), shown(after, 3), change]


def _code(names):
  return [markupsafe.Markup('<code>{}</code>').format(name) for name in names]


def _file_names(subjects, prefix='transfer'):
  """Returns numbered names, as a corpus's own may hold anything."""
  if len(subjects) == 1:
    return {subjects[0]: prefix}
  return {subject: f'{prefix}_{n}' for n, subject in enumerate(subjects, 1)}


def _panel_title(name, columns):
  kind, _, corpus = name.partition(': ')
  if corpus:
    words = {'held_out': 'Held-out clients of', 'transfer': 'Transfer to'}
    return f'{words[kind]} {corpus}, {_SHARE}'
  if kind == OWN_TEST.kind:
    return 'Own test rows of the clients that train'
  has_barrier = any(column.measure == 'barrier' for column in columns)
  return {
    'held_out': f'Held-out clients, {_SHARE}',
    'cost': 'Client-Server Barrier and cost' if has_barrier else 'Cost',
    'training': 'Training, last values',
    'method': 'Metrics of single methods, last values',
  }[name]
