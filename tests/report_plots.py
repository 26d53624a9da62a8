"""The plots of a report as tables, without drawing them."""

from report_runs import read_report

from tff_fedfish.reporting.figures_of_report import all_plots
from tff_fedfish.reporting.plots import Plot


def plots_of(directories) -> dict[str, Plot]:
  """Returns name -> plot of the runs."""
  sections = all_plots(read_report(directories))
  plots = {plot.name: plot for found in sections.values() for plot in found}
  for plot in plots.values():
    if plot.kind in ('bar', 'point', 'line'):
      # Nothing is drawn over something else.
      assert not plot.table.duplicated(['panel', 'series', 'x']).any()
  return plots


def points(plot: Plot, *columns: str, **where) -> list[tuple]:
  """Returns some columns of the rows that match, numbers to 9 decimals."""
  table = plot.table
  for name, value in where.items():
    table = table[table[name] == value]
  table = table[list(columns)].map(_rounded)
  return list(table.itertuples(index=False, name=None))


def _rounded(value):
  return round(value, 9) if isinstance(value, float) else value
